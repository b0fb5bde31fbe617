package ledger

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// model is a simple ledger over eight addresses of each family.
type model struct {
	fences map[string]volume.Fence
	now    map[string][]netip.Addr
	former map[string][]netip.Addr
	grants map[string]map[string]string // modes by volume and node
	// revoking has "VOLUME at NODE" of grants whose revocation has failed.
	revoking map[string]bool
}

func newModel() *model {
	return &model{fences: map[string]volume.Fence{}, now: map[string][]netip.Addr{}, former: map[string][]netip.Addr{}, grants: map[string]map[string]string{}, revoking: map[string]bool{}}
}

func (m *model) isDenied(a netip.Addr) bool {
	for _, f := range m.fences {
		if f.Phase != volume.Lifted && f.Block.Contains(a) {
			return true
		}
	}
	return false
}

func (m *model) isFenced(c volume.Client) bool {
	return slices.ContainsFunc(slices.Concat(c.Addrs, m.now[c.Node], m.former[c.Node]), m.isDenied)
}

func (m *model) see(c volume.Client) {
	if _, known := m.now[c.Node]; !known {
		m.now[c.Node] = nil
	}
	if len(c.Addrs) == 0 || slices.Equal(c.Addrs, m.now[c.Node]) {
		return
	}
	was := m.now[c.Node]
	m.now[c.Node] = c.Addrs
	m.former[c.Node] = slices.DeleteFunc(append(slices.Clone(was), m.former[c.Node]...), func(a netip.Addr) bool { return slices.Contains(c.Addrs, a) })
	for _, a := range c.Addrs {
		if m.isDenied(a) || slices.Contains(was, a) {
			continue
		}
		for node := range m.former {
			m.former[node] = slices.DeleteFunc(m.former[node], func(b netip.Addr) bool { return a == b })
		}
	}
}

type action struct {
	name string
	real func(t *testing.T, l *Ledger) string
	sham func(m *model) string
}

func kind(err error) string {
	if err == nil {
		return "ok"
	}
	return string(errs.KindOf(err))
}

func actions() *rapid.Generator[action] {
	return rapid.OneOf(rapid.Custom(fenceAction), rapid.Custom(grantAction), rapid.Custom(seeAction))
}

func block(t *rapid.T) netip.Prefix {
	a, widest := netip.AddrFrom4([4]byte{192, 0, 2, byte(rapid.IntRange(0, 7).Draw(t, "host"))}), 29
	if rapid.Bool().Draw(t, "IPv6") {
		a, widest = netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 15: a.As4()[3]}), 125
	}
	return netip.PrefixFrom(a, rapid.IntRange(widest, a.BitLen()).Draw(t, "bits")).Masked()
}

func who(t *rapid.T) volume.Client {
	c := volume.Client{Node: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node")}
	for range rapid.IntRange(0, 2).Draw(t, "addresses") {
		c.Addrs = append(c.Addrs, block(t).Addr())
	}
	slices.SortFunc(c.Addrs, netip.Addr.Compare)
	c.Addrs = slices.Compact(c.Addrs)
	return c
}

func fenceAction(t *rapid.T) action {
	f := fenceOf(block(t).String(), rapid.SampledFrom([]string{"p", "q"}).Draw(t, "owner"), "")
	f.Phase = rapid.SampledFrom([]volume.FencePhase{"", volume.Fencing, volume.Fenced, volume.Lifting, volume.Lifted}).Draw(t, "phase")
	key := fenceKey(f)
	change := func(now []volume.Fence) []volume.Fence {
		next := slices.DeleteFunc(slices.Clone(now), func(o volume.Fence) bool { return fenceKey(o) == key })
		if f.Phase != "" {
			next = append(next, f)
		}
		return next
	}
	return action{fmt.Sprintf("fence %s of %s: %q", f.Block, f.Owner.Digest, f.Phase), func(t *testing.T, l *Ledger) string {
		before, after, err := l.ChangeFences(t.Context(), func(now []volume.Fence) ([]volume.Fence, error) { return change(now), nil })
		if err != nil {
			return err.Error()
		}
		return text(before) + " then " + text(after)
	}, func(m *model) string {
		before := text(slices.Collect(maps.Values(m.fences)))
		delete(m.fences, key)
		if f.Phase != "" {
			m.fences[key] = f
		}
		return before + " then " + text(slices.Collect(maps.Values(m.fences)))
	}}
}

func text(list []volume.Fence) string {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b volume.Fence) int {
		return cmp.Or(a.Block.Addr().Compare(b.Block.Addr()), cmp.Compare(a.Block.Bits(), b.Block.Bits()), strings.Compare(a.Owner.Digest, b.Owner.Digest))
	})
	var words []string
	for _, f := range list {
		words = append(words, fmt.Sprint(f.Block, f.Owner.Digest, f.Phase))
	}
	return strings.Join(words, " ")
}

func grantAction(t *rapid.T) action {
	id := rapid.SampledFrom([]string{"v", "w"}).Draw(t, "volume")
	c := who(t)
	if rapid.IntRange(0, 3).Draw(t, "revoke") == 0 {
		node := rapid.SampledFrom([]string{"", c.Node}).Draw(t, "of node")
		var enforced error
		if rapid.Bool().Draw(t, "the storage fails") {
			enforced = errs.Errorf(errs.Unavailable, "the storage fails")
		}
		return action{fmt.Sprintf("revoke %s of %q: %v", id, node, enforced), func(t *testing.T, l *Ledger) string {
			return kind(l.Revoke(t.Context(), volume.ID(id), node, func(context.Context) error { return enforced }))
		}, func(m *model) string {
			for has := range m.grants[id] {
				if node != "" && node != has {
					continue
				}
				if m.revoking[id+" at "+has] = enforced != nil; enforced == nil {
					delete(m.grants[id], has)
				}
			}
			return kind(enforced)
		}}
	}
	mode := rapid.SampledFrom([]string{"SINGLE_NODE_WRITER/block", sharedMode, "MULTI_NODE_READER_ONLY/block"}).Draw(t, "mode")
	return action{fmt.Sprintf("grant %s to %s %v, %s", id, c.Node, c.Addrs, mode), func(t *testing.T, l *Ledger) string {
		_, err := l.Grant(t.Context(), volume.Grant{Volume: volume.ID(id), Client: c, Mode: mode})
		if err != nil && strings.Contains(err.Error(), "is granted to node") {
			return "taken"
		}
		return kind(err)
	}, func(m *model) string {
		if m.isFenced(c) {
			return string(errs.Precondition)
		}
		if has, granted := m.grants[id][c.Node]; granted && has != mode {
			return string(errs.Exists)
		} else if !granted {
			for _, other := range m.grants[id] {
				if other != mode || mode == "SINGLE_NODE_WRITER/block" {
					return "taken"
				}
			}
		}
		m.see(c)
		if m.grants[id] == nil {
			m.grants[id] = map[string]string{}
		}
		m.grants[id][c.Node] = mode
		m.revoking[id+" at "+c.Node] = false
		return "ok"
	}}
}

func seeAction(t *rapid.T) action {
	c := who(t)
	if rapid.Bool().Draw(t, "record only") {
		return action{fmt.Sprintf("record %s %v", c.Node, c.Addrs), func(t *testing.T, l *Ledger) string {
			return kind(l.RecordClient(t.Context(), c))
		}, func(m *model) string { m.see(c); return "ok" }}
	}
	return action{fmt.Sprintf("enter %s %v", c.Node, c.Addrs), func(t *testing.T, l *Ledger) string {
		leave, err := l.Enter(t.Context(), c)
		if err == nil {
			leave()
		}
		return kind(err)
	}, func(m *model) string {
		if m.isFenced(c) {
			return string(errs.Precondition)
		}
		m.see(c)
		return "ok"
	}}
}

// TestLedgerIsItsModel compares any sequence of calls, with reopened stores.
func TestLedgerIsItsModel(t *testing.T) {
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n, ".db"))
		l, s := openLedger(t, path)
		m := newModel()
		steps := rapid.SliceOfN(actions(), 1, 40).Draw(rt, "steps")
		for i, a := range steps {
			if got, want := a.real(t, l), a.sham(m); got != want {
				rt.Fatalf("%s: got %s, want %s", a.name, got, want)
			}
			if i%10 == 9 {
				_ = s.Close()
				l, s = openLedger(t, path)
			}
		}
		checkClients(rt, t, l, m)
		checkGrants(rt, t, l, m)
		_ = s.Close()
	})
}

func checkClients(rt *rapid.T, t *testing.T, l *Ledger, m *model) {
	c := who(rt)
	if d := denialFor(t, l, c); (d != nil) != m.isFenced(c) || d != nil && !d.fence.Denies() {
		rt.Fatalf("%v is fenced: %+v; want %t", c, d, m.isFenced(c))
	}
	all, err := l.Clients(t.Context())
	if err != nil || len(all) != len(m.now) {
		rt.Fatalf("clients %v, %v; want %v", all, err, m.now)
	}
	blocks := []netip.Prefix{block(rt), block(rt)}
	within := testkit.Value(l.ClientsIn(t.Context(), blocks))(rt)
	for _, c := range all {
		if !slices.Equal(c.Addrs, m.now[c.Node]) {
			rt.Fatalf("%s has %v, want %v", c.Node, c.Addrs, m.now[c.Node])
		}
		want := slices.ContainsFunc(slices.Concat(m.now[c.Node], m.former[c.Node]), func(a netip.Addr) bool {
			return blocks[0].Contains(a) || blocks[1].Contains(a)
		})
		if got := slices.ContainsFunc(within, func(o volume.Client) bool { return o.Node == c.Node }); got != want {
			rt.Fatalf("%s, now %v, before %v, is in %v: %t", c.Node, m.now[c.Node], m.former[c.Node], blocks, got)
		}
	}
}

func checkGrants(rt *rapid.T, t *testing.T, l *Ledger, m *model) {
	got := map[string]string{}
	for _, g := range testkit.Value(l.All(t.Context(), "", 0))(rt) {
		at := string(g.Volume) + " at " + g.Client.Node
		if got[at] = g.Mode; g.Revoking.IsZero() == m.revoking[at] {
			rt.Fatalf("%s is being revoked since %s, want a revocation: %t", at, g.Revoking, m.revoking[at])
		}
	}
	want := map[string]string{}
	for id, nodes := range m.grants {
		for node, mode := range nodes {
			want[id+" at "+node] = mode
		}
	}
	if !maps.Equal(got, want) {
		rt.Fatalf("grants %v, want %v", got, want)
	}
}

// TestAtOnceIsOneAfterTheOther: concurrent calls are linearizable.
func TestAtOnceIsOneAfterTheOther(t *testing.T) {
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		l, s := openLedger(t, filepath.Join(dir, fmt.Sprint(n, ".db")))
		var before []action
		for _, a := range rapid.SliceOfN(actions(), 0, 6).Draw(rt, "before") {
			before = append(before, a)
			a.real(t, l)
		}
		workers := rapid.SliceOfN(rapid.SliceOfN(actions(), 1, 3), 3, 3).Draw(rt, "workers")
		answers := make([][]string, len(workers))
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, mine := range workers {
			wg.Go(func() {
				<-start
				for _, a := range mine {
					answers[i] = append(answers[i], a.real(t, l))
				}
			})
		}
		close(start)
		wg.Wait()
		_ = s.Close()
		if !explained(before, workers, answers, nil) {
			rt.Fatalf("no order explains %s", history(before, workers, answers))
		}
	})
}

func explained(done []action, workers [][]action, answers [][]string, want []string) bool {
	left := false
	for i := range workers {
		if len(workers[i]) == 0 {
			continue
		}
		left = true
		rest, others := slices.Clone(workers), slices.Clone(answers)
		rest[i], others[i] = workers[i][1:], answers[i][1:]
		next, results := append(slices.Clone(done), workers[i][0]), append(slices.Clone(want), answers[i][0])
		if agrees(next, results) && explained(next, rest, others, results) {
			return true
		}
	}
	return !left
}

func agrees(done []action, want []string) bool {
	m := newModel()
	for i, a := range done {
		got := a.sham(m)
		if at := i - (len(done) - len(want)); at >= 0 && got != want[at] {
			return false
		}
	}
	return true
}

func history(before []action, workers [][]action, answers [][]string) string {
	var lines []string
	for _, a := range before {
		lines = append(lines, "before: "+a.name)
	}
	for i, mine := range workers {
		for j, a := range mine {
			lines = append(lines, fmt.Sprintf("worker %d: %s: %s", i, a.name, answers[i][j]))
		}
	}
	return strings.Join(lines, "\n")
}

// denialFor does not record the client.
func denialFor(t *testing.T, l *Ledger, c volume.Client) (d *denial) {
	t.Helper()
	testkit.Must(t, l.store.View(t.Context(), func(tx *store.Tx) error {
		k, _, err := clients().Get(tx, c.Node)
		if err == nil {
			d, err = denialOf(tx, c, k)
		}
		return err
	}))
	return d
}
