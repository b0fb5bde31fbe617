package driver

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
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
		self, named := testkit.Value(d.self())(t), testkit.Value(d.named())(t)
		if got := [2]string{fmt.Sprint(self.Addrs), fmt.Sprint(named.Addrs)}; got != want {
			t.Errorf("--node-address %q: %v, want %v", given, got, want)
		}
	}
}

// A node whose addresses cannot be read names neither those it had nor a part of them:
// a fence would miss the others.
func TestNodeAddressesThatCannotBeRead(t *testing.T) {
	db := testkit.Open(store.Open(t.Context(), filepath.Join(t.TempDir(), "fences.db"), store.Options{Role: "fences", Version: 1}))(t)
	had := volume.Client{Node: "n", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}}
	for name, given := range map[string][]netip.Addr{"of the default routes": nil, "of --node-address": had.Addrs[:1]} {
		d := driver{nodeID: "n", addresses: given, addonsEndpoint: "unix:///run/addons/x.sock", ledger: ledger.New(db)}
		d.Logger = slog.New(slog.DiscardHandler)
		testkit.Must(t, d.ledger.RecordClient(t.Context(), had))
		node := csi.NewNode(csi.NodeConfig{NodeID: "n", Deployment: csi.Deployment{MultiNode: true}, Client: d.self, Named: d.named})
		release := testkit.LimitFiles(t, 0)
		c, err := d.client(t.Context())
		info, infoErr := node.NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{})
		release()
		testkit.WantError(t, name+": GetFenceClients", err, errs.Unavailable, "addresses of node n")
		if len(c.Addrs) > 0 {
			t.Errorf("%s: %v", name, c.Addrs)
		}
		if given == nil && errs.KindOf(infoErr) != errs.Unavailable {
			t.Errorf("%s: NodeGetInfo: %v, %v", name, info, infoErr)
		}
	}
}
