package daemon

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

type model struct {
	*rapid.T
	rules   Rules
	r       *reconciler
	now     time.Time
	node    *node
	record  Record
	pending []action

	desired  *nodestate.NodeState
	gen, uid int
	held     []podresources.Holder
	kubelet  bool
	ack      bool

	gate         bool
	shutOK       bool // since it was last opened
	acked        bool // the closed functions of offering
	readFailed   bool // the last observation
	offering     gate.Claim
	seen         *observation // newest ended one, with no step after it
	seenOf       string       // desired when it began
	observingFor string       // desired when the running one began
	// The gate was closed when the observation began.
	observingClosed, seenClosed bool
}

func newModel(t *rapid.T, mode Mode) *model {
	w := &model{T: t, now: time.Unix(1e9, 0), node: newNode(), kubelet: true, ack: true}
	w.rules = Rules{Mode: mode, Node: "n1", Force: rapid.Bool().Draw(t, "force"), Spread: func(d time.Duration) time.Duration { return d }}
	if rapid.IntRange(0, 3).Draw(t, "scheduler delay") == 0 {
		w.rules.Settle = 2 * time.Second
	}
	w.start()
	return w
}

func (w *model) start() {
	w.r = newReconciler(w.rules, w.record, w.now)
	w.pending, w.gate, w.shutOK, w.acked, w.seen, w.offering = nil, false, false, false, nil, gate.Claim{}
}

func (w *model) key() string {
	if w.desired == nil {
		return ""
	}
	key := fmt.Sprintf("%s/%d/%s", w.desired.UID, w.desired.Generation, w.desired.Spec.Hash())
	if w.rules.Mode == Follow {
		key += "/" + w.desired.Status.SyncStatus
	}
	return key
}

func (w *model) step(e event) {
	before := w.r.deadline()
	actions := w.r.handle(w.now, e)
	for _, a := range actions {
		switch a := a.(type) {
		case enable:
			w.opens(a)
		case apply:
			w.does(a.Step)
			w.pending = append(w.pending, a)
		default:
			switch a.(type) {
			case observe:
				w.observingFor, w.observingClosed = w.key(), w.shutOK || w.acked
			case withdraw:
				older := w.desired != nil && w.desired.UID == w.offering.UID && w.desired.Generation < w.offering.Generation
				if w.rules.Mode == Apply && w.acked && w.desired != nil && !w.readFailed && !older {
					w.Fatalf("all devices are withdrawn, though %v are acknowledged: %+v", w.offering.Closed, w.r.snapshot())
				}
			}
			w.pending = append(w.pending, a)
		}
	}
	for i, a := range w.pending {
		for _, b := range w.pending[i+1:] {
			if fmt.Sprintf("%T", a) == fmt.Sprintf("%T", b) {
				w.Fatalf("two %T at once", a)
			}
		}
	}
	if at := w.r.deadline(); e == (timeout{}) && len(actions) == 0 && !at.IsZero() && !at.After(w.now) {
		w.Fatalf("a tick at %v changes nothing, and the next is due at %v (before: %v): %+v", w.now, at, before, w.r.snapshot())
	}
}

func (w *model) opens(a enable) {
	switch {
	case w.desired == nil:
		w.Fatalf("opened without a desired state")
	case a.Claim.UID != w.desired.UID || a.Claim.Generation != w.desired.Generation:
		w.Fatalf("opened for %+v, wanted %s", a.Claim, w.key())
	case w.has(withdraw{}):
		w.Fatalf("opened during a withdrawal")
	case w.gate && a.Claim.UID == w.offering.UID && a.Claim.Generation < w.offering.Generation:
		w.Fatalf("the plugin refuses generation %d while it serves %d", a.Claim.Generation, w.offering.Generation)
	case w.seen == nil || w.seenOf != w.key():
		w.Fatalf("opened without an observation for %s (for %s, %v)", w.key(), w.seenOf, w.seen)
	case w.rules.Mode == Follow && w.desired.Status.SyncStatus != nodestate.Succeeded:
		w.Fatalf("opened while the operator reports %q", w.desired.Status.SyncStatus)
	}
	var managed []string
	compute := plan.Follow
	if w.rules.Mode == Apply {
		managed, compute = w.record.Managed, plan.Compute
	}
	var held []string
	for _, h := range w.r.holders {
		held = append(held, h.ID)
	}
	p := compute(w.desired.Spec, w.seen.state, plan.Options{Managed: managed, Held: held})
	closes, node := p.Closes(w.seen.state)
	if node != "" || w.rules.Mode == Follow && !p.Done() {
		w.Fatalf("opened with %v, %v left", p.Steps, p.Problems)
	}
	for address, reason := range closes {
		offered := w.gate && w.offering.Generation == a.Claim.Generation && w.offering.UID == a.Claim.UID && !w.closes(w.offering, address)
		if !w.closes(a.Claim, address) && !offered { // an offered one has to be seen twice
			w.Fatalf("opened with %s left: %s", address, reason)
		}
	}
	if w.closes(a.Claim, pf1) {
		w.Fatalf("another PF is closed: %v", a.Claim.Closed)
	}
	w.gate, w.shutOK, w.acked, w.offering = true, false, false, a.Claim
}

func (w *model) closes(c gate.Claim, address string) bool {
	_, itself := c.Closed[address]
	_, pf := c.Closed[pf0]
	return itself || pf && address != pf1
}

// acknowledge reports that the closed functions are withdrawn.
func (w *model) acknowledge() bool {
	if !w.gate || w.acked || w.r.gate.position != gateOpen || len(w.offering.Closed) == 0 || w.has(withdraw{}) {
		return false
	}
	w.acked = true
	w.step(gateChanged{heldStatus(w.offering, true)})
	return true
}

func (w *model) does(s plan.Step) {
	switch {
	case w.rules.Mode == Follow:
		w.Fatalf("%s, in mode follow", s)
	case (w.gate || !w.shutOK) && !(w.gate && w.acked && w.closes(w.offering, s.Function())):
		w.Fatalf("%s while the gate is not known to be closed", s)
	case w.has(apply{}) || w.has(observe{}):
		w.Fatalf("%s while something else is under way", s)
	case !w.seenClosed:
		w.Fatalf("%s after an observation that began before the withdrawal ended", s)
	case !w.record.Applying:
		w.Fatalf("%s is not on record", s)
	case w.desired == nil:
		w.Fatalf("%s without a desired state", s)
	}
	if !w.rules.Force && w.seen != nil {
		for _, h := range w.seen.pods.holders {
			if _, there := w.node.find(h.ID); there != nil && (s.Function() == h.ID || s.Function() == pf0 && isRemoval(s)) {
				w.Fatalf("%s while a pod holds %s", s, h.ID)
			}
		}
	}
}

func isRemoval(s plan.Step) bool {
	n, ok := s.(plan.SetNumVFs)
	return ok && n.Number == 0
}

func (w *model) has(kind action) bool {
	return slices.ContainsFunc(w.pending, func(a action) bool { return fmt.Sprintf("%T", a) == fmt.Sprintf("%T", kind) })
}

func (w *model) answer(i int, ok bool) {
	a := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	switch a := a.(type) {
	case observe:
		l := observation{state: w.node.copy(), hash: "h"}
		if !ok {
			l.err = errors.New("netlink: busy")
		}
		l.pods = pods{holders: slices.Clone(w.held)}
		if !w.kubelet {
			l.pods = pods{err: podresources.ErrNotServed}
		} else if w.gate && !(w.acked && w.closes(w.offering, vfAddress(pf0, 0))) {
			l.pods.offered = map[string][]string{"example.com/net": {vfAddress(pf0, 0)}}
		}
		w.readFailed = !ok
		if w.seen = nil; ok {
			w.seen, w.seenOf, w.seenClosed = &l, w.observingFor, w.observingClosed
		}
		w.step(observed{l, a.revision})
	case withdraw:
		e := withdrawn{result: gate.Withdrawal{Acknowledged: w.ack, Confirmed: w.ack, Reason: "no plugin"}}
		if w.gate, w.acked = false, false; !ok {
			e = withdrawn{err: errors.New("no answer")}
			w.gate = rapid.Bool().Draw(w.T, "still open")
		} else {
			w.shutOK = true
		}
		w.step(e)
	case record:
		if ok {
			w.record = a.Record
			w.step(recorded{})
		} else {
			w.step(recorded{errors.New("disk full")})
		}
	case apply:
		w.seen = nil
		if !ok {
			w.step(applied{errors.New("EBUSY")})
			return
		}
		w.step(applied{w.node.do(a.Step)})
	}
}

func (w *model) send(spec nodestate.Spec, status string) {
	n := nodestate.NodeState{Name: "n1", UID: fmt.Sprintf("u%d", w.uid), Generation: int64(w.gen), Spec: spec}
	n.Status.SyncStatus = status
	before := w.key()
	w.desired = &n
	fresh := w.key() != before
	wasOpen := w.gate
	w.step(desiredReported{source.Update{State: n}})
	if w.rules.Mode == Follow && wasOpen && fresh && !w.has(withdraw{}) && w.r.now.After(w.r.gate.notBefore) {
		w.Fatalf("the operator's state changed, and the gate stays open")
	}
}

func (w *model) drawSpec() nodestate.Spec {
	s := specOf(rapid.IntRange(0, 4).Draw(w.T, "vfs"), []int{0, 1500, 9000}[rapid.IntRange(0, 2).Draw(w.T, "mtu")])
	if rapid.IntRange(0, 9).Draw(w.T, "too many") == 0 {
		s = specOf(9, 0)
	}
	return s
}

func (w *model) event() {
	t := w.T
	switch rapid.IntRange(0, 18).Draw(t, "event") {
	case 0, 1:
		if w.gen++; w.gen > 2 && rapid.IntRange(0, 4).Draw(t, "older") == 0 {
			w.gen -= 2
		}
		w.send(w.drawSpec(), rapid.SampledFrom([]string{"", nodestate.InProgress, nodestate.Succeeded, nodestate.Failed}).Draw(t, "status"))
	case 2:
		if w.desired != nil {
			w.send(w.desired.Spec, rapid.SampledFrom([]string{nodestate.InProgress, nodestate.Succeeded}).Draw(t, "status"))
		}
	case 3:
		if rapid.Bool().Draw(t, "gone") {
			w.desired, w.gen = nil, 0
			w.uid++
			w.step(desiredReported{source.Update{Gone: true}})
		} else {
			w.step(desiredReported{source.Update{Err: errors.New("broken")}})
		}
	case 4:
		w.step(nodeChanged{})
	case 5:
		w.node.change(func(s *plan.State) {
			if n := len(s.PFs[0].VFs); n > 0 {
				s.PFs[0].VFs[n-1].Driver = rapid.SampledFrom([]string{"", "iavf", "vfio-pci"}).Draw(t, "driver")
			}
		})
	case 6:
		if w.held = nil; rapid.Bool().Draw(t, "holds") {
			w.held = []podresources.Holder{{Resource: "example.com/net", ID: vfAddress(pf0, rapid.IntRange(0, 3).Draw(t, "held")), Namespace: "ns", Pod: "p"}}
		}
	case 7:
		w.kubelet = rapid.Bool().Draw(t, "kubelet")
	case 8:
		w.ack = rapid.Bool().Draw(t, "acknowledges")
	case 9:
		w.start()
		if w.desired != nil {
			w.send(w.desired.Spec, w.desired.Status.SyncStatus)
		}
	case 10:
		if w.gate && w.offering.Equal(w.r.gate.claim) {
			w.gate, w.acked = false, false
			w.step(gateChanged{control.RenewerStatus{State: control.StateStale, Since: w.now}})
		}
	case 12, 13:
		w.acknowledge()
	case 14:
		if c := w.offering; w.gate && !w.acked && len(c.Closed) > 0 {
			code := rapid.SampledFrom([]codes.Code{codes.Unimplemented, codes.FailedPrecondition}).Draw(t, "code")
			of := w.r.gate.position == gateOpen && c.Equal(w.r.gate.claim)
			w.step(gateChanged{control.RenewerStatus{State: control.StateRefused, Code: code, Desired: &c, Since: w.now}})
			if of && w.r.gate.position == gateOpen {
				w.Fatalf("the plugin refused %+v, and what it offers is not withdrawn", c)
			}
		}
	case 11:
		if w.rules.Mode == Follow && w.desired != nil {
			p := plan.Compute(w.desired.Spec, w.node.copy(), plan.Options{})
			for _, s := range p.Steps[:min(len(p.Steps), 2)] {
				testkit.Must(t, w.node.do(s))
			}
		}
	default:
		w.now = w.now.Add(time.Duration(rapid.IntRange(1, 8000).Draw(t, "ms")) * time.Millisecond)
		w.step(timeout{})
	}
}

// No action fails.
func (w *model) runUntilServing() {
	w.held, w.kubelet, w.ack = nil, true, true
	for range 2000 {
		if len(w.pending) > 0 {
			w.answer(0, true)
			continue
		}
		if w.acknowledge() {
			continue
		}
		if w.rules.Mode == Follow && w.desired != nil && w.desired.Status.SyncStatus != nodestate.Succeeded {
			for n := 0; ; n++ {
				p := plan.Compute(w.desired.Spec, w.node.copy(), plan.Options{})
				if len(p.Steps) == 0 {
					break
				}
				for _, step := range p.Steps {
					if err := w.node.do(step); err != nil || n > 100 {
						w.Fatalf("the operator does not come to an end: %v, %v", p.Steps, err)
					}
				}
			}
			w.send(w.desired.Spec, nodestate.Succeeded)
			continue
		}
		at := w.r.deadline()
		if w.ended() || at.IsZero() {
			return
		}
		if w.now.Before(at) {
			w.now = at
		}
		w.step(timeout{})
		if w.rules.Mode == Follow && w.desired != nil {
			for _, s := range plan.Compute(w.desired.Spec, w.node.copy(), plan.Options{}).Steps {
				testkit.Must(w, w.node.do(s))
			}
		}
	}
	w.Fatalf("it does not come to an end: %+v", w.r.snapshot())
}

func (w *model) ended() bool {
	if w.desired == nil {
		return !w.gate
	}
	p := plan.Compute(w.desired.Spec, w.node.copy(), plan.Options{})
	return w.gate && p.Done() && w.offering.Generation == w.desired.Generation && len(w.offering.Closed) == 0
}

func TestMachine(t *testing.T) {
	for _, mode := range []Mode{Apply, Follow} {
		t.Run(string(mode), rapid.MakeCheck(func(t *rapid.T) { checkModel(t, mode) }))
	}
}

func FuzzMachine(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { checkModel(t, rapid.SampledFrom([]Mode{Apply, Follow}).Draw(t, "mode")) }))
}

func checkModel(t *rapid.T, mode Mode) {
	w := newModel(t, mode)
	for range rapid.IntRange(1, 80).Draw(t, "events") {
		if n := len(w.pending); n > 0 && rapid.Bool().Draw(t, "answers") {
			w.answer(rapid.IntRange(0, n-1).Draw(t, "which"), rapid.IntRange(0, 5).Draw(t, "fails") > 0)
			continue
		}
		w.event()
	}
	if w.desired != nil && w.desired.Spec.Interfaces[0].NumVFs > 8 {
		w.gen++
		w.send(specOf(2, 0), nodestate.InProgress)
	}
	w.runUntilServing()
	if !w.ended() {
		t.Fatalf("nothing more happens: %+v; offers %v %+v, wanted %+v", w.r.snapshot(), w.gate, w.offering, w.desired)
	}
}
