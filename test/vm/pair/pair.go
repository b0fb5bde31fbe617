// Package pair boots two guests with a private network link: two nodes, or a
// storage server and its client.
package pair

import (
	"net/netip"
	"os"
	"path"
	"testing"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

// Pair is two guests, numbered 0 and 1.
type Pair struct {
	testing.TB
	cable vm.Cable
	specs [2]vm.Spec
	nodes [2]*Node
}

// Node is one of the two guests, with an address on the cable.
type Node struct {
	*kernel.Kernel
	// Interface is the network interface of the cable.
	Interface string
	Address   netip.Addr
}

// Boot boots both guests.
func Boot(t testing.TB, first, second vm.Spec) *Pair {
	t.Helper()
	dir, err := os.MkdirTemp("", "cable-") // short, because socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	slots := vm.ReserveSlots(t, 2)
	p := &Pair{TB: t, cable: vm.NewCable(dir), specs: [2]vm.Spec{first, second}}
	for i := range p.specs {
		p.specs[i].Slots = slots
		p.Boot(i)
	}
	return p
}

// Boot boots guest i, or reboots it, and configures its address.
func (p *Pair) Boot(i int) *Node {
	p.Helper()
	spec := p.specs[i]
	spec.Devices = append(p.cable.End(i), spec.Devices...)
	n := &Node{Kernel: kernel.Of(p.TB, vm.Boot(p.TB, spec)), Address: netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})} // of TEST-NET-2 (RFC 5737)
	for _, name := range n.Names("/sys/class/net") {
		if n.Read(path.Join("/sys/class/net", name, "address")) == p.cable.MAC(i) {
			n.Interface = name
		}
	}
	if n.Interface == "" {
		p.Fatalf("guest %d has no network interface %s", i, p.cable.MAC(i))
	}
	n.Run("ip", "address", "add", netip.PrefixFrom(n.Address, 24).String(), "dev", n.Interface)
	n.Run("ip", "link", "set", n.Interface, "up")
	p.nodes[i] = n
	return n
}

// Node returns the running guest i.
func (p *Pair) Node(i int) *Node { return p.nodes[i] }
