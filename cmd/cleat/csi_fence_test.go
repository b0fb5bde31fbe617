package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// Settings without effect are refused, not ignored.
func TestFencingSettingsOfCSI(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*csiServer)
		want   string // in the error; empty: no error
	}{
		"default":                 {func(*csiServer) {}, ""},
		"endpoint only":           {func(f *csiServer) { f.addonsEndpoint = "unix:///run/x/addons.sock" }, ""},
		"directory of CSI socket": {func(f *csiServer) { f.addonsEndpoint = "unix:///run/cleat/csi/a.sock" }, "another directory"},
		"peer without endpoint":   {func(f *csiServer) { f.fencing.peers = []string{"a=unix:///run/a.sock"} }, "--addons-endpoint"},
		"secret without endpoint": {func(f *csiServer) { f.fencing.secrets = map[string]string{"k": "/f"} }, "--addons-endpoint"},
		"secret for peers": {func(f *csiServer) {
			f.fencing.listen, f.fencing.secrets = "unix:///run/p.sock", map[string]string{"k": "/f"}
		}, "certificate"},
		"network without TLS": {func(f *csiServer) { f.fencing.listen = ":9070" }, "--fence-tls-cert"},
		"loopback":            {func(f *csiServer) { f.nodeAddresses = []string{"127.0.0.1"} }, "--node-address"},
		"no address":          {func(f *csiServer) { f.nodeAddresses = []string{"node-1"} }, "--node-address"},
	} {
		f := csiServer{fencing: fencing{prefix: "fence-", checkInterval: time.Second, endTimeout: time.Second}}
		f.Endpoint = defaultEndpoint
		c.change(&f)
		err := f.checkFencing()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// The path of a peer's socket is not a host name to resolve.
func TestSocketPeersHaveNoAddresses(t *testing.T) {
	var log bytes.Buffer
	n := fencing{peers: []string{"a=unix:///run/a.sock"}}
	testkit.Must(t, n.parsePeers())
	if all := n.peerAddrs(t.Context(), slog.New(slog.NewTextHandler(&log, nil))); len(all) > 0 || log.Len() > 0 {
		t.Errorf("got %v, log %s", all, log.String())
	}
}

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
		d := csiServer{nodeID: "n"}
		d.Logger = slog.New(slog.DiscardHandler)
		for _, text := range strings.Fields(given) {
			d.addresses = append(d.addresses, netip.MustParseAddr(text))
		}
		if got := [2]string{fmt.Sprint(d.self().Addrs), fmt.Sprint(d.named().Addrs)}; got != want {
			t.Errorf("--node-address %q: %v, want %v", given, got, want)
		}
	}
}
