package daemon

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// onLooked plans, and begins what follows from the plan.
func (m *machine) onLooked(e looked) {
	m.looking = false
	if e.pods.err == nil && !e.pods.unasked {
		m.holders = e.pods.holders
	}
	if e.err == nil {
		m.last = &e
	}
	if m.again || !m.wished || m.none || m.lost || m.status.Phase == Away {
		if m.again {
			m.due = m.now
		}
		m.again = false
		return
	}
	if e.err == nil {
		e.err = m.missing(e)
	}
	if e.err != nil {
		m.blind(e.err)
		return
	}
	p := plan.Make(m.wish.Spec, e.state, plan.Options{Managed: m.managed(), Held: m.held(e.state), Fresh: m.fresh, GUIDs: e.guids})
	m.status.plan(p)
	if m.doubtful(e, p) {
		return
	}
	if m.rules.Mode == Follow {
		m.judgeOther(e, p)
	} else {
		m.judge(e, p)
	}
	if m.stirred {
		m.sooner()
	}
}

// doubtful reports whether what is offered should be looked at again before it
// is taken back. A function that a pod just gave up is for a moment not as
// wanted; what was not so twice has changed.
func (m *machine) doubtful(e looked, p plan.Plan) bool {
	var left []string
	if m.rules.Mode == Follow && leftToOperator(p) == "" {
		p = plan.Plan{}
	}
	for _, s := range p.Steps {
		left = append(left, s.String())
	}
	for _, problem := range p.Problems {
		left = append(left, problem.String())
	}
	before := m.doubt
	m.doubt = left
	if !m.serves() || len(left) == 0 || slices.ContainsFunc(left, func(s string) bool { return slices.Contains(before, s) }) {
		return false
	}
	m.due, m.deaf = m.now.Add(sure), true
	m.phase(Serving, "the node may have changed: "+left[0]+others(len(left)-1))
	return true
}

// serves: the gate is open for the newest wish.
func (m *machine) serves() bool {
	return m.word == opened && m.served == m.spec && m.claim.UID == m.wish.UID && m.claim.Generation == m.wish.Generation
}

// managed are the PFs that lose their functions when nobody wants them. Only
// who configures takes anything away.
func (m *machine) managed() []string {
	if m.rules.Mode == Follow {
		return nil
	}
	return m.record.Managed
}

// missing is an error when something could not be read that the wish may be
// about.
func (m *machine) missing(e looked) error {
	concerned := map[string]bool{} // and there
	for _, i := range m.wish.Spec.Interfaces {
		concerned[i.PCIAddress] = false
	}
	for _, pf := range m.managed() {
		concerned[pf] = false
	}
	foreign := map[string]bool{}
	whole := true // nothing that concerns us was left out
	for _, pf := range e.state.PFs {
		_, ours := concerned[pf.Address]
		if foreign[pf.Address] = !ours; ours {
			concerned[pf.Address] = true
			whole = whole && len(pf.VFs) == pf.NumVFs
		}
		for _, vf := range pf.VFs {
			foreign[vf.Address] = !ours
		}
	}
	for _, there := range concerned {
		whole = whole && there
	}
	for _, what := range e.partial {
		place, _, _ := strings.Cut(what, ": ")
		if other, known := foreign[place]; known && !other || !known && (!whole || !function(place)) {
			return fmt.Errorf("not all of the node can be read: %s", what)
		}
	}
	return nil
}

// function reports whether a name is the address of a PCI function.
func function(name string) bool {
	var domain, bus, device, number uint
	n, err := fmt.Sscanf(name+" ", "%x:%x:%x.%x ", &domain, &bus, &device, &number)
	return err == nil && n == 4
}

// blind: nothing is known of the node. What is offered as wanted stays so:
// functions do not change because they cannot be read.
func (m *machine) blind(err error) {
	if m.serves() {
		m.failures++
		m.due = m.now.Add(m.pause())
		m.phase(Serving, "the node cannot be read: "+err.Error())
		m.status.err = err
		return
	}
	m.fail(fmt.Errorf("read the node: %w", err))
	m.shut()
}

// judgeOther decides whether the operator is done.
func (m *machine) judgeOther(e looked, p plan.Plan) {
	switch left := leftToOperator(p); {
	case left != "":
		m.shut()
		m.wait(Pending, "the operator says it succeeded, but there is left: "+left, poll)
	case m.withdrawing:
		m.wait(Pending, "the plugin still takes its devices back", quick)
	case m.stirred && m.word != opened:
		m.wait(Pending, "the node changes", stir)
	default:
		m.open(e.hash)
	}
}

func leftToOperator(p plan.Plan) string {
	if len(p.Steps) > 0 {
		return p.Steps[0].String() + others(len(p.Steps)-1)
	}
	if len(p.Problems) > 0 {
		return p.Problems[0].String()
	}
	return ""
}

func others(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

// judge decides what to do about a plan.
func (m *machine) judge(e looked, p plan.Plan) {
	if m.withdrawing {
		return // and looked again after it
	}
	if p.Done() {
		m.finish(e.hash)
		return
	}
	if m.word != shut {
		m.shut()
		if m.withdrawing {
			m.phase(Withdrawing, "")
		} else {
			m.due = m.shutAgain
		}
		return
	}
	if len(p.Steps) == 0 {
		m.fail(fmt.Errorf("the node cannot be as wanted: %s%s", p.Problems[0], others(len(p.Problems)-1)))
		// Others may solve it, as who makes externally managed functions does.
		m.due, m.deaf = minTime(m.due, m.now.Add(m.rules.Spread(30*time.Second))), false
		return
	}
	if m.rounds >= maxRounds {
		m.fail(fmt.Errorf("%w: after %d rounds there is left: %s%s", errRounds, m.rounds, p.Steps[0], others(len(p.Steps)-1)))
		return
	}
	if left := m.rules.Settle - m.now.Sub(m.shutAt); left > 0 {
		m.wait(Withdrawing, "the scheduler hears that nothing is offered", left)
		return
	}
	if m.obstructed(e.pods, p.Touches) {
		return
	}
	m.begin(p.Steps)
}

// obstructed reports whether the steps must wait: pods hold what they touch, or
// may still get it.
func (m *machine) obstructed(pods podsSaid, touches []string) bool {
	m.status.Held = nil
	m.status.Unacknowledged = ""
	if len(touches) == 0 {
		return false
	}
	early := m.now.Sub(m.shutAt) < m.rules.Unacknowledged
	if !m.withdrawal.Acknowledged {
		m.status.Unacknowledged = m.withdrawal.Reason
	}
	if pods.unasked {
		if !m.withdrawal.Acknowledged && early {
			m.wait(Withdrawing, "the plugin does not acknowledge: "+m.withdrawal.Reason, m.shutAt.Add(m.rules.Unacknowledged).Sub(m.now))
			return true
		}
		return false
	}
	if pods.err != nil {
		if m.rules.Force {
			return false
		}
		m.failures++
		m.wait(Blocked, fmt.Sprintf("it is not known which pods hold functions: %v", pods.err), min(m.pause(), 6*poll))
		return true
	}
	if pods.mute && !m.withdrawal.Acknowledged && early {
		m.wait(Withdrawing, "neither plugin nor kubelet tell whether devices are offered: "+m.withdrawal.Reason, m.shutAt.Add(m.rules.Unacknowledged).Sub(m.now))
		return true
	}
	if resource, id := offered(pods.offered, touches); id != "" && early {
		m.wait(Withdrawing, fmt.Sprintf("the kubelet still offers %s of %s", id, resource), quick)
		return true
	} else if id != "" && m.withdrawal.Acknowledged && !m.rules.Force {
		m.fail(fmt.Errorf("the kubelet offers %s of %s, which the plugin says it has taken back: another plugin may offer it too", id, resource))
		return true
	}
	for _, h := range pods.holders {
		if slices.Contains(touches, h.ID) {
			m.status.Held = append(m.status.Held, h)
		}
	}
	if len(m.status.Held) == 0 || m.rules.Force {
		return false
	}
	h := m.status.Held[0]
	m.wait(Blocked, fmt.Sprintf("pod %s/%s holds %s, which has to change%s; drain the node, or force it", h.Namespace, h.Pod, h.ID, others(len(m.status.Held)-1)), poll)
	return true
}

func offered(all map[string][]string, touches []string) (resource, id string) {
	for resource, ids := range all {
		for _, id := range ids {
			if slices.Contains(touches, id) {
				return resource, id
			}
		}
	}
	return "", ""
}

// begin does steps, after they are on record.
func (m *machine) begin(steps []plan.Step) {
	m.rounds++
	m.queue, m.settling = steps, slices.Clone(m.fresh)
	m.due = time.Time{}
	m.phase(Applying, "")
	m.keep(true)
	if !m.noting {
		m.next()
	}
}

// finish: everything is as wanted.
func (m *machine) finish(hash string) {
	m.remade = nil
	m.open(hash)
	m.keep(false)
}

// keep has the record say how it is, if it does not.
func (m *machine) keep(applying bool) {
	r := Record{Managed: m.ours(applying), Applying: applying, UID: m.wish.UID, Generation: m.wish.Generation, Spec: m.spec}
	old := m.record
	if slices.Equal(r.Managed, old.Managed) && r.Applying == old.Applying && r.UID == old.UID && r.Generation == old.Generation && r.Spec == old.Spec {
		return
	}
	r.Since = m.now
	m.record, m.noting = r, true
	m.out = append(m.out, note{r})
}

// ours are the PFs whose functions we make. Those that the wish named before
// count until they have none.
func (m *machine) ours(applying bool) []string {
	var all []string
	external := map[string]bool{}
	for _, i := range m.wish.Spec.Interfaces {
		external[i.PCIAddress] = i.ExternallyManaged
		if !i.ExternallyManaged && i.NumVFs > 0 {
			all = append(all, i.PCIAddress)
		}
	}
	if applying {
		for _, pf := range m.record.Managed {
			if !external[pf] {
				all = append(all, pf)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (m *machine) onNoted(e noted) {
	if e.err != nil {
		m.record.Since = time.Time{} // it is not what is on record
		m.record.Spec = ""
		if m.word != opened {
			m.fail(fmt.Errorf("remember what is done: %w", e.err))
		}
		return
	}
	m.next()
}

// next does the first step that is left. A wish that changed has none.
func (m *machine) next() {
	if len(m.queue) == 0 {
		if m.status.Phase == Applying {
			m.due = m.now
		}
		return
	}
	m.doing, m.under = true, m.queue[0]
	m.status.Step = m.queue[0].String()
	m.out = append(m.out, do{m.queue[0]})
}

func (m *machine) onDid(e did) {
	step := m.status.Step
	m.status.Step = ""
	if e.err != nil {
		m.fail(fmt.Errorf("%s: %w", step, e.err))
		return
	}
	m.status.Done++
	m.renewed(m.under)
	if len(m.queue) == 0 { // another wish came
		m.next()
		return
	}
	if m.queue = m.queue[1:]; len(m.queue) == 0 {
		m.fresh = slices.DeleteFunc(m.fresh, func(pf string) bool { return slices.Contains(m.settling, pf) })
	}
	m.next()
}

// renewed remembers PFs whose functions are new, until a plan that knew it is
// done.
func (m *machine) renewed(s plan.Step) {
	n, is := s.(plan.SetNumVFs)
	if !is || n.Number == 0 {
		return
	}
	same := func(pf string) bool { return pf == n.PF }
	m.settling = slices.DeleteFunc(m.settling, same)
	if !slices.ContainsFunc(m.fresh, same) {
		m.fresh = append(m.fresh, n.PF)
	}
	if !slices.ContainsFunc(m.remade, same) {
		m.remade = append(m.remade, n.PF)
	}
}

// held are the functions that pods have. One that was forced from a pod and made
// again is the pod's by its address only, and is judged as any other.
func (m *machine) held(s plan.State) []string {
	all := ids(m.holders)
	if !m.rules.Force {
		return all
	}
	for _, pf := range s.PFs {
		if slices.Contains(m.remade, pf.Address) {
			all = slices.DeleteFunc(all, func(id string) bool {
				return slices.ContainsFunc(pf.VFs, func(v plan.VF) bool { return v.Address == id })
			})
		}
	}
	return all
}

func ids(holders []podresources.Holder) []string {
	var all []string
	for _, h := range holders {
		all = append(all, h.ID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
