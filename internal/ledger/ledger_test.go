package ledger

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
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
	"github.com/cleatproject/cleat/volume"
)

func TestMain(m *testing.M) {
	if !soak.Enabled {
		_ = flag.Set("rapid.checks", "30") // of 100
	}
	goleak.VerifyTestMain(m)
}

func openLedger(t testing.TB, path string) (*Ledger, *store.Store) {
	t.Helper()
	s, err := store.Open(t.Context(), path, store.Options{Role: "ledger", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return New(s), s
}

func grantOf(id, node string) Grant {
	return Grant{
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
	if diff := cmp.Diff([]Grant{first}, held, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
		t.Errorf("after a restart: %v %s", err, diff)
	}
	for _, node := range []string{"n2", "n1", "n1", ""} {
		if err := l.Revoke(t.Context(), "v1", node); err != nil {
			t.Error(err)
		}
		held, err := l.Of(t.Context(), "v1")
		if err != nil || (len(held) == 1) != (node == "n2") {
			t.Errorf("after revoking %q: %v, %v", node, held, err)
		}
	}
	if held, err := l.ByNode(t.Context(), "n1"); err != nil || len(held) != 0 {
		t.Errorf("of the node: %v, %v", held, err)
	}
}

func TestGrantRefusals(t *testing.T) {
	l, _ := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	if _, err := l.Grant(t.Context(), grantOf("v1", "n1")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Grant)
		kind   errs.Kind
		words  []string
	}{
		"read-only":    {func(g *Grant) { g.ReadOnly = true }, errs.Exists, []string{"n1", "writable", "read-only"}},
		"mode":         {func(g *Grant) { g.Mode = "OTHER" }, errs.Exists, []string{"OTHER", "SINGLE_NODE_WRITER"}},
		"host":         {func(g *Grant) { g.Client.HostNQN = "nqn.x" }, errs.Exists, []string{"nqn.x", "nqn.n1"}},
		"no address":   {func(g *Grant) { g.Client.Addrs = []netip.Addr{{}} }, errs.Invalid, []string{"address"}},
		"other node":   {func(g *Grant) { g.Client.Node = "n2" }, errs.Precondition, []string{"n1", "2026-01-02T03:04:05Z"}},
		"no node":      {func(g *Grant) { g.Client.Node = "" }, errs.Invalid, []string{"node"}},
		"no volume":    {func(g *Grant) { g.Volume = "" }, errs.Invalid, []string{"volume id"}},
		"NUL in a key": {func(g *Grant) { g.Volume = "v1\x00n" }, errs.Invalid, []string{"volume id"}},
	} {
		g := grantOf("v1", "n1")
		c.change(&g)
		_, err := l.Grant(t.Context(), g)
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: got %v, want %v", name, err, c.kind)
			continue
		}
		for _, word := range c.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not say %q", name, err, word)
			}
		}
	}
	held, err := l.All(t.Context(), "", 0)
	if diff := cmp.Diff([]Grant{grantOf("v1", "n1")}, held, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
		t.Errorf("changed: %v %s", err, diff)
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
	l, s := openLedger(t, filepath.Join(t.TempDir(), "l.db"))
	// Ids that are prefixes of each other, and a volume that two nodes hold, as
	// a later access mode will have it.
	for _, pair := range [][2]string{{"v", "n"}, {"v-1", "n"}, {"v-10", "n"}, {"v-2", "m"}, {"va", "n"}} {
		if _, err := l.Grant(t.Context(), grantOf(pair[0], pair[1])); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Update(t.Context(), func(tx *store.Tx) error { return grants().Put(tx, key("v-1", "z"), grantOf("v-1", "z")) })
	if err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int]string{
		0: "[v v-1 v-1 v-10 v-2 va]",
		1: "[v][v-1 v-1][v-10][v-2][va]",
		2: "[v v-1 v-1][v-10 v-2][va]",
		9: "[v v-1 v-1 v-10 v-2 va]",
	} {
		var pages string
		for after := volume.ID(""); ; {
			page, err := l.All(t.Context(), after, limit)
			if err != nil {
				t.Fatal(err)
			}
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

// Any sequence of calls leaves what a map would hold, and both ways to ask
// agree.
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
			if err := l.Revoke(t.Context(), volume.ID(id), node); err != nil {
				rt.Fatal(err)
			}
			if node == "" || model[id] == node {
				delete(model, id)
			}
		}
		checkModel(rt, t, l, model)
		for id := range model {
			if err := l.Revoke(t.Context(), volume.ID(id), ""); err != nil {
				rt.Fatal(err)
			}
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
	all, err := l.All(t.Context(), "", 0)
	if err != nil {
		rt.Fatal(err)
	}
	got := map[string]string{}
	for _, g := range all {
		got[string(g.Volume)] = g.Client.Node
	}
	turned := map[string]string{}
	for _, node := range []string{"n", "n1", "m"} {
		held, err := l.ByNode(t.Context(), node)
		if err != nil {
			rt.Fatal(err)
		}
		for _, g := range held {
			turned[string(g.Volume)] = node
		}
		if !slices.IsSortedFunc(held, func(a, b Grant) int { return strings.Compare(string(a.Volume), string(b.Volume)) }) {
			rt.Fatalf("not in order: %v", held)
		}
	}
	if !maps.Equal(got, model) || !maps.Equal(turned, model) {
		rt.Fatalf("all %v, by node %v, want %v", got, turned, model)
	}
}
