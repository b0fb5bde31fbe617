package ledger

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func client(node string, addrs ...string) volume.Client {
	c := volume.Client{Node: node}
	for _, a := range addrs {
		c.Addrs = append(c.Addrs, netip.MustParseAddr(a))
	}
	return c
}

// recordClients keeps who they are, one after the other.
func recordClients(t testing.TB, l *Ledger, all ...volume.Client) {
	t.Helper()
	for _, c := range all {
		if err := l.RecordClient(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhoIsFenced: the node n1 is known by an IPv4 and an IPv6 address, and had
// 203.0.113.9 before.
func TestWhoIsFenced(t *testing.T) {
	for name, c := range map[string]struct {
		fences []volume.Fence
		who    volume.Client
		words  []string // none: not fenced
	}{
		"nothing":             {nil, client("n1", "192.0.2.1"), nil},
		"another address":     {[]volume.Fence{fenceOf("192.0.2.2/32", "a", volume.Fenced)}, client("n1"), nil},
		"another block":       {[]volume.Fence{fenceOf("198.51.100.0/24", "a", volume.Fenced)}, client("n1"), nil},
		"the other family":    {[]volume.Fence{fenceOf("::/0", "a", volume.Fenced)}, client("n2", "192.0.2.2"), nil},
		"mapped is the other": {[]volume.Fence{fenceOf("192.0.2.0/24", "a", volume.Fenced)}, client("n2", "::ffff:192.0.2.2"), []string{"192.0.2.2 is in"}},
		"its address": {[]volume.Fence{fenceOf("192.0.2.1/32", "a", volume.Fenced)}, client("n1"),
			[]string{"node n1 is fenced: its address 192.0.2.1 is in block 192.0.2.1/32, which is fenced since 2026-01-02T03:04:05Z", "UnfenceClusterNetwork", "cleat fence rm 192.0.2.1/32", "restarted", "without parameters"}},
		"one of two families": {[]volume.Fence{fenceOf("2001:db8::/64", "a", volume.Fenced)}, client("n1", "192.0.2.1"), []string{"2001:db8::1", "2001:db8::/64"}},
		"everything":          {[]volume.Fence{fenceOf("0.0.0.0/0", "a", volume.Fenced)}, client("n1"), []string{"0.0.0.0/0"}},
		"by name, elsewhere now": {[]volume.Fence{fenceOf("192.0.2.0/24", "a", volume.Fenced)}, client("n1", "198.51.100.7"),
			[]string{"its address 192.0.2.1 is"}},
		"a former address": {[]volume.Fence{fenceOf("203.0.113.0/24", "a", volume.Fenced)}, client("n1"),
			[]string{"203.0.113.9, which was its address until 20", "203.0.113.0/24"}},
		"an unknown node there": {[]volume.Fence{fenceOf("192.0.2.0/24", "a", volume.Fenced)}, client("n9", "192.0.2.77"), []string{"n9", "192.0.2.77"}},
		"being fenced":          {[]volume.Fence{fenceOf("192.0.2.1/32", "a", volume.Fencing)}, client("n1"), []string{"is being fenced since"}},
		"being unfenced": {[]volume.Fence{fenceOf("192.0.2.1/32", "a", volume.Lifting)}, client("n1"),
			[]string{"node n1 is not yet unfenced", "repeat UnfenceClusterNetwork", "cleat fence rm 192.0.2.1/32"}},
		"lifted": {[]volume.Fence{fenceOf("192.0.2.1/32", "a", volume.Lifted)}, client("n1"), nil},
		"the one that stays first": {[]volume.Fence{fenceOf("192.0.2.1/32", "a", volume.Lifting), fenceOf("192.0.2.0/24", "a", volume.Fenced)}, client("n1"),
			[]string{"node n1 is fenced", "192.0.2.0/24", "one more fence"}},
		"the narrowest": {[]volume.Fence{fenceOf("0.0.0.0/0", "a", volume.Fenced), fenceOf("192.0.2.0/24", "a", volume.Fenced), fenceOf("192.0.2.0/24", "b", volume.Fenced)}, client("n1"),
			[]string{"block 192.0.2.0/24", "2 more fences"}},
		"now before former": {[]volume.Fence{fenceOf("203.0.113.9/32", "a", volume.Fenced), fenceOf("192.0.2.0/24", "a", volume.Fenced)}, client("n1"),
			[]string{"block 192.0.2.0/24", "one more fence"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
			recordClients(t, l, client("n1", "203.0.113.9"), client("n1", "2001:db8::1", "192.0.2.1"))
			setFences(t, l, c.fences...)
			_, granted := l.Grant(t.Context(), Grant{Volume: "v", Client: c.who, Mode: "m"})
			leave, entered := l.Enter(t.Context(), c.who)
			if len(c.words) == 0 {
				if granted != nil || entered != nil {
					t.Fatalf("grant: %v; enter: %v", granted, entered)
				}
				leave()
				return
			}
			for _, refusal := range []error{granted, entered} {
				if !errors.Is(refusal, errs.Precondition) {
					t.Fatalf("got %v", refusal)
				}
				for _, w := range c.words {
					if !strings.Contains(refusal.Error(), w) {
						t.Errorf("%q does not say %q", refusal, w)
					}
				}
			}
		})
	}
}

func TestRefusalNamesTheParameters(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	f := fenceOf("192.0.2.0/24", "a", volume.Fenced)
	f.Owner.Keys, f.Since = []string{"clusterID", "pool"}, f.Since.In(time.FixedZone("", 7200))
	setFences(t, l, f)
	_, err := l.Enter(t.Context(), client("n1", "192.0.2.1"))
	want := "node n1 is fenced: its address 192.0.2.1 is in block 192.0.2.0/24, which is fenced since 2026-01-02T03:04:05Z; " +
		"it gets no volume until UnfenceClusterNetwork opens that block (cleat fence rm 192.0.2.0/24), which is safe once the node was restarted or is off " +
		"(fenced with parameters clusterID, pool, and unfenced with the same)"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// A refusal leaves nothing behind: no grant, no client, nobody inside.
func TestRefusalChangesNothing(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	recordClients(t, l, client("n1", "192.0.2.1"))
	block := netip.MustParsePrefix("192.0.2.0/24")
	setFences(t, l, fenceOf(block.String(), "a", volume.Fenced))
	for _, c := range []volume.Client{client("n1", "198.51.100.1"), client("n2", "192.0.2.2")} {
		if _, err := l.Grant(t.Context(), Grant{Volume: "v", Client: c, Mode: "m"}); !errors.Is(err, errs.Precondition) {
			t.Errorf("granted: %v", err)
		}
		if _, err := l.Enter(t.Context(), c); !errors.Is(err, errs.Precondition) {
			t.Errorf("let in: %v", err)
		}
	}
	wantClients(t, l, client("n1", "192.0.2.1"))
	if held, err := l.All(t.Context(), "", 0); err != nil || len(held) != 0 {
		t.Errorf("grants: %v, %v", held, err)
	}
	ended, cancel := contextThatEnded(t)
	defer cancel()
	if err := l.Quiet(ended, []netip.Prefix{block}); err != nil {
		t.Errorf("somebody is inside: %v", err)
	}
}

// What a node has already is refused to it again, and taken from it as ever;
// who it is stays known.
func TestRevokeOfAFencedNode(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	g := grantOf("v", "n1")
	if _, err := l.Grant(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	setFences(t, l, fenceOf("192.0.2.1/32", "a", volume.Fenced))
	if _, err := l.Grant(t.Context(), g); !errors.Is(err, errs.Precondition) {
		t.Errorf("the same again: %v", err)
	}
	if err := l.Revoke(t.Context(), "v", "n1"); err != nil {
		t.Error(err)
	}
	if held, err := l.Of(t.Context(), "v"); err != nil || len(held) != 0 {
		t.Errorf("grants: %v, %v", held, err)
	}
	if _, err := l.Enter(t.Context(), client("n1")); !errors.Is(err, errs.Precondition) {
		t.Errorf("the fence was forgotten: %v", err)
	}
	elsewhere := g
	elsewhere.Client = client("n1", "198.51.100.1")
	if _, err := l.Grant(t.Context(), elsewhere); !errors.Is(err, errs.Precondition) {
		t.Errorf("come back with another address: %v", err)
	}
	// The workload goes on elsewhere.
	if _, err := l.Grant(t.Context(), Grant{Volume: "v", Client: client("n2", "192.0.2.2"), Mode: "m"}); err != nil {
		t.Error(err)
	}
	setFences(t, l)
	g.Volume = "w"
	if _, err := l.Grant(t.Context(), g); err != nil {
		t.Errorf("unfenced: %v", err)
	}
}
