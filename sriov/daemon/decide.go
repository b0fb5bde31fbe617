package daemon

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/plan"
)

// decide plans for an observation and starts the next action.
func (r *reconciler) decide(o observation) {
	p, err := r.plan(o)
	if err != nil {
		r.observationFailed(err)
		return
	}
	r.status.Steps, r.status.Problems, r.status.Notes = texts(p.Steps), texts(p.Problems), texts(p.Notes)
	left := summarize(p)
	switch {
	case !r.confirmed(p):
		r.wait(Serving, "the node might have changed: "+left, confirmDelay)
		r.ignoreChanges = true
	case p.Done() && r.rules.Mode == Follow && r.gate.position != gateOpen && r.changes != r.changesSeen:
		r.wait(Pending, "the node is changing", changeDelay)
	case p.Done():
		r.enable(o.hash)
	case r.rules.Mode == Follow:
		r.withdraw()
		r.wait(Pending, "the operator's sync status is Succeeded, but the node differs: "+left, pollDelay)
	case r.gate.position != gateClosed:
		r.due = r.gate.notBefore
		r.withdraw()
		if r.gate.position == gateWithdrawing {
			r.setPhase(Withdrawing, "")
		}
	case len(p.Steps) == 0:
		// The owner of externally managed functions might resolve it.
		r.wait(Failed, "the desired state cannot be reached: "+left, min(r.nextBackoff(), r.rules.Spread(30*time.Second)))
	case r.rounds >= maxRounds:
		r.fail(fmt.Errorf("the node does not reach the desired state: after %d rounds these steps are left: %s", r.rounds, left))
	case r.now.Sub(r.gate.closedAt) < r.rules.Settle:
		r.wait(Withdrawing, "waiting for the scheduler to see that no devices are offered", r.gate.closedAt.Add(r.rules.Settle).Sub(r.now))
	case r.canChange(o.pods, p.Touches):
		r.rounds++
		r.steps, r.created.thisPlan = p.Steps, nil
		r.due = time.Time{}
		r.setPhase(Applying, "")
		r.save(true)
	}
}

func (r *reconciler) plan(o observation) (plan.Plan, error) {
	var managed []string // functions that the desired state does not name are removed
	compute := plan.Follow
	if r.rules.Mode == Apply {
		managed, compute = r.record.Managed, plan.Compute
	}
	spec := r.desired.state.Spec
	if err := o.check(spec, managed); err != nil {
		return plan.Plan{}, fmt.Errorf("read the node: %w", err)
	}
	return compute(spec, o.state, plan.Options{Managed: managed, Held: r.held(o.state), Fresh: r.created.fresh, GUIDs: o.guids,
		Baselines: o.baselines, KeepResidue: r.rules.KeepResidue, Accept: r.rules.Accept, Accepted: o.accepted}), nil
}

// observationFailed keeps offered devices offered: a read failure is not a
// change.
func (r *reconciler) observationFailed(err error) {
	if r.isServing() {
		r.wait(Serving, err.Error(), r.nextBackoff())
		return
	}
	r.fail(err)
	r.withdraw()
}

// confirmed reports whether a plan can be acted on. While devices are offered,
// two observations in a row must differ: a function that a pod just released
// differs for a moment.
func (r *reconciler) confirmed(p plan.Plan) bool {
	before := r.differences
	r.differences = append(all(p.Steps), all(p.Problems)...)
	return !r.isServing() || p.Done() || slices.ContainsFunc(r.differences, func(d string) bool { return slices.Contains(before, d) })
}

func summarize(p plan.Plan) string {
	left := all(p.Steps)
	if len(left) == 0 {
		left = all(p.Problems)
	}
	if len(left) == 0 {
		return ""
	}
	return left[0] + andMore(len(left)-1)
}

func andMore(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

// canChange sets the phase and its reason if functions cannot be changed now.
func (r *reconciler) canChange(p pods, touches []string) bool {
	r.status.Held, r.status.Unacknowledged = nil, ""
	if len(touches) == 0 {
		return true
	}
	withdrawal, left := r.gate.result, r.gate.closedAt.Add(r.rules.Unacknowledged).Sub(r.now)
	if !withdrawal.Acknowledged {
		r.status.Unacknowledged = withdrawal.Reason
	}
	resource, id := firstOffered(p.offered, touches)
	for _, h := range p.holders {
		if slices.Contains(touches, h.ID) {
			r.status.Held = append(r.status.Held, h)
		}
	}
	switch held := r.status.Held; {
	case p.err != nil:
		if !r.rules.Force {
			r.wait(Blocked, fmt.Sprintf("pods that hold functions are unknown: %v", p.err), min(r.nextBackoff(), 6*pollDelay))
		}
		return r.rules.Force
	case p.offersUnknown && !withdrawal.Acknowledged && left > 0:
		r.wait(Withdrawing, "neither the plugin nor the kubelet reports whether devices are offered: "+withdrawal.Reason, left)
		return false
	case id != "" && left > 0:
		r.wait(Withdrawing, fmt.Sprintf("the kubelet still offers %s of %s", id, resource), withdrawalPollDelay)
		return false
	case id != "" && withdrawal.Acknowledged && !r.rules.Force:
		r.fail(fmt.Errorf("the kubelet offers %s of %s, which the plugin reports as withdrawn: another plugin might offer it too", id, resource))
		return false
	case len(held) > 0 && !r.rules.Force:
		h := held[0]
		r.wait(Blocked, fmt.Sprintf("pod %s/%s holds %s, which must be changed%s; drain the node, or use --force", h.Namespace, h.Pod, h.ID, andMore(len(held)-1)), pollDelay)
		return false
	}
	return true
}

func firstOffered(offered map[string][]string, touches []string) (resource, id string) {
	for resource, ids := range offered {
		for _, id := range ids {
			if slices.Contains(touches, id) {
				return resource, id
			}
		}
	}
	return "", ""
}

func (r *reconciler) enable(hash string) {
	claim := gate.Claim{UID: r.desired.state.UID, Generation: r.desired.state.Generation, Hash: hash,
		Node: r.rules.Node, Lease: r.rules.Lease, Hold: r.rules.Hold}
	g := &r.gate
	if g.position != gateOpen || !claim.Equal(g.claim) {
		g.position, g.openedAt, g.notBefore = gateOpen, r.now, time.Time{}
		r.do(enable{claim})
	}
	g.claim, g.spec = claim, r.desired.hash
	r.wait(Serving, "", r.rules.Resync)
	r.failures, r.status.Held, r.created = 0, nil, createdFunctions{}
	if r.rules.Mode == Apply {
		r.save(false)
	}
}

func (r *reconciler) save(applying bool) {
	next := Record{Managed: r.managed(applying), Applying: applying, UID: r.desired.state.UID, Generation: r.desired.state.Generation,
		Spec: r.desired.hash, Since: r.record.Since}
	if reflect.DeepEqual(next, r.record) {
		return
	}
	next.Since = r.now
	r.record, r.effect = next, recording
	r.do(record{next})
}

// managed includes PFs of an earlier desired state until their functions are
// removed.
func (r *reconciler) managed(applying bool) []string {
	var pfs []string
	external := map[string]bool{}
	for _, i := range r.desired.state.Spec.Interfaces {
		external[i.PCIAddress] = i.ExternallyManaged
		if !i.ExternallyManaged && i.NumVFs > 0 {
			pfs = append(pfs, i.PCIAddress)
		}
	}
	for _, pf := range r.record.Managed {
		if applying && !external[pf] {
			pfs = append(pfs, pf)
		}
	}
	slices.Sort(pfs)
	return slices.Compact(pfs)
}

// With Force, a function recreated while held is the pod's by address only, and
// is planned like any other.
func (r *reconciler) held(s plan.State) []string {
	recreated := map[string]bool{}
	for _, pf := range s.PFs {
		for _, v := range pf.VFs {
			recreated[v.Address] = r.rules.Force && slices.Contains(r.created.pfs, pf.Address)
		}
	}
	var ids []string
	for _, h := range r.holders {
		if !recreated[h.ID] {
			ids = append(ids, h.ID)
		}
	}
	return ids
}

// createdFunctions are PFs whose functions were created since the desired state
// was last reached.
type createdFunctions struct {
	pfs      []string
	fresh    []string // since the last completed plan
	thisPlan []string // by the running plan
}

func (m *createdFunctions) add(s plan.Step) {
	if n, ok := s.(plan.SetNumVFs); ok && n.Number > 0 {
		for _, list := range []*[]string{&m.pfs, &m.fresh, &m.thisPlan} {
			if !slices.Contains(*list, n.PF) {
				*list = append(*list, n.PF)
			}
		}
	}
}
