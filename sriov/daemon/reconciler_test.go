package daemon

import (
	"errors"
	"fmt"
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

type script struct {
	*testing.T
	r        *reconciler
	now      time.Time
	node     *node
	last     []action
	revision int
}

func newScript(t *testing.T, r Rules) *script {
	r.Spread = func(d time.Duration) time.Duration { return d }
	s := &script{T: t, now: time.Unix(1e9, 0), node: newNode()}
	s.r = newReconciler(r, Record{}, s.now)
	return s
}

func (s *script) step(e event, want ...action) {
	s.Helper()
	s.last = s.r.handle(s.now, e)
	var got, wanted []string
	for _, a := range s.last {
		got = append(got, fmt.Sprintf("%T", a))
		if o, is := a.(observe); is {
			s.revision = o.revision
		}
	}
	for _, w := range want {
		wanted = append(wanted, fmt.Sprintf("%T", w))
	}
	if strings.Join(got, " ") != strings.Join(wanted, " ") {
		s.Fatalf("after %T %+v: %v, want %v; %+v", e, e, s.last, wanted, s.r.snapshot())
	}
}

func (s *script) phase(p Phase, says string) {
	s.Helper()
	if v := s.r.snapshot(); v.Phase != p || !strings.Contains(v.Reason, says) {
		s.Fatalf("%s (%s), want %s (... %s ...)", v.Phase, v.Reason, p, says)
	}
}

func (s *script) seen(change func(*observation)) observed {
	o := observation{state: s.node.copy(), hash: "h"}
	if change != nil {
		change(&o)
	}
	return observed{o, s.revision}
}

func (s *script) advance(until time.Time) {
	if s.now.Before(until) {
		s.now = until
	}
}

// after advances to the next deadline, within limit.
func (s *script) after(limit time.Duration, want ...action) {
	s.Helper()
	at := s.r.deadline()
	if at.IsZero() || at.Sub(s.now) > limit {
		s.Fatalf("the next deadline is at %v, it is %v: want it within %s", at, s.now, limit)
	}
	s.advance(at)
	s.step(timeout{}, want...)
}

func (s *script) desired(generation int64, spec nodestate.Spec, want ...action) {
	s.Helper()
	n := nodestate.NodeState{UID: "u", Generation: generation, Spec: spec}
	n.Status.SyncStatus = nodestate.Succeeded
	s.step(desiredReported{source.Update{State: n}}, want...)
}

func (s *script) serve() {
	s.Helper()
	for n := 0; n < 3; n++ {
		for _, step := range plan.Compute(specOf(2, 0), s.node.copy(), plan.Options{}).Steps {
			testkit.Must(s, s.node.do(step))
		}
	}
	s.desired(1, specOf(2, 0), observe{})
	if s.r.rules.Mode == Apply {
		s.step(s.seen(nil), enable{}, record{})
		s.step(recorded{})
	} else {
		s.step(s.seen(nil), enable{})
	}
	s.phase(Serving, "")
}

var acknowledged = gate.Withdrawal{Acknowledged: true}

func offers(id string) func(*observation) {
	return func(l *observation) { l.pods.offered = map[string][]string{"example.com/net": {id}} }
}

func (s *script) toChange(w gate.Withdrawal) {
	s.Helper()
	s.serve()
	s.desired(2, specOf(3, 0), observe{})
	s.step(s.seen(nil), enable{})
	s.phase(Withdrawing, "")
	if w.Acknowledged {
		s.closes()
		return
	}
	s.step(gateChanged{control.RenewerStatus{State: control.StateRefused, Code: codes.Unimplemented, Desired: &s.r.gate.claim}}, withdraw{})
	s.step(withdrawn{result: w}, observe{})
}

// closes acknowledges the closed functions of the claim.
func (s *script) closes() {
	s.Helper()
	if len(s.r.gate.claim.Closed) == 0 {
		s.Fatalf("the claim %+v closes no function", s.r.gate.claim)
	}
	s.step(gateChanged{heldStatus(s.r.gate.claim, true)}, observe{})
}

func heldStatus(c gate.Claim, withdrawn bool) control.RenewerStatus {
	return control.RenewerStatus{State: control.StateHeld, Desired: &c, Held: &c, Plugin: gate.Status{Closed: c.Closed, Withdrawn: withdrawn}}
}

func TestUnchangedSpecTakesTheGateOver(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply, Node: "n1", Lease: time.Minute})
	s.serve()
	spec := specOf(2, 0)
	spec.Interfaces[0].VFGroups[0].ResourceName = "another"
	s.desired(2, spec, observe{})
	s.step(s.seen(nil), enable{}, record{})
	want := gate.Claim{UID: "u", Generation: 2, Hash: "h", Node: "n1", Lease: time.Minute}
	if c := s.last[0].(enable).Claim; !c.Equal(want) {
		t.Errorf("%+v, want %+v", c, want)
	}
	s.step(recorded{})
	s.step(nodeChanged{})
	s.after(time.Second, observe{})
	s.step(s.seen(func(l *observation) { l.hash = "i" }), enable{})
	s.after(5*time.Minute, observe{})
	s.step(s.seen(func(l *observation) { l.hash = "i" }))
}

// drive answers actions until the gate opens.
func (s *script) drive(e event, see func() observed, each func(plan.Step)) {
	s.Helper()
	for range 50 {
		s.last = s.r.handle(s.now, e)
		e = nil
		for _, a := range s.last {
			switch a := a.(type) {
			case apply:
				each(a.Step)
				e = applied{s.node.do(a.Step)}
			case observe:
				s.revision = a.revision
				e = see()
			case withdraw:
				e = withdrawn{result: acknowledged}
			case record:
				e = recorded{}
			case enable:
				if len(a.Claim.Closed) == 0 {
					return
				}
				e = gateChanged{heldStatus(a.Claim, true)}
			}
		}
		if e == nil {
			s.advance(s.r.deadline())
			e = timeout{}
		}
	}
	s.Fatalf("the gate does not open: %+v", s.r.snapshot())
}

func TestAddressesOfNewFunctions(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.node.showsRandom = true
	s.toChange(acknowledged)
	s.step(s.seen(nil), record{})
	set := map[string]int{}
	s.drive(recorded{}, func() observed { return s.seen(nil) }, func(step plan.Step) {
		if mac, is := step.(plan.SetMAC); is {
			set[mac.Address]++
		}
	})
	if len(set) != 3 {
		t.Errorf("the gate opens when the addresses of %v were set, want those of 3 functions", set)
	}
	for address, n := range set {
		if n != 1 {
			t.Errorf("the address of %s was set %d times", address, n)
		}
	}
}

// PodResources still reports a pod as the holder.
func TestForceConfiguresRecreatedFunctions(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply, Force: true})
	s.serve()
	spec := specOf(3, 0)
	spec.Interfaces[0].VFGroups[0].MTU = 1700
	s.desired(2, spec, observe{})
	taken := podresources.Holder{Resource: "example.com/net", ID: vfAddress(pf0, 0), Namespace: "a", Pod: "b"}
	held := func() observed {
		return s.seen(func(l *observation) { l.pods.holders = []podresources.Holder{taken} })
	}
	s.drive(held(), held, func(plan.Step) {})
	if _, v := s.node.find(taken.ID); v.MTU != 1700 || v.AdminMAC == "" {
		t.Errorf("the gate opens for %+v, want the MTU 1700 and an administrative address", *v)
	}
}

func TestAnotherStateWhileFunctionsAreCreated(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.toChange(acknowledged)
	s.step(s.seen(nil), record{})
	s.step(recorded{}, apply{})
	s.step(applied{s.node.do(s.last[0].(apply).Step)}, apply{})
	making := s.last[0].(apply).Step
	if n, is := making.(plan.SetNumVFs); !is || n.Number != 3 {
		t.Fatalf("%s, want 3 functions made", making)
	}
	spec := specOf(3, 0)
	spec.Interfaces[0].VFGroups[0].MTU = 1700
	s.desired(3, spec)
	err := s.node.do(making)
	s.node.change(func(now *plan.State) { // as igb reports it
		for i := range now.PFs[0].VFs {
			now.PFs[0].VFs[i].AdminMAC = fmt.Sprintf("02:bb:00:00:00:%02x", i)
		}
	})
	s.step(applied{err}, observe{})
	s.step(s.seen(nil), enable{}) // the new functions alone
	s.closes()
	s.step(s.seen(nil), record{})
	s.step(recorded{}, apply{})
	if _, is := s.last[0].(apply).Step.(plan.SetMAC); !is {
		t.Errorf("%s, want the address of a function set", s.last[0].(apply).Step)
	}
}

func TestPodsBlockSteps(t *testing.T) {
	holds := func(l *observation) {
		l.pods.holders = []podresources.Holder{{Resource: "example.com/net", ID: vfAddress(pf0, 0), Namespace: "ns", Pod: "p"}}
	}
	s := newScript(t, Rules{Mode: Apply})
	s.toChange(acknowledged)
	s.step(s.seen(holds), record{})
	s.phase(Blocked, "pod ns/p holds "+vfAddress(pf0, 0))
	s.step(recorded{})
	s.after(pollDelay, observe{})
	s.step(s.seen(func(l *observation) { l.pods.err = podresources.ErrNotServed }))
	s.phase(Blocked, "pods that hold functions are unknown")
	s.after(6*pollDelay, observe{})
	s.step(s.seen(nil), record{})
	s.phase(Applying, "")
	s.step(recorded{}, apply{})

	s = newScript(t, Rules{Mode: Apply, Force: true})
	s.toChange(acknowledged)
	s.step(s.seen(holds), record{})
	s = newScript(t, Rules{Mode: Apply, Force: true})
	s.toChange(acknowledged)
	s.step(s.seen(func(l *observation) { l.pods.err = podresources.ErrNotServed }), record{})
}

func TestPluginWithoutAcknowledgement(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.toChange(gate.Withdrawal{Reason: "no process serves"})
	for range 40 {
		s.step(s.seen(offers(vfAddress(pf0, 0))))
		s.phase(Withdrawing, "still offers")
		s.after(withdrawalPollDelay, observe{})
		if s.now.Sub(s.r.gate.closedAt) >= 10*time.Second {
			break
		}
	}
	s.step(s.seen(offers(vfAddress(pf0, 0))), record{})
	if v := s.r.snapshot(); v.Unacknowledged != "no process serves" {
		t.Errorf("%+v", v)
	}

	// Other devices do not count, and devices that are not offered need no wait.
	s = newScript(t, Rules{Mode: Apply})
	s.toChange(gate.Withdrawal{Reason: "no extensions"})
	s.step(s.seen(offers("gpu0")), record{})

	// Without a kubelet, and with an old one.
	offersUnknown := func(l *observation) { l.pods = pods{offersUnknown: true} }
	s = newScript(t, Rules{Mode: Apply, Unacknowledged: 7 * time.Second})
	s.toChange(gate.Withdrawal{Reason: "no extensions"})
	s.step(s.seen(offersUnknown))
	s.phase(Withdrawing, "no extensions")
	s.after(7*time.Second, observe{})
	s.step(s.seen(offersUnknown), record{})
	s = newScript(t, Rules{Mode: Apply})
	s.toChange(acknowledged)
	s.step(s.seen(offersUnknown), record{})
}

func TestTwoPluginsOfferTheSame(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.toChange(acknowledged)
	s.step(s.seen(offers(vfAddress(pf0, 0))))
	s.phase(Withdrawing, "still offers")
	s.now = s.now.Add(10 * time.Second)
	s.step(timeout{}, observe{})
	s.step(s.seen(offers(vfAddress(pf0, 0))))
	s.phase(Failed, "another plugin")
}

func TestSchedulerDelay(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply, Settle: 12 * time.Second})
	s.toChange(acknowledged)
	s.step(s.seen(nil))
	s.phase(Withdrawing, "scheduler")
	s.after(12*time.Second, observe{})
	if waited := s.now.Sub(s.r.gate.closedAt); waited != 12*time.Second {
		t.Errorf("waited %s", waited)
	}
	s.step(s.seen(nil), record{})
}

// Two observations must agree: a function just released by a pod differs for a
// moment.
func TestDrift(t *testing.T) {
	unbind := func(index int) func(*observation) {
		return func(l *observation) { l.state.PFs[0].VFs[index].Driver = "" }
	}
	for _, mode := range []Mode{Apply, Follow} {
		s := newScript(t, Rules{Mode: mode})
		s.serve()
		s.step(nodeChanged{})
		s.after(changeDelay, observe{})
		s.step(s.seen(unbind(0)))
		s.phase(Serving, "might have changed")
		s.after(confirmDelay, observe{})
		s.step(s.seen(unbind(1)))
		s.after(confirmDelay, observe{})
		s.step(s.seen(nil))
		s.phase(Serving, "")
		s.after(5*time.Minute, observe{})
		s.step(s.seen(unbind(0)))
		s.step(nodeChanged{}) // not sooner
		if left := s.r.deadline().Sub(s.now); left != confirmDelay {
			t.Errorf("observed at again after %s", left)
		}
		s.after(confirmDelay, observe{})
		if mode == Follow {
			s.step(s.seen(unbind(0)), withdraw{})
			continue
		}
		s.step(s.seen(unbind(0)), enable{})
		if c := s.last[0].(enable).Claim.Closed; len(c) != 1 || c[vfAddress(pf0, 0)] == "" {
			t.Errorf("closed is %v, want only %s", c, vfAddress(pf0, 0))
		}
	}
}

func TestNodeThatCannotBeRead(t *testing.T) {
	unreadable := func(l *observation) { l.err = errors.New("netlink: no memory") }
	s := newScript(t, Rules{Mode: Apply})
	s.serve()
	s.after(5*time.Minute, observe{})
	s.step(s.seen(unreadable)) // still offered
	s.phase(Serving, "no memory")
	s.after(time.Second, observe{})
	s.step(s.seen(nil))
	s.phase(Serving, "")
	s.desired(2, specOf(2, 9000), observe{})
	s.step(s.seen(unreadable), withdraw{}) // for another desired state
	s.phase(Failed, "no memory")
}

// unreadable is a problem of a device, or of a path on the machine.
func unreadable(what string) inventory.Problem {
	p := inventory.Problem{What: what, Device: what, Err: errors.New("input/output error")}
	if strings.HasPrefix(what, "/") {
		p.Device = ""
	}
	return p
}

func TestUnreadParts(t *testing.T) {
	part := func(what string, change func(*plan.State)) func(*observation) {
		return func(l *observation) {
			l.unread = []inventory.Problem{unreadable(what)}
			if change != nil {
				change(&l.state)
			}
		}
	}
	for name, c := range map[string]struct {
		change    func(*observation)
		isServing bool
	}{
		"another PF":          {part(pf1, nil), true},
		"another PF, gone":    {part(pf1, func(s *plan.State) { s.PFs = s.PFs[:1] }), true},
		"the PF":              {part(pf0, nil), false},
		"a function of it":    {part(vfAddress(pf0, 1), nil), false},
		"a function gone":     {part(vfAddress(pf0, 1), func(s *plan.State) { s.PFs[0].VFs = s.PFs[0].VFs[:1] }), false},
		"a path":              {part("/sys/bus/pci", nil), false},
		"the PF, left out":    {part(pf0, func(s *plan.State) { s.PFs = s.PFs[1:] }), false},
		"a function of no PF": {part("0000:00:1f.6", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Rules{Mode: Follow})
			s.serve()
			s.desired(2, specOf(2, 1500), withdraw{})
			s.step(withdrawn{result: acknowledged}, observe{})
			if c.isServing {
				s.step(s.seen(c.change), enable{})
			} else {
				s.step(s.seen(c.change))
				s.phase(Failed, "input/output error")
			}
		})
	}
}

// Others can resolve a problem, so node changes shorten the backoff; but a
// failed step causes changes itself.
func TestBackoff(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	external := specOf(2, 0)
	external.Interfaces[0].ExternallyManaged = true
	s.desired(1, external, observe{})
	s.step(s.seen(nil), enable{}, record{})
	s.step(recorded{})
	s.phase(Failed, "desired state cannot be reached")
	for range 12 {
		s.after(30*time.Second, observe{})
		s.step(s.seen(nil))
	}
	s.step(nodeChanged{})
	s.after(changeDelay, observe{})
	s.step(s.seen(nil))

	s.desired(2, specOf(2, 0), observe{})
	s.step(s.seen(nil), enable{})
	s.closes()
	var last time.Duration
	for n := range 12 {
		s.step(s.seen(nil), record{})
		s.step(recorded{}, apply{})
		s.step(applied{errors.New("EBUSY")}, observe{})
		s.step(s.seen(nil), record{})
		s.step(recorded{})
		s.phase(Failed, "create 2 virtual functions on "+pf0+": EBUSY")
		c := s.r.snapshot().Conditions
		if len(c) != 1 || c[0].Function != pf0 || c[0].Count != n+1 || !strings.Contains(c[0].Cause, "EBUSY") {
			t.Fatalf("conditions %+v", c)
		}
		pause := c[0].Until.Sub(s.now)
		if pause <= last && pause != maxBackoff || pause > maxBackoff {
			t.Errorf("a pause of %s after %s", pause, last)
		}
		last = pause
		s.after(maxBackoff, observe{})
	}
	if last != maxBackoff {
		t.Errorf("the last pause is %s", last)
	}
}

func TestStepsThatChangeNothing(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.desired(1, specOf(2, 0), observe{})
	s.step(s.seen(nil), enable{})
	s.closes()
	for n := range maxRounds {
		if n == 0 {
			s.step(s.seen(nil), record{})
			s.step(recorded{}, apply{})
		} else {
			s.step(s.seen(nil), apply{})
		}
		for range len(s.r.status.Steps) - 1 {
			s.step(applied{}, apply{})
		}
		s.step(applied{}, observe{})
	}
	s.step(s.seen(nil), observe{})
	s.step(s.seen(nil), record{})
	s.phase(Failed, "after 6 rounds")
}

func TestSuperseded(t *testing.T) {
	for _, state := range []control.RenewerState{control.StateSuperseded, control.StateDisabled} {
		s := newScript(t, Rules{Mode: Apply})
		s.serve()
		s.step(gateChanged{control.RenewerStatus{State: state, Since: s.now.Add(-time.Second)}})
		s.phase(Serving, "")
		s.step(gateChanged{control.RenewerStatus{State: state, Since: s.now, Reason: "taken over"}})
		s.phase(Superseded, "taken over")
		s.step(nodeChanged{})
		s.step(timeout{})
		if at := s.r.deadline(); !at.IsZero() {
			t.Errorf("a deadline at %v", at)
		}
		s.desired(1, specOf(2, 0))
		s.desired(2, specOf(2, 0), observe{})
		s.step(s.seen(nil), enable{}, record{})
	}
	s := newScript(t, Rules{Mode: Apply})
	s.serve()
	s.step(gateChanged{control.RenewerStatus{State: control.StateStale, Since: s.now}}, observe{})
	s.step(s.seen(nil), enable{})
}

func TestFollow(t *testing.T) {
	s := newScript(t, Rules{Mode: Follow})
	s.serve()
	state := s.r.desired.state
	state.Status.SyncStatus, state.Status.LastSyncError = nodestate.InProgress, "busy"
	s.step(desiredReported{source.Update{State: state}}, withdraw{}) // same generation
	s.phase(Pending, `"InProgress": busy`)
	s.step(withdrawn{result: acknowledged})
	state.Status.SyncStatus = nodestate.Succeeded
	s.step(desiredReported{source.Update{State: state}}, observe{})
	s.step(desiredReported{source.Update{State: state}}) // that might have started too early
	s.step(s.seen(nil), observe{})
	s.step(nodeChanged{})
	s.step(s.seen(nil))
	s.phase(Pending, "the node is changing")
	s.after(changeDelay, observe{})
	s.step(s.seen(nil), enable{})

	// Of another generation.
	s.desired(2, specOf(3, 0), withdraw{})
	s.step(withdrawn{result: acknowledged}, observe{})
	s.step(s.seen(nil))
	s.phase(Pending, "but the node differs: ")
	s.after(pollDelay, observe{})
	s.step(s.seen(nil))

	// An unreadable generation closes the gate.
	s = newScript(t, Rules{Mode: Follow})
	s.serve()
	s.step(desiredReported{source.Update{Err: errors.New("connection refused")}})
	s.phase(Serving, "")
	s.step(desiredReported{source.Update{Err: errors.New("no sense"), State: nodestate.NodeState{UID: "u", Generation: 1}}})
	s.phase(Serving, "")
	s.step(desiredReported{source.Update{Err: errors.New("no sense"), State: nodestate.NodeState{UID: "u", Generation: 2}}}, withdraw{})
	s.phase(Pending, "no sense")
	s.step(withdrawn{result: acknowledged})
	s.desired(3, specOf(2, 0), observe{})
	s.step(s.seen(nil), enable{})

	s = newScript(t, Rules{Mode: Follow})
	s.desired(1, specOf(2, 0), observe{})
	s.desired(2, specOf(3, 0), withdraw{})
	s.step(s.seen(nil))
	s.step(withdrawn{result: acknowledged}, observe{})
}

func TestFollowProblems(t *testing.T) {
	s := newScript(t, Rules{Mode: Follow})
	s.serve()
	spec := specOf(2, 0)
	spec.Interfaces = append(spec.Interfaces, nodestate.Interface{PCIAddress: "0000:af:00.0", NumVFs: 2})
	s.desired(2, spec, withdraw{})
	s.step(withdrawn{result: acknowledged}, observe{})
	s.step(s.seen(nil), enable{})
	spec.Interfaces[1] = nodestate.Interface{PCIAddress: pf1, NumVFs: 2, ExternallyManaged: true}
	s.desired(3, spec, withdraw{})
	s.step(withdrawn{result: acknowledged}, observe{})
	s.step(s.seen(nil))
	s.phase(Pending, pf1)
}

func TestInvalidState(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.serve()
	s.step(desiredReported{source.Update{Err: errors.New("no sense"), State: nodestate.NodeState{UID: "u", Generation: 2}}})
	bad := specOf(2, 0)
	bad.Interfaces[0].VFGroups[0].VFRange = "7"
	bad.System.RDMAMode = "both"
	s.desired(3, bad)
	if v := s.r.snapshot(); v.Phase != Serving || !strings.Contains(v.Source, "rdmaMode") {
		t.Errorf("%+v", v)
	}
	s.desired(1, specOf(2, 0))
	if v := s.r.snapshot(); v.Source != "" {
		t.Errorf("%+v", v)
	}
}

func TestWithdrawalAfterOneThatFailed(t *testing.T) {
	s := newScript(t, Rules{Mode: Follow})
	s.serve()
	s.desired(2, specOf(2, 1500), withdraw{})
	s.step(withdrawn{err: errors.New("no answer")})
	s.phase(Failed, "no answer")
	s.desired(2, specOf(2, 1500)) // devices might still be offered for generation 1
	s.after(2*time.Second, withdraw{})
	s.step(withdrawn{result: acknowledged}, observe{})
	s.step(s.seen(nil), enable{})
	s.step(desiredReported{source.Update{Gone: true}}, withdraw{})
	s.step(withdrawn{err: errors.New("no answer")})
	if v := s.r.snapshot(); v.Withdrawal != "no answer" {
		t.Errorf("%+v", v)
	}
	s.after(2*time.Second, withdraw{})
	s.step(withdrawn{result: acknowledged})
	s.phase(Waiting, "")
	if v := s.r.snapshot(); v.Withdrawal != "" || !s.r.deadline().IsZero() {
		t.Errorf("%+v", v)
	}
}

func TestInterruptedApply(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.serve()
	s.r = newReconciler(s.r.rules, Record{Applying: true, Managed: []string{pf0}, UID: "u", Generation: 1}, s.now)
	s.desired(1, specOf(2, 0), withdraw{})
	s.step(withdrawn{err: errors.New("no answer")})
	s.after(time.Second, withdraw{})
	s.step(withdrawn{result: acknowledged}, observe{})
	s.step(s.seen(nil), enable{}, record{})
}

// Externally managed PFs keep their functions.
func TestManaged(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	s.serve()
	if got := fmt.Sprint(s.r.record.Managed); got != "["+pf0+"]" {
		t.Errorf("%s", got)
	}
	s.desired(2, nodestate.Spec{}, observe{})
	s.step(s.seen(nil), enable{})
	s.closes()
	s.step(s.seen(nil), record{})
	if r := s.last[0].(record).Record; fmt.Sprint(r.Managed) != "["+pf0+"]" || !r.Applying {
		t.Errorf("%+v", r)
	}
	s.step(recorded{}, apply{})
	if step := s.last[0].(apply).Step; step != (plan.SetNumVFs{PF: pf0}) {
		t.Errorf("%v", step)
	}
	testkit.Must(t, s.node.do(plan.SetNumVFs{PF: pf0}))
	s.step(applied{}, observe{})
	s.step(s.seen(nil), enable{}, record{})
	if r := s.last[1].(record).Record; len(r.Managed) != 0 || r.Applying {
		t.Errorf("%+v", r)
	}
	external := specOf(2, 0)
	external.Interfaces[0].ExternallyManaged = true
	s.r = newReconciler(s.r.rules, Record{Managed: []string{pf0}}, s.now)
	testkit.Must(t, s.node.do(plan.SetNumVFs{PF: pf0, Number: 2}))
	s.desired(3, external, observe{})
	s.step(s.seen(nil), enable{})
	s.closes()
	s.step(s.seen(nil), record{})
	if r := s.last[0].(record).Record; len(r.Managed) != 0 {
		t.Errorf("functions that others create are managed: %+v", r)
	}
}

func TestAbsentPF(t *testing.T) {
	for _, mode := range []Mode{Apply, Follow} {
		made := newScript(t, Rules{Mode: mode})
		made.serve()
		s := newScript(t, Rules{Mode: mode})
		s.node = made.node
		spec := specOf(2, 0)
		spec.Interfaces = append(spec.Interfaces, nodestate.Interface{PCIAddress: "0000:99:00.0", NumVFs: 4})
		s.desired(1, spec, observe{})
		if mode == Apply {
			s.step(s.seen(nil), enable{}, record{})
		} else {
			s.step(s.seen(nil), enable{})
		}
		s.phase(Serving, "")
		if notes := s.r.snapshot().Notes; len(notes) != 1 || !strings.Contains(notes[0], "0000:99:00.0") {
			t.Errorf("%s: notes %q, want one about 0000:99:00.0", mode, notes)
		}
	}
}

func TestNotDone(t *testing.T) {
	s := newScript(t, Rules{Mode: Apply})
	spec := specOf(2, 0)
	spec.Bridges.OVS = []nodestate.Bridge{{Name: "br0"}}
	s.desired(1, spec, observe{})
	if got := strings.Join(s.r.snapshot().NotDone, "\n"); !strings.Contains(got, "br0") {
		t.Errorf("not done: %q, want the bridge", got)
	}
	s = newScript(t, Rules{Mode: Follow})
	s.desired(1, spec, observe{})
	if got := s.r.snapshot().NotDone; len(got) != 0 {
		t.Errorf("the operator's: %q, want none", got)
	}
}
