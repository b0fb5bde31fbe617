package driver

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// A fence covers all addresses of the interfaces of the node's own; the node id has
// only those.
func TestNodeAddressesOfFences(t *testing.T) {
	testkit.EnterNetNS(t)
	for _, line := range []string{
		"link add storage type veth peer name far", "link set far up", "link set storage up", "link add pods type veth peer name pod", "link set pod up", "link set pods up",
		"address add 192.0.2.10/24 dev storage", "address add 192.0.2.99/32 dev storage",
		"-6 address add 2001:db8::10/64 dev storage nodad", "address add 10.244.0.1/24 dev pods", "route add default via 192.0.2.1",
	} {
		testkit.Run(t, "ip", strings.Fields(line)...)
	}
	for given, want := range map[string][2]string{
		"":                        {"[192.0.2.10 2001:db8::10]", "[192.0.2.10]"},
		"192.0.2.10":              {"[192.0.2.10 2001:db8::10]", "[192.0.2.10]"},
		"2001:db8::10":            {"[2001:db8::10 192.0.2.10]", "[2001:db8::10]"},
		"203.0.113.7":             {"[203.0.113.7]", "[203.0.113.7]"}, // behind NAT
		"203.0.113.7 192.0.2.10":  {"[203.0.113.7 192.0.2.10 2001:db8::10]", "[203.0.113.7 192.0.2.10]"},
		"10.244.0.1 2001:db8::10": {"[10.244.0.1 2001:db8::10 192.0.2.10]", "[10.244.0.1 2001:db8::10]"},
	} {
		d := driver{nodeID: "n"}
		d.Logger = slog.New(slog.DiscardHandler)
		for _, text := range strings.Fields(given) {
			d.addresses = append(d.addresses, netip.MustParseAddr(text))
		}
		if got := [2]string{fmt.Sprint(d.self().Addrs), fmt.Sprint(d.named().Addrs)}; got != want {
			t.Errorf("--node-address %q: %v, want %v", given, got, want)
		}
	}
}
