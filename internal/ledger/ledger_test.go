package ledger

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestMain(m *testing.M) {
	if !soak.Enabled {
		_ = flag.Set("rapid.checks", "30") // of 100
	}
	goleak.VerifyTestMain(m)
}

func openLedger(t testing.TB, path string) (*Ledger, database) {
	t.Helper()
	o := store.Options{Role: "ledger", Version: 1}
	if os.Getenv(useShared) != "" {
		s := sharedFile{testkit.Value(store.OpenShared(t.Context(), path, &fileObject{path: path}, o))(t)}
		return New(s), s
	}
	s := testkit.Open(store.Open(t.Context(), path, o))(t)
	return New(s), s
}

func grantOf(id, node string) volume.Grant {
	return volume.Grant{
		Volume:  volume.ID(id),
		Client:  volume.Client{Node: node, HostNQN: "nqn." + node, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		Mode:    "SINGLE_NODE_WRITER",
		Granted: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func TestGrantRevokeAndWhatIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	l, s := openLedger(t, path)
	first := grantOf("v1", "n1")
	if got, err := l.Grant(t.Context(), first); err != nil || cmp.Diff(first, got, cmpopts.EquateComparable(netip.Addr{})) != "" {
		t.Fatalf("got %+v, %v", got, err)
	}
	again := first
	again.Granted = again.Granted.Add(time.Hour)
	if got, err := l.Grant(t.Context(), again); err != nil || !got.Granted.Equal(first.Granted) {
		t.Errorf("the same again: %+v, %v", got, err)
	}
	_ = s.Close()
	l, _ = openLedger(t, path)
	held, err := l.Of(t.Context(), "v1")
	if diff := cmp.Diff([]volume.Grant{first}, held, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
		t.Errorf("after a restart: %v %s", err, diff)
	}
	for _, node := range []string{"n2", "n1", "n1", ""} {
		if err := l.Revoke(t.Context(), "v1", node, nil); err != nil {
			t.Error(err)
		}
		if held, err := l.Of(t.Context(), "v1"); err != nil || (len(held) == 1) != (node == "n2") {
			t.Errorf("after revoking %q: %v, %v", node, held, err)
		}
	}
	if held, err := l.ByNode(t.Context(), "n1"); err != nil || len(held) != 0 {
		t.Errorf("of the node: %v, %v", held, err)
	}
}

func TestGrantRefusals(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	testkit.Value(l.Grant(t.Context(), grantOf("v1", "n1")))(t)
	for name, c := range map[string]struct {
		change func(*volume.Grant)
		kind   errs.Kind
		words  []string
	}{
		"read-only":    {func(g *volume.Grant) { g.ReadOnly = true }, errs.Exists, []string{"n1", "writable", "read-only"}},
		"mode":         {func(g *volume.Grant) { g.Mode = "OTHER" }, errs.Exists, []string{"OTHER", "SINGLE_NODE_WRITER"}},
		"host":         {func(g *volume.Grant) { g.Client.HostNQN = "nqn.x" }, errs.Exists, []string{"nqn.x", "nqn.n1"}},
		"no address":   {func(g *volume.Grant) { g.Client.Addrs = []netip.Addr{{}} }, errs.Invalid, []string{"address"}},
		"other node":   {func(g *volume.Grant) { g.Client.Node = "n2" }, errs.Precondition, []string{"n1", "2026-01-02T03:04:05Z"}},
		"no node":      {func(g *volume.Grant) { g.Client.Node = "" }, errs.Invalid, []string{"node"}},
		"no volume":    {func(g *volume.Grant) { g.Volume = "" }, errs.Invalid, []string{"volume id"}},
		"NUL in a key": {func(g *volume.Grant) { g.Volume = "v1\x00n" }, errs.Invalid, []string{"volume id"}},
	} {
		g := grantOf("v1", "n1")
		c.change(&g)
		_, err := l.Grant(t.Context(), g)
		testkit.WantError(t, name, err, c.kind, c.words...)
	}
	held, err := l.All(t.Context(), "", 0)
	if diff := cmp.Diff([]volume.Grant{grantOf("v1", "n1")}, held, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
		t.Errorf("changed: %v %s", err, diff)
	}
}

// Several nodes have a volume only with one multi-node mode.
func TestNodesThatShareAVolume(t *testing.T) {
	const reading, mounted = "MULTI_NODE_READER_ONLY/block", "MULTI_NODE_MULTI_WRITER/mount"
	for name, c := range map[string]struct {
		first, second string
		readOnly      bool // the second
		kind          errs.Kind
	}{
		"writers":                 {first: sharedMode, second: sharedMode},
		"a writer and a reader":   {first: sharedMode, second: sharedMode, readOnly: true},
		"readers":                 {first: reading, second: reading},
		"different modes":         {first: sharedMode, second: reading, kind: errs.Precondition},
		"single, then multi-node": {first: "SINGLE_NODE_WRITER/block", second: sharedMode, kind: errs.Precondition},
		"multi-node, then single": {first: sharedMode, second: "SINGLE_NODE_WRITER/block", kind: errs.Precondition},
		"one single-node mode":    {first: "SINGLE_NODE_WRITER/block", second: "SINGLE_NODE_WRITER/block", kind: errs.Precondition},
		"a shared file system":    {first: mounted, second: mounted},
		"different access types":  {first: sharedMode, second: mounted, kind: errs.Precondition},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
			first, second := grantOf("v", "n1"), grantOf("v", "n2")
			first.Mode, second.Mode, second.ReadOnly = c.first, c.second, c.readOnly
			testkit.Value(l.Grant(t.Context(), first))(t)
			_, err := l.Grant(t.Context(), second)
			want := []volume.Grant{first}
			if c.kind == "" {
				testkit.Must(t, err)
				want = append(want, second)
				testkit.Value(l.Grant(t.Context(), second))(t)
				changed := second
				changed.ReadOnly = !changed.ReadOnly
				testkit.WantError(t, "changed", testkit.Err(l.Grant(t.Context(), changed)), errs.Exists, "n2")
			} else {
				testkit.WantError(t, "second", err, c.kind, "n1", c.first, c.second, "unpublish")
			}
			held, err := l.Of(t.Context(), "v")
			if diff := cmp.Diff(want, held, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
				t.Errorf("held: %v %s", err, diff)
			}
		})
	}
}

func TestOneOfManyNodesIsGranted(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	var won []string
	var mu sync.Mutex
	var nodes sync.WaitGroup
	for i := range 16 {
		nodes.Go(func() {
			node := fmt.Sprint("n", i)
			_, err := l.Grant(t.Context(), grantOf("v", node))
			switch {
			case err == nil:
				mu.Lock()
				won = append(won, node)
				mu.Unlock()
			case !errors.Is(err, errs.Precondition):
				t.Error(err)
			}
		})
	}
	nodes.Wait()
	if len(won) != 1 {
		t.Errorf("granted to %v", won)
	}
}

func TestPages(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	// IDs that are prefixes of each other, and a volume held by two nodes.
	for _, pair := range [][2]string{{"v", "n"}, {"v-1", "n"}, {"v-1", "z"}, {"v-10", "n"}, {"v-2", "m"}, {"va", "n"}} {
		g := grantOf(pair[0], pair[1])
		g.Mode = sharedMode
		testkit.Value(l.Grant(t.Context(), g))(t)
	}
	for limit, want := range map[int]string{
		0: "[v v-1 v-1 v-10 v-2 va]",
		1: "[v][v-1 v-1][v-10][v-2][va]",
		2: "[v v-1 v-1][v-10 v-2][va]",
		9: "[v v-1 v-1 v-10 v-2 va]",
	} {
		var pages string
		for after := volume.ID(""); ; {
			page := testkit.Value(l.All(t.Context(), after, limit))(t)
			if len(page) == 0 {
				break
			}
			var ids []string
			for _, g := range page {
				ids = append(ids, string(g.Volume))
			}
			pages += fmt.Sprint(ids)
			after = page[len(page)-1].Volume
		}
		if pages != want {
			t.Errorf("limit %d: got %s, want %s", limit, pages, want)
		}
	}
	if held, err := l.Of(t.Context(), "v"); err != nil || len(held) != 1 {
		t.Errorf("of v: %v, %v", held, err)
	}
	if held, err := l.ByNode(t.Context(), "n"); err != nil || len(held) != 4 {
		t.Errorf("of n: %v, %v", held, err)
	}
}

// The ledger equals a map after any sequence of calls, for both queries.
func TestLedgerIsAMap(t *testing.T) {
	l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	rapid.Check(t, func(rt *rapid.T) {
		model := map[string]string{}
		ids := rapid.SampledFrom([]string{"a", "a-", "ab", "b"})
		nodes := rapid.SampledFrom([]string{"n", "n1", "m"})
		for range rapid.IntRange(1, 30).Draw(rt, "calls") {
			id, node := ids.Draw(rt, "id"), nodes.Draw(rt, "node")
			if rapid.Bool().Draw(rt, "grant") {
				_, err := l.Grant(t.Context(), grantOf(id, node))
				if holder, held := model[id]; (err == nil) != (!held || holder == node) {
					rt.Fatalf("grant %s to %s, held by %q: %v", id, node, holder, err)
				}
				if err == nil {
					model[id] = node
				}
				continue
			}
			if rapid.Bool().Draw(rt, "all nodes") {
				node = ""
			}
			testkit.Must(rt, l.Revoke(t.Context(), volume.ID(id), node, nil))
			if node == "" || model[id] == node {
				delete(model, id)
			}
		}
		checkModel(rt, t, l, model)
		for id := range model {
			testkit.Must(rt, l.Revoke(t.Context(), volume.ID(id), "", nil))
		}
		_ = s.View(t.Context(), func(tx *store.Tx) error {
			for e := range byNode().Range(tx, "") {
				rt.Fatalf("left in the index: %q", e.Key)
			}
			return nil
		})
	})
}

func checkModel(rt *rapid.T, t *testing.T, l *Ledger, model map[string]string) {
	all := testkit.Value(l.All(t.Context(), "", 0))(rt)
	got := map[string]string{}
	for _, g := range all {
		got[string(g.Volume)] = g.Client.Node
	}
	turned := map[string]string{}
	for _, node := range []string{"n", "n1", "m"} {
		held := testkit.Value(l.ByNode(t.Context(), node))(rt)
		for _, g := range held {
			turned[string(g.Volume)] = node
		}
		if !slices.IsSortedFunc(held, func(a, b volume.Grant) int { return strings.Compare(string(a.Volume), string(b.Volume)) }) {
			rt.Fatalf("not in order: %v", held)
		}
	}
	if !maps.Equal(got, model) || !maps.Equal(turned, model) {
		rt.Fatalf("all %v, by node %v, want %v", got, turned, model)
	}
}

func client(node string, addrs ...string) volume.Client {
	c := volume.Client{Node: node}
	for _, a := range addrs {
		c.Addrs = append(c.Addrs, netip.MustParseAddr(a))
	}
	return c
}

func recordClients(t testing.TB, l *Ledger, all ...volume.Client) {
	t.Helper()
	for _, c := range all {
		testkit.Must(t, l.RecordClient(t.Context(), c))
	}
}

// The node n1 has an IPv4 and an IPv6 address, and had 203.0.113.9 before.
func TestFencedClients(t *testing.T) {
	for name, c := range map[string]struct {
		fences []volume.Fence
		who    volume.Client
		words  []string // empty: not fenced
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
			[]string{"203.0.113.9, its address until 20", "203.0.113.0/24"}},
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
			_, granted := l.Grant(t.Context(), volume.Grant{Volume: "v", Client: c.who, Mode: "m"})
			leave, entered := l.Enter(t.Context(), c.who)
			if len(c.words) == 0 {
				if granted != nil || entered != nil {
					t.Fatalf("grant: %v; enter: %v", granted, entered)
				}
				leave()
				return
			}
			for _, refusal := range []error{granted, entered} {
				testkit.WantError(t, "the refusal", refusal, errs.Precondition, c.words...)
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
		"it gets no volume until the block is unfenced with UnfenceClusterNetwork (cleat fence rm 192.0.2.0/24), which is safe after the node was restarted or powered off " +
		"(fenced with parameters clusterID, pool, unfence it with the same)"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// A refusal leaves no grant, client or entry.
func TestRefusalChangesNothing(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	recordClients(t, l, client("n1", "192.0.2.1"))
	block := netip.MustParsePrefix("192.0.2.0/24")
	setFences(t, l, fenceOf(block.String(), "a", volume.Fenced))
	for _, c := range []volume.Client{client("n1", "198.51.100.1"), client("n2", "192.0.2.2")} {
		if _, err := l.Grant(t.Context(), volume.Grant{Volume: "v", Client: c, Mode: "m"}); !errors.Is(err, errs.Precondition) {
			t.Errorf("granted: %v", err)
		}
		testkit.WantError(t, "let in", testkit.Err(l.Enter(t.Context(), c)), errs.Precondition)
	}
	wantClients(t, l, client("n1", "192.0.2.1"))
	if held, err := l.All(t.Context(), "", 0); err != nil || len(held) != 0 {
		t.Errorf("grants: %v, %v", held, err)
	}
	ended := testkit.Canceled(t)
	if err := l.Quiet(ended, []netip.Prefix{block}); err != nil {
		t.Errorf("a client is inside: %v", err)
	}
}

// A fenced node's existing grant is refused again, and can be revoked.
func TestRevokeOfAFencedNode(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	g := grantOf("v", "n1")
	testkit.Value(l.Grant(t.Context(), g))(t)
	setFences(t, l, fenceOf("192.0.2.1/32", "a", volume.Fenced))
	testkit.WantError(t, "the same again", testkit.Err(l.Grant(t.Context(), g)), errs.Precondition)
	testkit.Must(t, l.Revoke(t.Context(), "v", "n1", nil))
	if held, err := l.Of(t.Context(), "v"); err != nil || len(held) != 0 {
		t.Errorf("grants: %v, %v", held, err)
	}
	testkit.WantError(t, "enter while the fence is on record", testkit.Err(l.Enter(t.Context(), client("n1"))), errs.Precondition)
	elsewhere := g
	elsewhere.Client = client("n1", "198.51.100.1")
	testkit.WantError(t, "come back with another address", testkit.Err(l.Grant(t.Context(), elsewhere)), errs.Precondition)
	// Another node can get the volume.
	testkit.Value(l.Grant(t.Context(), volume.Grant{Volume: "v", Client: client("n2", "192.0.2.2"), Mode: "m"}))(t)
	setFences(t, l)
	g.Volume = "w"
	if _, err := l.Grant(t.Context(), g); err != nil {
		t.Errorf("unfenced: %v", err)
	}
}
