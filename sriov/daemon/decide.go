package daemon

import (
	"cmp"
	"fmt"
	"maps"
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
	if r.rules.Mode == Follow {
		r.decideFollow(o, p)
		return
	}
	r.decideApply(o, p, r.review(p, o))
}

func (r *reconciler) decideFollow(o observation, p plan.Plan) {
	switch left := summarize(p); {
	case !r.confirmed(p):
		r.wait(Serving, "the node might have changed: "+left, confirmDelay)
		r.ignoreChanges = true
	case p.Done() && r.gate.position != gateOpen && r.changes != r.changesSeen:
		r.wait(Pending, "the node is changing", changeDelay)
	case p.Done():
		r.enable(r.claim(o.hash, nil))
		r.complete()
	default:
		r.withdraw()
		r.wait(Pending, "the operator's sync status is Succeeded, but the node differs: "+left, pollDelay)
	}
}

// decideApply closes the functions that differ, then changes them, and offers all
// others. While the gate is closed for the whole node, the steps come first.
func (r *reconciler) decideApply(o observation, p plan.Plan, w *work) {
	r.status.Held, r.status.Unacknowledged = w.held, ""
	claim := r.claim(o.hash, w.closed)
	switch g := &r.gate; {
	case g.position != gateClosed && (w.node != "" || isOlder(claim, g.claim)):
		r.withdrawAll()
		return
	case g.position != gateClosed:
		r.enable(claim)
	case w.node == "" && len(w.steps) == 0:
		r.enable(claim)
	}
	switch g := &r.gate; {
	case len(w.steps) == 0:
		r.rest(p, w)
	case g.position == gateOpen && !g.acknowledged:
		if left := g.openedAt.Add(r.rules.Unacknowledged).Sub(r.now); left > 0 {
			r.wait(Withdrawing, "", left)
			return
		}
		g.wholeUntil, g.wholeReason = r.now.Add(pollDelay), "the plugin has not acknowledged that single functions are withdrawn"
		r.withdrawAll()
	case r.now.Sub(g.closedAt) < r.rules.Settle:
		r.wait(Withdrawing, "waiting for the scheduler to see that the devices are not offered", g.closedAt.Add(r.rules.Settle).Sub(r.now))
	case r.canChange(o.pods, w.touches):
		r.begin(w)
	}
}

func (r *reconciler) withdrawAll() {
	r.due = r.gate.notBefore
	r.withdraw()
	if r.gate.position == gateWithdrawing {
		r.setPhase(Withdrawing, "")
	}
}

// begin applies the steps, unless those of a PF do not come to an end.
func (r *reconciler) begin(w *work) {
	counted := map[string]bool{}
	for _, s := range w.steps {
		pf := w.owner(s.Function())
		if counted[pf] {
			continue
		}
		counted[pf] = true
		if c := r.condition(pf); c.rounds < maxRounds {
			c.rounds++
			continue
		}
		r.happened(pf, fmt.Sprintf("the function does not reach the desired state: after %d rounds these steps are left: %s", maxRounds, s), false)
		r.due = r.now // the others go on
		return
	}
	r.steps, r.owners, r.created.thisPlan = w.steps, w.owners, nil
	r.due = time.Time{}
	r.setPhase(Applying, "")
	r.save(true)
}

// rest waits, as no step can run now.
func (r *reconciler) rest(p plan.Plan, w *work) {
	phase, reason, delay := Serving, "", r.rules.Resync
	later := func(d time.Duration, of Phase, why string) {
		if phase != Failed {
			phase, reason = of, why
		}
		delay = min(delay, d)
	}
	problems := slices.DeleteFunc(slices.Clone(p.Problems), func(f plan.Finding) bool {
		_, sure := w.closed[cmp.Or(f.Function, f.PF)]
		return !sure && (f.PF != "" || w.node == "")
	})
	if len(problems) > 0 {
		// The owner of externally managed functions might resolve it.
		later(min(r.nextBackoff(), r.rules.Spread(30*time.Second)), Failed, "the desired state cannot be reached: "+problems[0].String()+andMore(len(problems)-1))
	}
	if c := w.waiting; c != nil {
		later(c.until.Sub(r.now), Failed, w.pf+": "+c.String())
	}
	if len(w.held) > 0 {
		h := w.held[0]
		later(pollDelay, Blocked, fmt.Sprintf("pod %s/%s holds %s, which must be changed%s; drain the node, or use --force", h.Namespace, h.Pod, h.ID, andMore(len(w.held)-1)))
	}
	if len(w.unsure) > 0 {
		later(confirmDelay, phase, cmp.Or(reason, "the node might have changed: "+w.unsure[0]+andMore(len(w.unsure)-1)))
	}
	if phase == Serving && len(w.unsure) == 0 && len(w.closed) == 0 && w.node == "" {
		r.complete()
		return
	}
	r.wait(phase, reason, delay)
	r.ignoreChanges = len(w.unsure) > 0
	if r.gate.position == gateOpen && len(w.unsure) == 0 {
		r.save(false)
	}
}

func (r *reconciler) plan(o observation) (plan.Plan, error) {
	var managed []string // functions that the desired state does not name are removed
	compute := plan.Follow
	if r.rules.Mode == Apply {
		managed, compute = r.record.Managed, plan.Compute
	}
	spec := r.desired.state.Spec
	unread, err := o.notRead(spec, managed)
	if err == nil && len(unread) > 0 && r.rules.Mode == Follow { // which has one gate for the node
		address := slices.Min(slices.Collect(maps.Keys(unread)))
		err = fmt.Errorf("incomplete observation: %s: %s", address, unread[address])
	}
	if err != nil {
		return plan.Plan{}, fmt.Errorf("read the node: %w", err)
	}
	p := compute(spec, o.state, plan.Options{Managed: managed, Held: r.held(o.state), Fresh: r.created.fresh, GUIDs: o.guids,
		Baselines: o.baselines, KeepResidue: r.rules.KeepResidue, Accept: r.rules.Accept, Accepted: o.accepted, Unreadable: unread})
	if o.guidsErr != nil {
		p.Notes = append(p.Notes, plan.Finding{Text: o.guidsErr.Error()})
	}
	return p, nil
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
	if len(touches) == 0 {
		return true
	}
	withdrawal, left := r.gate.result, r.gate.closedAt.Add(r.rules.Unacknowledged).Sub(r.now)
	if !withdrawal.Acknowledged {
		r.status.Unacknowledged = withdrawal.Reason
	}
	resource, id := firstOffered(p.offered, touches)
	switch {
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

// claim keeps the reasons of functions that are closed already: the plugin gets
// another claim only for other functions.
func (r *reconciler) claim(hash string, closed gate.Closed) gate.Claim {
	if r.gate.position == gateOpen {
		for address := range closed {
			closed[address] = cmp.Or(r.gate.claim.Closed[address], closed[address])
		}
	}
	return gate.Claim{UID: r.desired.state.UID, Generation: r.desired.state.Generation, Hash: hash,
		Node: r.rules.Node, Lease: r.rules.Lease, Hold: r.rules.Hold, Closed: closed}
}

// isOlder reports whether the plugin refuses a claim while it has the other one: the
// node state went back to an earlier generation, as after a restored backup.
func isOlder(claim, than gate.Claim) bool {
	return claim.UID != "" && claim.UID == than.UID && claim.Generation < than.Generation
}

// enable opens the gate, or takes over from the claim before.
func (r *reconciler) enable(claim gate.Claim) {
	g := &r.gate
	if g.position == gateOpen && claim.Equal(g.claim) {
		return
	}
	g.position, g.openedAt, g.notBefore, g.acknowledged = gateOpen, r.now, time.Time{}, false
	g.claim, g.spec = claim, r.desired.hash
	r.do(enable{claim})
}

// complete: the node is in the desired state, and all its functions are offered.
func (r *reconciler) complete() {
	r.wait(Serving, "", r.rules.Resync)
	for _, c := range r.conditions {
		if left := c.well.Add(forgetAfter).Sub(r.now); left > 0 {
			r.due = r.now.Add(min(r.rules.Resync, max(left, changeDelay)))
		}
	}
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
		// A closed PF without a step, as one that cannot have so many functions, is
		// not this daemon's: what it has was made by others.
		_, closed := r.gate.claim.Closed[i.PCIAddress]
		changes := slices.ContainsFunc(r.steps, func(s plan.Step) bool { return cmp.Or(r.owners[s.Function()], s.Function()) == i.PCIAddress })
		isOurs := !closed || changes || slices.Contains(r.record.Managed, i.PCIAddress)
		if !i.ExternallyManaged && i.NumVFs > 0 && isOurs {
			pfs = append(pfs, i.PCIAddress)
		}
	}
	for _, pf := range r.record.Managed {
		_, closed := r.gate.claim.Closed[pf] // its functions are not removed yet
		if (applying || closed) && !external[pf] {
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
