package daemon

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// forgetAfter is how long a PF stays in the desired state until its condition is
// forgotten.
const forgetAfter = 2 * maxBackoff

// condition counts the drifts and the failed repairs of a PF. Each doubles the
// pause before the next repair and before its functions are offered again.
type condition struct {
	count  int
	cause  string    // of the last one
	since  time.Time // of the last one
	until  time.Time // neither repaired nor offered
	well   time.Time // in the desired state since; zero: it is not
	rounds int       // successive plans with steps
}

func (r *reconciler) condition(pf string) *condition {
	c := r.conditions[pf]
	if c == nil {
		c = &condition{}
		r.conditions[pf] = c
	}
	return c
}

// happened counts a drift or a failure. The first drift is repaired at once.
func (r *reconciler) happened(pf, cause string, drift bool) *condition {
	c := r.condition(pf)
	pauses := c.count
	if c.count++; !drift {
		pauses++
	}
	c.cause, c.since, c.rounds, c.well = cause, r.now, 0, time.Time{}
	if c.until = r.now; pauses > 0 {
		c.until = r.now.Add(r.rules.Spread(min(minBackoff<<min(pauses-1, 20), maxBackoff)))
	}
	return c
}

// work is a plan with what can be done now.
type work struct {
	owners  map[string]string // PF by function
	closed  gate.Closed       // functions that must not be offered
	node    string            // why the whole node must not be
	unsure  []string          // differences that the next observation must confirm
	steps   []plan.Step       // can run now
	touches []string          // functions that the steps disturb
	held    []podresources.Holder
	waiting *condition // the first that ends
	pf      string     // of waiting
}

// review decides which functions are closed and which steps can run now.
func (r *reconciler) review(p plan.Plan, o observation) *work {
	w := &work{owners: o.state.Owners()}
	w.closed, w.node = p.Closes(o.state)
	if w.node == "" && len(w.closed) > 0 && r.now.Before(r.gate.wholeUntil) {
		w.node = r.gate.wholeReason
	}
	r.confirm(w)
	r.damp(w)
	r.choose(p, w, o.pods.err == nil)
	return w
}

func (w *work) owner(address string) string { return cmp.Or(w.owners[address], address) }

func (w *work) closes(address string) bool {
	for _, of := range []string{address, w.owner(address)} {
		if _, closed := w.closed[of]; closed {
			return true
		}
	}
	return false
}

// isClosed reports whether the claim does not offer a function.
func (r *reconciler) isClosed(address string, w *work) bool {
	if r.gate.position == gateClosed {
		return true
	}
	_, itself := r.gate.claim.Closed[address]
	_, pf := r.gate.claim.Closed[w.owner(address)]
	return itself || pf
}

// confirm drops the differences of offered functions that only this observation
// has: a function that a pod just released differs for a moment.
func (r *reconciler) confirm(w *work) {
	before := r.differences
	r.differences = nil
	if w.node != "" {
		r.differences = append(r.differences, "")
	}
	for _, address := range slices.Sorted(maps.Keys(w.closed)) {
		r.differences = append(r.differences, address)
		if r.isServing() && !r.isClosed(address, w) && !slices.Contains(before, address) {
			w.unsure = append(w.unsure, address+": "+w.closed[address])
			delete(w.closed, address)
		}
	}
	if w.node != "" && r.isServing() && !slices.Contains(before, "") {
		w.unsure, w.node = append(w.unsure, w.node), ""
	}
}

// damp counts drifts, and keeps functions of PFs that drift repeatedly closed for
// a while.
func (r *reconciler) damp(w *work) {
	ill, drifted := map[string]bool{}, map[string]bool{}
	for _, address := range slices.Sorted(maps.Keys(w.closed)) {
		pf := w.owner(address)
		ill[pf] = true
		if r.isServing() && !r.isClosed(address, w) && !drifted[pf] {
			drifted[pf] = true
			r.happened(pf, w.closed[address], true)
		}
	}
	for _, pf := range slices.Sorted(maps.Keys(r.conditions)) {
		c := r.conditions[pf]
		switch waits := r.now.Before(c.until); {
		case waits && (w.waiting == nil || c.until.Before(w.waiting.until)):
			w.waiting, w.pf = c, pf
			fallthrough
		case waits:
			for address, reason := range r.gate.claim.Closed {
				if r.gate.position == gateOpen && w.owner(address) == pf && !w.closes(address) {
					w.closed[address] = reason
				}
			}
		case ill[pf]:
			c.well = time.Time{}
		case c.well.IsZero():
			c.well, c.rounds = r.now, 0
		case r.now.Sub(c.well) >= forgetAfter:
			delete(r.conditions, pf)
		}
	}
}

// choose selects the steps on closed functions that no pod holds, of PFs that need
// not wait. If the holders are not known, canChange refuses the steps.
func (r *reconciler) choose(p plan.Plan, w *work, known bool) {
	rebuilt := map[string]bool{}
	for _, s := range p.Steps {
		rebuilt[w.owner(s.Function())] = rebuilt[w.owner(s.Function())] || plan.Rebuilds(s)
	}
	blocked := map[string]bool{}
	for _, h := range r.holders {
		if pf := w.owner(h.ID); known && slices.Contains(p.Touches, h.ID) && !r.rules.Force {
			w.held = append(w.held, h)
			blocked[h.ID], blocked[pf] = true, blocked[pf] || rebuilt[pf]
		}
	}
	can := func(address string) bool {
		pf := w.owner(address)
		c := r.conditions[pf]
		return !blocked[address] && !(rebuilt[pf] && (blocked[pf] || !w.closes(pf))) && w.closes(address) && (c == nil || !r.now.Before(c.until))
	}
	for _, s := range p.Steps {
		if can(s.Function()) {
			w.steps = append(w.steps, s)
		}
	}
	for _, address := range p.Touches {
		if can(address) {
			w.touches = append(w.touches, address)
		}
	}
}

// Condition is the state of a PF that drifted, or whose repair failed.
type Condition struct {
	Function string    `json:"function"`
	Count    int       `json:"count"`
	Cause    string    `json:"cause"`
	Since    time.Time `json:"since"`          // of the last one
	Until    time.Time `json:"until,omitzero"` // not offered and not repaired until
}

func (r *reconciler) conditionsNow() (all []Condition) {
	for _, pf := range slices.Sorted(maps.Keys(r.conditions)) {
		if c := r.conditions[pf]; c.count > 0 {
			all = append(all, Condition{pf, c.count, c.cause, c.since, c.until})
		}
	}
	return all
}

func (c *condition) String() string {
	if c.count == 1 {
		return c.cause
	}
	return fmt.Sprintf("%s (%d times)", c.cause, c.count)
}
