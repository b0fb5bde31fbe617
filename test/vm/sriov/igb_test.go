package sriov

import (
	"fmt"
	"path"
	"testing"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

// igb is an Intel 82576.
func igb() kind {
	return kind{
		name: "igb", total: 7, driver: "igb",
		spec: func(*testing.T) vm.Spec {
			return vm.Spec{
				Kernel: image.Backports, Emulator: image.Backports, Modules: []string{"igb", "igbvf"}, Tools: []string{"ip"},
				Devices: vm.IGB(1),
			}
		},
		prepare: func(physical) {},
		own: func(p physical) {
			p.driverOfItsOwn()
			p.traffic()
		},
	}
}

// driverOfItsOwn: functions become network devices when they are made.
func (p physical) driverOfItsOwn() {
	p.Helper()
	p.autoprobe(true)
	p.create(2)
	for _, address := range p.virtual() {
		if got := p.of(address, "driver"); got != "igbvf" {
			p.Errorf("the driver of %s is %q, want igbvf", address, got)
		}
		p.networkInterface(address)
	}
	p.create(0)
}

// networkInterface is the one that a function has.
func (p physical) networkInterface(address string) string {
	p.Helper()
	all := p.Names(path.Join(devices, address, "net"))
	if len(all) != 1 {
		p.Fatalf("the function %s has the network interfaces %v, want one", address, all)
	}
	return all[0]
}

// traffic: two functions have the hardware addresses that the physical one gave
// them, and carry packets between two network namespaces.
func (p physical) traffic() {
	p.Helper()
	const peer = "198.51.100.2" // of TEST-NET-2 (RFC 5737)
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
			p.Errorf("the hardware address of %s is %s, want %s", name, got, mac)
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
