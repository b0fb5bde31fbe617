package inventory

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
)

// Some do not exist.
func drawHeld(t *rapid.T, s *Snapshot) []HeldDevice {
	all := []string{"0000:09:00.0", "mlx5_core.sf.9", "GPU-1"}
	for _, f := range s.Functions {
		all = append(all, f.Address)
	}
	for _, a := range s.Auxiliary {
		all = append(all, a.Name)
	}
	var held []HeldDevice
	for range rapid.IntRange(0, 6).Draw(t, "held") {
		h := HeldDevice{Resource: "intel.com/r" + pick(t, "0", "1", "2", "3", "4"), ID: rapid.SampledFrom(all).Draw(t, "id")}
		switch rapid.IntRange(0, 4).Draw(t, "known") {
		case 0:
			f := drawFunction(t, rapid.IntRange(0, 11).Draw(t, "was"))
			h.Last = &Device{ID: h.ID, Function: &f}
			if rapid.Bool().Draw(t, "was auxiliary") {
				a := Auxiliary{Name: h.ID, Type: "sf", Driver: pick(t, "", "x"), Parent: f}
				h.Last.Function, h.Last.Auxiliary = &a.Parent, &a
			}
		case 1, 2: // but for what can move to a pod
			for _, f := range s.Functions {
				if f.Address == h.ID {
					f.Netdevs, f.RDMA = []Netdev{{Name: "moved", Link: "ether"}}, []RDMA{{Name: "moved"}}
					h.Last = &Device{ID: h.ID, Function: &f}
				}
			}
			for _, a := range s.Auxiliary {
				if a.Name == h.ID {
					a.RDMA = []RDMA{{Name: "moved"}}
					h.Last = &Device{ID: h.ID, Function: &a.Parent, Auxiliary: &a}
				}
			}
		}
		held = append(held, h)
	}
	return held
}

func drawOptions(t *rapid.T, s *Snapshot) AssignOptions {
	return AssignOptions{Held: drawHeld(t, s), LinkHealth: rapid.Bool().Draw(t, "link health")}
}

// If its pool can have it; other devices are not affected.
func TestHeldDevicesStayInPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, s := drawConfig(t), drawSnapshot(t)
		o := drawOptions(t, s)
		before := asText(t, s, o)
		with, without := Assign(c, s, o), Assign(c, s, AssignOptions{LinkHealth: o.LinkHealth})
		if after := asText(t, s, o); after != before {
			t.Errorf("Assign modified its input (-before +after):\n%s", cmp.Diff(before, after))
		}
		pods := map[string]map[string]bool{}
		for _, h := range o.Held {
			if pods[h.ID] == nil {
				pods[h.ID] = map[string]bool{}
			}
			pods[h.ID][h.Resource] = true
		}
		for i, p := range with.Pools {
			if !slices.IsSortedFunc(p.Members, func(a, b Member) int {
				if a.Selector != b.Selector {
					return a.Selector - b.Selector
				}
				return cmpText(a.ID, b.ID)
			}) {
				t.Errorf("the members of %s are not in order: %v", p.Resource.FullName(), ids(p, true))
			}
			var others []Member
			for _, m := range p.Members {
				if resources := pods[m.ID]; resources == nil {
					others = append(others, m)
				} else if !m.Held || !resources[p.Resource.FullName()] || (len(resources) > 1) && m.Wrong == "" {
					t.Errorf("%+v is in %s, pods have it from %v", m, p.Resource.FullName(), resources)
				}
			}
			free := slices.DeleteFunc(slices.Clone(without.Pools[i].Members), func(m Member) bool { return pods[m.ID] != nil })
			if diff := cmp.Diff(free, others, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("devices that no pod holds (-without +with holders):\n%s", diff)
			}
		}
		there := map[string]DeviceType{}
		for _, d := range slices.Concat(with.Free, leftOut(with)) {
			if len(pods[d.ID]) > 0 && slices.ContainsFunc(with.Free, func(f Device) bool { return f.ID == d.ID }) {
				t.Errorf("%s is free, pods have it from %v", d.ID, pods[d.ID])
			}
		}
		for _, f := range s.Functions {
			there[f.Address] = map[DeviceClass]DeviceType{NetworkClass: NetDevice, AcceleratorClass: Accelerator}[f.Kind]
		}
		for _, a := range s.Auxiliary {
			there[a.Name] = AuxNetDevice
		}
		for id, resources := range pods {
			kept := 0
			for _, p := range with.Pools {
				if resources[p.Resource.FullName()] && p.Resource.Type == there[id] {
					kept++
					if !slices.ContainsFunc(p.Members, func(m Member) bool { return m.ID == id }) {
						t.Errorf("a pod holds %s from %s, but the pool does not have it", id, p.Resource.FullName())
					}
				}
			}
			if there[id] != "" && (kept == 0) != slices.ContainsFunc(leftOut(with), func(d Device) bool { return d.ID == id }) {
				t.Errorf("%s is in %d pools and among those left out", id, kept)
			}
		}
	})
}

func cmpText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func leftOut(a Assignment) (all []Device) {
	for _, l := range a.LeftOut {
		all = append(all, l.Device)
	}
	return all
}

func asText(t *rapid.T, s *Snapshot, o AssignOptions) string {
	text := testkit.Value(json.Marshal(struct {
		S *Snapshot
		O AssignOptions
	}{s, o}))(t)
	return string(text)
}

func TestOrderOfHeldDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, s := drawConfig(t), drawSnapshot(t)
		o := drawOptions(t, s)
		shuffled := &Snapshot{Functions: slices.Clone(s.Functions), Auxiliary: slices.Clone(s.Auxiliary)}
		again := AssignOptions{Held: slices.Clone(o.Held), LinkHealth: o.LinkHealth}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		shuffle(r, shuffled.Functions)
		shuffle(r, shuffled.Auxiliary)
		shuffle(r, again.Held)
		if n := len(again.Held); n > 0 && rapid.Bool().Draw(t, "twice") {
			again.Held = append(again.Held, again.Held[r.IntN(n)])
		}
		if diff := cmp.Diff(Assign(c, s, o), Assign(c, shuffled, again)); diff != "" {
			t.Errorf("assignment (-sorted +shuffled):\n%s", diff)
		}
		if diff := cmp.Diff(Explain(c, s, o), Explain(c, shuffled, again)); diff != "" {
			t.Errorf("explanation (-sorted +shuffled):\n%s", diff)
		}
	})
}

func shuffle[T any](r *rand.Rand, all []T) {
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
}

func TestExplainMatchesAssignOfHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, s := drawConfig(t), drawSnapshot(t)
		checkExplain(t, c, s, drawOptions(t, s))
	})
}

func checkExplain(t interface{ Errorf(string, ...any) }, c Config, s *Snapshot, o AssignOptions) {
	a := Assign(c, s, o)
	done := map[string][]string{}
	for _, p := range a.Pools {
		for _, m := range p.Members {
			done[m.ID] = append(done[m.ID], fmt.Sprintf("%s %d, held: %t, %s", p.Resource.FullName(), m.Selector, m.Held, m.Wrong))
		}
	}
	for _, l := range a.LeftOut {
		done[l.ID] = append(done[l.ID], "left out: "+l.Why)
	}
	explained := map[string][]string{}
	for _, e := range Explain(c, s, o) {
		if e.LeftOut != "" {
			explained[e.ID] = append(explained[e.ID], "left out: "+e.LeftOut)
		}
		if of := slices.ContainsFunc(o.Held, func(h HeldDevice) bool { return h.ID == e.ID }); e.Held != of {
			t.Errorf("%s is held: %t, in the options: %t", e.ID, e.Held, of)
		}
		for _, v := range e.Verdicts {
			switch {
			case v.Outcome == Taken, v.Outcome == Kept:
				explained[e.ID] = append(explained[e.ID], fmt.Sprintf("%s %d, held: %t, %s", v.Resource, v.Selector, v.Outcome == Kept, e.Wrong))
				if e.Resource == "" || e.Held != (v.Outcome == Kept) {
					t.Errorf("%s is %s by %s; it is held: %t, of %q", e.ID, v.Outcome, v.Resource, e.Held, e.Resource)
				}
			case v.Outcome == Late && e.Held, v.Outcome == Withheld && !e.Held:
				t.Errorf("%s is %s for %s, held: %t", e.ID, v.Outcome, v.Resource, e.Held)
			}
		}
	}
	if diff := cmp.Diff(done, explained); diff != "" {
		t.Errorf("places (-assigned +explained):\n%s", diff)
	}
}
