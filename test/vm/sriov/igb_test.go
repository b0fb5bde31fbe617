package sriov

import (
	"fmt"
	"path"
)

// driverOfItsOwn verifies that new functions become network devices.
func (p physical) driverOfItsOwn() {
	p.Helper()
	p.autoprobe(true)
	p.create(2)
	for _, address := range p.virtual() {
		if got := p.of(address, "driver"); got != "igbvf" {
			p.Errorf("driver of %s: got %q, want igbvf", address, got)
		}
		p.networkInterface(address)
	}
	p.create(0)
}

func (p physical) networkInterface(address string) string {
	p.Helper()
	all := p.Names(path.Join(devices, address, "net"))
	if len(all) != 1 {
		p.Fatalf("network interfaces of function %s: got %v, want one", address, all)
	}
	return all[0]
}

// traffic verifies that two functions have the MACs set through the physical
// one, and exchange packets between network namespaces.
func (p physical) traffic() {
	p.Helper()
	const peer = "198.51.100.2" // TEST-NET-2 (RFC 5737)
	p.autoprobe(false)
	p.create(2)
	master := p.networkInterface(p.address)
	p.Run("ip", "link", "set", master, "up")
	p.Run("mkdir", "-p", "/var/run")
	p.Run("ip", "netns", "add", "blue")
	var names []string
	for i, address := range p.virtual() {
		mac := fmt.Sprintf("52:54:00:c1:ea:9%d", i)
		p.Run("ip", "link", "set", master, "vf", fmt.Sprint(i), "mac", mac)
		p.bind(address, "igbvf")
		name := p.networkInterface(address)
		if got := p.Read(path.Join("/sys/class/net", name, "address")); got != mac {
			p.Errorf("MAC of %s: got %s, want %s", name, got, mac)
		}
		names = append(names, name)
	}
	p.Run("ip", "link", "set", names[1], "netns", "blue")
	p.Run("ip", "address", "add", "198.51.100.1/24", "dev", names[0])
	p.Run("ip", "link", "set", names[0], "up")
	p.Run("ip", "-n", "blue", "address", "add", peer+"/24", "dev", names[1])
	p.Run("ip", "-n", "blue", "link", "set", names[1], "up")
	p.Await("one function reaches the other", func() bool {
		_, err := p.Try("ping", "-c", "1", "-W", "1", peer)
		return err == nil
	})
	p.Run("ip", "netns", "delete", "blue")
}
