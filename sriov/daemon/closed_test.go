package daemon

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

// life answers every action of a plugin that closes single functions, for a while.
type life struct {
	*script
	change  func() // the node, at each observation
	see     func(*observation)
	fail    func(plan.Step) error
	held    []podresources.Holder
	claims  []gate.Claim
	steps   []string
	refused int // withdrawals of all devices
}

func (l *life) run(e event, long time.Duration) {
	end := l.now.Add(long)
	for events := []event{e}; len(events) > 0; {
		e, events = events[0], events[1:]
		l.last = l.r.handle(l.now, e)
		for _, a := range l.last {
			switch a := a.(type) {
			case observe:
				if l.change != nil {
					l.change()
				}
				l.revision = a.revision
				events = append(events, l.seen(func(o *observation) {
					if o.pods.holders = l.held; l.see != nil {
						l.see(o)
					}
				}))
			case apply:
				err := error(nil)
				if l.fail != nil {
					err = l.fail(a.Step)
				}
				if l.steps = append(l.steps, a.String()); err == nil {
					err = l.node.do(a.Step)
				}
				events = append(events, applied{err})
			case enable:
				l.claims = append(l.claims, a.Claim)
				events = append(events, gateChanged{heldStatus(a.Claim, true)})
			case withdraw:
				l.refused++
				events = append(events, withdrawn{result: acknowledged})
			case record:
				events = append(events, recorded{})
			}
		}
		if at := l.r.deadline(); len(events) == 0 && !at.IsZero() && !at.After(end) {
			l.advance(at)
			events = append(events, timeout{})
		}
	}
	l.advance(end)
}

func stateUpdate(n nodestate.NodeState) source.Update {
	n.Status.SyncStatus = nodestate.Succeeded
	return source.Update{State: n}
}

// twoPFs has functions on both PFs.
func twoPFs() nodestate.Spec {
	spec := specOf(4, 0)
	other := specOf(4, 0).Interfaces[0]
	other.PCIAddress = pf1
	spec.Interfaces[0].VFGroups[0].MTU = 1500
	spec.Interfaces = append(spec.Interfaces, other)
	return spec
}

func newLife(t *testing.T, spec nodestate.Spec) *life {
	t.Helper()
	l := &life{script: newScript(t, Rules{Mode: Apply})}
	n := nodestate.NodeState{UID: "u", Generation: 1, Spec: spec}
	l.run(desiredReported{stateUpdate(n)}, time.Minute)
	return l
}

// A function differs again and again, as one that pods return with another MTU.
// Before, all pools of the node were withdrawn each time: 7 times in 25 s.
func TestDriftClosesOneFunction(t *testing.T) {
	l := newLife(t, twoPFs())
	l.phase(Serving, "")
	drifting := vfAddress(pf0, 1)
	l.claims, l.steps = nil, nil
	l.change = func() {
		if c := l.r.gate.claim.Closed; l.r.status.Phase == Serving && len(c) == 0 {
			_, v := l.node.find(drifting)
			v.MTU = 9000
		}
	}
	l.run(nodeChanged{}, 25*time.Second)
	for end := l.now.Add(25 * time.Second); l.now.Before(end); {
		l.run(nodeChanged{}, time.Second)
	}
	if l.refused != 0 {
		t.Errorf("all devices were withdrawn %d times", l.refused)
	}
	closings := 0
	for _, c := range l.claims {
		for address := range c.Closed {
			if closings++; address != drifting {
				t.Errorf("%s is closed, but only %s differs", address, drifting)
			}
		}
	}
	c := l.r.snapshot().Conditions
	if len(c) != 1 || c[0].Function != pf0 || c[0].Count != closings || c[0].Cause != "set the MTU of "+drifting+" to 1500" || closings < 3 || closings > 6 {
		t.Errorf("%d closings in 50 s: %+v", closings, c)
	}
	// Quiet again: it is repaired, offered, and forgotten.
	l.change = nil
	l.run(timeout{}, time.Hour)
	l.phase(Serving, "")
	if s := l.r.snapshot(); len(s.Closed) != 0 || len(s.Conditions) != 0 {
		t.Errorf("%+v", s)
	}
}

// The PF closes alone, whatever is wrong with it.
func TestOtherPFsStayOffered(t *testing.T) {
	closed := func(l *life) []string {
		var all []string
		for address := range l.r.snapshot().Closed {
			all = append(all, address)
		}
		slices.Sort(all)
		return all
	}
	t.Run("an invalid group", func(t *testing.T) {
		spec := twoPFs()
		spec.Interfaces[0].VFGroups[1].IsRDMA = true
		l := newLife(t, spec)
		l.phase(Failed, "isRdma")
		testkit.Diff(t, "closed", []string{pf0}, closed(l))
		if p, _ := l.node.find(pf1); p.NumVFs != 4 || l.refused != 0 {
			t.Errorf("the other PF has %d functions; %d withdrawals", p.NumVFs, l.refused)
		}
	})
	t.Run("a step that fails", func(t *testing.T) {
		l := newLife(t, twoPFs())
		_, v := l.node.find(vfAddress(pf0, 3))
		v.Driver = "iavf"
		_, w := l.node.find(vfAddress(pf1, 3))
		w.Driver = "iavf"
		l.fail = func(s plan.Step) error {
			if s.Function() == v.Address {
				return errors.New("EBUSY")
			}
			return nil
		}
		for range 5 {
			l.run(nodeChanged{}, 5*time.Second)
		}
		l.phase(Failed, "EBUSY")
		testkit.Diff(t, "closed", []string{v.Address}, closed(l))
		if w.Driver != "vfio-pci" || l.refused != 0 {
			t.Errorf("the other PF: %+v; %d withdrawals", w, l.refused)
		}
	})
	t.Run("a held function", func(t *testing.T) {
		l := newLife(t, twoPFs())
		l.held = []podresources.Holder{{Resource: "example.com/dpdk", ID: vfAddress(pf0, 3), Namespace: "ns", Pod: "p"}}
		_, v := l.node.find(vfAddress(pf0, 3))
		v.Driver = "iavf"
		_, w := l.node.find(vfAddress(pf0, 0))
		w.Driver = ""
		l.steps = nil
		for range 5 {
			l.run(nodeChanged{}, 5*time.Second)
		}
		l.phase(Blocked, "pod ns/p holds "+v.Address)
		testkit.Diff(t, "closed", []string{v.Address}, closed(l))
		if w.Driver != "iavf" || v.Driver != "iavf" || l.refused != 0 {
			t.Errorf("held %+v, repaired %+v; %d withdrawals", v, w, l.refused)
		}
		l.held = nil
		l.run(timeout{}, time.Minute)
		l.phase(Serving, "")
		testkit.Diff(t, "driver", "vfio-pci", v.Driver)
	})
	for name, c := range map[string]struct {
		see    func(*observation)
		closed string
	}{
		"a function that is not read": {func(o *observation) { o.unread = []inventory.Problem{unreadable(vfAddress(pf0, 1))} }, vfAddress(pf0, 1)},
		"a function that is missing": {func(o *observation) {
			o.unread, o.state.PFs[0].VFs = []inventory.Problem{unreadable(vfAddress(pf0, 1))}, o.state.PFs[0].VFs[:1]
		}, pf0},
		"a PF that is not read": {func(o *observation) {
			o.unread, o.state.PFs = []inventory.Problem{unreadable(pf0), unreadable(vfAddress(pf0, 1))}, o.state.PFs[1:]
		}, pf0},
		"static GUIDs that are not read": {func(o *observation) {
			o.guidsErr, o.state.PFs[0].Link = errors.New("input/output error"), plan.InfiniBand
		}, pf0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, twoPFs())
			l.see, l.steps = c.see, nil
			spec := twoPFs()
			spec.Interfaces[1].VFGroups[0].MTU = 1700
			l.run(desiredReported{stateUpdate(nodestate.NodeState{UID: "u", Generation: 2, Spec: spec})}, time.Minute)
			l.phase(Failed, "input/output error")
			testkit.Diff(t, "closed", []string{c.closed}, closed(l))
			if _, v := l.node.find(vfAddress(pf1, 0)); v.MTU != 1700 || l.refused != 0 {
				t.Errorf("the other PF: %+v; %d withdrawals", v, l.refused)
			}
			l.see = nil
			l.run(timeout{}, time.Minute)
			l.phase(Serving, "")
			testkit.Diff(t, "closed", []string(nil), closed(l))
			for _, step := range l.steps {
				if strings.Contains(step, pf0) {
					t.Errorf("%s was changed: %s", pf0, step)
				}
			}
		})
	}
	t.Run("a problem of the node", func(t *testing.T) {
		spec := twoPFs()
		spec.System.RDMAMode = nodestate.Exclusive
		l := newLife(t, twoPFs())
		l.node.state.RDMAMode = nodestate.Shared
		l.run(desiredReported{stateUpdate(nodestate.NodeState{UID: "u", Generation: 2, Spec: spec})}, time.Minute)
		l.phase(Failed, "RDMA")
		if l.refused != 1 || l.r.gate.position != gateClosed {
			t.Errorf("%d withdrawals", l.refused)
		}
	})
}

// Functions of a PF that the daemon could not configure are not its own: others
// created them, and a desired state without the PF leaves them.
func TestPFThatCannotBeReachedIsNotManaged(t *testing.T) {
	spec := specOf(2, 0)
	spec.Interfaces = append(spec.Interfaces, nodestate.Interface{PCIAddress: pf1, NumVFs: 9})
	l := &life{script: newScript(t, Rules{Mode: Apply})}
	testkit.Must(t, l.node.do(plan.SetNumVFs{PF: pf1, Number: 2}))
	l.run(desiredReported{stateUpdate(nodestate.NodeState{UID: "u", Generation: 1, Spec: spec})}, time.Minute)
	l.phase(Failed, "numVfs is 9")
	testkit.Diff(t, "managed", []string{pf0}, l.r.record.Managed)
	l.run(desiredReported{stateUpdate(nodestate.NodeState{UID: "u", Generation: 2, Spec: specOf(2, 0)})}, time.Minute)
	l.phase(Serving, "")
	if p, _ := l.node.find(pf1); p.NumVFs != 2 {
		t.Errorf("%s has %d functions, want the 2 that others created; steps: %q", pf1, p.NumVFs, l.steps)
	}
}

// A plugin without the extension gets the whole node, as before.
func TestPluginThatCannotCloseFunctions(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.serve()
	s.node.change(func(n *plan.State) { n.PFs[0].VFs[1].Driver = "iavf" })
	s.step(nodeChanged{})
	s.after(changeDelay, observe{})
	s.step(s.seen(nil))
	s.after(confirmDelay, observe{})
	s.step(s.seen(nil), enable{})
	refused := control.RenewerStatus{State: control.StateRefused, Code: codes.Unimplemented, Desired: &s.r.gate.claim, Reason: "cannot close"}
	s.step(gateChanged{refused}, withdraw{})
	s.step(withdrawn{result: acknowledged}, observe{})
	s.step(s.seen(nil), record{})
	s.step(recorded{}, apply{})
	for range len(s.r.steps) - 1 {
		s.step(applied{s.node.do(s.r.step)}, apply{})
	}
	s.step(applied{s.node.do(s.r.step)}, observe{})
	s.step(s.seen(nil), enable{}, record{})
	s.step(recorded{})
	s.phase(Serving, "")
	// The next time it is not asked.
	s.node.change(func(n *plan.State) { n.PFs[0].VFs[1].Driver = "iavf" })
	s.step(nodeChanged{})
	s.after(changeDelay, observe{})
	s.step(s.seen(nil))
	s.after(confirmDelay, observe{})
	s.step(s.seen(nil), withdraw{})

	// One that does not acknowledge has a timeout.
	s = newScript(t, Rules{Mode: Apply})
	s.serve()
	s.desired(2, specOf(3, 0), observe{})
	s.step(s.seen(nil), enable{})
	s.step(gateChanged{heldStatus(s.r.gate.claim, false)})
	s.after(10*time.Second, observe{})
	s.step(s.seen(nil), withdraw{})
}

// The plugin refuses a claim for an older generation of the node state that it
// serves, as after a restored backup: the devices are withdrawn first.
func TestOlderGeneration(t *testing.T) {
	for name, spec := range map[string]nodestate.Spec{"unchanged": specOf(2, 0), "cannot be reached": specOf(9, 0)} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Rules{Mode: Apply})
			s.serve()
			s.desired(3, specOf(2, 0), observe{})
			s.step(s.seen(nil), enable{}, record{})
			s.step(recorded{})
			s.desired(2, spec, observe{})
			s.step(s.seen(nil), withdraw{})
			s.step(withdrawn{result: acknowledged}, observe{})
			s.step(s.seen(nil), enable{}, record{})
		})
	}
}

// A refused claim leaves the devices of the one before offered: those of functions
// that are to be closed, too.
func TestRefusedClaimWithdraws(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.serve()
	before := s.r.gate.claim
	s.desired(2, specOf(9, 0), observe{})
	s.step(s.seen(nil), enable{}, record{})
	s.step(recorded{})
	refused := control.RenewerStatus{State: control.StateRefused, Code: codes.FailedPrecondition, Desired: &s.r.gate.claim, Held: &before, Reason: "another config_hash"}
	s.step(gateChanged{refused}, withdraw{})
	s.step(withdrawn{result: acknowledged}, observe{})
	s.step(s.seen(nil)) // not claimed again at once
	s.now = s.now.Add(pollDelay)
	s.step(timeout{}, observe{})
	s.step(s.seen(nil), enable{})
	if c := s.r.gate.claim; c.Closed[pf0] == "" {
		t.Errorf("claimed %+v, want %s closed", c, pf0)
	}
}
