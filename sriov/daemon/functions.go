package daemon

import (
	"maps"
	"reflect"
	"slices"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
)

// Functions is what the daemon keeps about a node's functions.
type Functions struct {
	// Functions as they were when no pod had held them since they were observed
	// last, by address.
	Baselines map[string]plan.VF `json:"baselines,omitempty"`
	// What the node state asks for and the node did not have when this daemon
	// began to check it, with the functions offered.
	Accepted []plan.Unmet `json:"accepted,omitempty"`
	// Hash of the spec that was reached before the daemon began to check it; ""
	// when Accepted is known.
	Unchecked string `json:"unchecked,omitempty"`
}

// tracker separates what pods left on functions from what an administrator set: a
// change is an administrator's, or the daemon's, if no pod held the function
// between two observations. All others are residue, also changes while the
// daemon did not run or the kubelet did not answer. It is pure.
type tracker struct {
	saved Functions
	// Functions that no pod held since they were like their baseline. Initially
	// none is known.
	clean map[string]bool
}

func newTracker(saved Functions) *tracker {
	t := &tracker{saved: saved, clean: map[string]bool{}}
	t.saved.Baselines = maps.Clone(saved.Baselines)
	if t.saved.Baselines == nil {
		t.saved.Baselines = map[string]plan.VF{}
	}
	return t
}

// polled drops what polls do not confirm.
func (t *tracker) polled(p polls) {
	if p.failed {
		clear(t.clean)
	}
	for address := range p.held {
		delete(t.clean, address)
	}
}

// observe returns the baselines of functions that have to be compared, and
// whether saved has changed. Of functions that were not read, and of all that
// might not exist, it keeps what is saved.
func (t *tracker) observe(spec nodestate.Spec, o observation) (compare map[string]plan.VF, changed bool) {
	before := Functions{maps.Clone(t.saved.Baselines), t.saved.Accepted, t.saved.Unchecked}
	held := map[string]bool{}
	for _, h := range o.pods.holders {
		held[h.ID] = true
	}
	unread, _ := o.notRead(spec, nil)
	compare = map[string]plan.VF{}
	exists := map[string]bool{}
	var inPods []plan.Entry
	for _, i := range spec.Interfaces {
		n := slices.IndexFunc(o.state.PFs, func(pf plan.PF) bool { return pf.Address == i.PCIAddress })
		if n < 0 {
			continue
		}
		for _, v := range o.state.PFs[n].VFs {
			g, grouped := i.Group(v.Index)
			if !grouped || v.Index >= i.NumVFs {
				continue
			}
			exists[v.Address] = true
			if unread[i.PCIAddress] != "" || unread[v.Address] != "" {
				delete(t.clean, v.Address)
				continue
			}
			if t.saved.Baselines[v.Address].Instance != v.Instance { // it was created again
				delete(t.saved.Baselines, v.Address)
			}
			if o.pods.err != nil || held[v.Address] || v.InPod() {
				delete(t.clean, v.Address)
				inPods = append(inPods, plan.Entry{PF: i.PCIAddress, VF: v.Index, Address: v.Address})
				continue
			}
			if was, ok := t.free(g, o.state.PFs[n], v); !ok {
				compare[v.Address] = was
			}
		}
	}
	if len(unread) == 0 {
		maps.DeleteFunc(t.saved.Baselines, func(address string, _ plan.VF) bool { return !exists[address] })
		t.accept(spec, o, inPods)
	}
	return compare, !reflect.DeepEqual(before, t.saved)
}

// free handles a function that no pod holds. It returns the baseline if the
// function must be compared.
func (t *tracker) free(g nodestate.VFGroup, pf plan.PF, v plan.VF) (was plan.VF, ok bool) {
	was, known := t.saved.Baselines[v.Address]
	if known && !t.clean[v.Address] && !plan.Same(g, pf, was, v) {
		return was, false
	}
	if v.Known {
		t.saved.Baselines[v.Address], t.clean[v.Address] = v, true
	}
	return plan.VF{}, true
}

// accept keeps functions offered that were offered before the daemon checked
// what it checks now, until the node is observed to have it. Of functions in pods
// that is not observed.
func (t *tracker) accept(spec nodestate.Spec, o observation, inPods []plan.Entry) {
	if t.saved.Unchecked != spec.Hash() {
		t.saved.Unchecked = ""
	}
	if t.saved.Unchecked == "" && len(t.saved.Accepted) == 0 {
		return
	}
	p := plan.Compute(spec, o.state, plan.Options{GUIDs: o.guids, Accept: plan.Kinds()})
	notObserved := func(u plan.Unmet) bool {
		return slices.ContainsFunc(inPods, func(v plan.Entry) bool { return v.Address == u.Function })
	}
	switch {
	case t.saved.Unchecked != "":
		t.saved.Accepted = p.Unmet
		for _, v := range inPods {
			for _, kind := range []string{plan.UnmetGUID, plan.UnmetRDMA} {
				t.saved.Accepted = append(t.saved.Accepted, plan.Unmet{PF: v.PF, Function: v.Address, Kind: kind})
			}
		}
		if len(p.Steps) == 0 { // otherwise it is not configured yet, for example after a reboot
			t.saved.Unchecked = ""
		}
	case len(p.Steps) == 0:
		t.saved.Accepted = slices.DeleteFunc(slices.Clone(t.saved.Accepted), func(u plan.Unmet) bool {
			return !slices.Contains(p.Unmet, u) && !notObserved(u)
		})
	}
}
