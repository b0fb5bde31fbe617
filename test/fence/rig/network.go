package rig

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Network is a switch in its own namespace.
type Network struct {
	ns    *Namespace
	ports int
}

// NewNetwork creates a switch without ports.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	n := &Network{ns: NewNamespace(t)}
	n.ns.MustRun(t, "ip", "link", "add", "br0", "type", "bridge")
	n.ns.MustRun(t, "ip", "link", "set", "br0", "up")
	return n
}

// Cable connects a host to the switch.
type Cable struct {
	network *Network
	port    string
}

// Attach gives a host an interface on the switch, with addresses. Its MAC
// address derives from the first address: it is the same after a reboot.
func (n *Network) Attach(t testing.TB, host *Namespace, addrs ...netip.Prefix) Cable {
	t.Helper()
	n.ports++
	port := fmt.Sprintf("port%d", n.ports)
	inTest := host.Path()
	n.ns.MustRun(t, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inTest)
	n.ns.MustRun(t, "ip", "link", "set", port, "master", "br0", "up")
	var script strings.Builder
	last := addrs[0].Addr().As16()
	fmt.Fprintf(&script, "link set eth0 address 02:00:%02x:%02x:%02x:%02x\n", last[12], last[13], last[14], last[15])
	for _, a := range addrs {
		flags := ""
		if a.Addr().Is6() {
			flags = " nodad"
		}
		fmt.Fprintf(&script, "addr add %s dev eth0%s\n", a, flags)
	}
	script.WriteString("link set eth0 up\n")
	if _, err := host.feed(t.Context(), script.String(), "ip", "-batch", "-"); err != nil {
		t.Fatal(err)
	}
	return Cable{n, port}
}

// Disconnect removes the cable without a link event at either end: packets are
// lost.
func (c Cable) Disconnect(ctx context.Context) error {
	_, err := c.network.ns.Run(ctx, "ip", "link", "set", c.port, "nomaster")
	return err
}

// Reconnect restores the cable.
func (c Cable) Reconnect(ctx context.Context) error {
	_, err := c.network.ns.Run(ctx, "ip", "link", "set", c.port, "master", "br0")
	return err
}
