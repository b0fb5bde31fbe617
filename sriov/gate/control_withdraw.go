package gate

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// close takes back what was opened; what waits for it is answered in finish.
func (c *Control) close() {
	delete(c.timers, TimerHold)
	delete(c.timers, TimerLease)
	delete(c.timers, TimerScan)
	c.scanErr = nil
	if !c.open {
		return
	}
	c.open = false
	c.epoch++
	for _, name := range c.names() {
		c.do(To{Resource: name, Event: Close{Epoch: c.epoch}})
	}
	c.watch()
}

// watch gives a withdrawal its bound.
func (c *Control) watch() {
	if c.unfinished() != "" {
		c.overdue = ""
		c.set(TimerBound, c.now.Add(c.cfg.Bound))
	}
}

func (c *Control) disable(e Disable) {
	answer := func(code codes.Code, reason string) { c.do(Disabled{Call: e.Call, Code: code, Reason: reason}) }
	h := c.holder
	switch {
	case c.quitting:
		answer(codes.Unavailable, "the plugin stops")
		return
	case !c.cfg.Controlled:
		answer(codes.FailedPrecondition, "the plugin is not in controlled mode: it offers its devices by itself; start it with --controlled-mode")
		return
	case e.Session != "" && h != nil && h.Session != e.Session:
		answer(codes.FailedPrecondition, fmt.Sprintf("%s holds the devices now, with generation %d", whose(*h), h.Generation))
		return
	}
	c.pending = append(c.pending, e.Call)
	if h != nil {
		c.leaving = append(c.leaving, h.Session)
	}
	c.holder, c.lost = nil, nil
	c.close()
	if _, watched := c.timers[TimerBound]; !watched {
		c.watch() // an earlier bound has passed
	}
}

// finish answers who waits, once everything is withdrawn.
func (c *Control) finish() {
	if c.open || c.unfinished() != "" {
		return
	}
	delete(c.timers, TimerBound)
	c.overdue = ""
	for _, id := range c.pending {
		d := Disabled{Call: id, Code: codes.OK, Confirmed: true, InUse: map[string][]Held{}}
		for name, r := range c.resources {
			// What the kubelet never heard of needs no word of it.
			d.Confirmed = d.Confirmed && (r.Confirmed || r.Phase == Idle)
			if len(r.InUse) > 0 {
				d.InUse[name] = slices.Clone(r.InUse)
			}
		}
		c.do(d)
	}
	for _, session := range c.leaving {
		c.end(session, codes.OK, "disabled")
	}
	c.pending, c.leaving = nil, nil
}

// exit ends the plugin once every resource has stopped.
func (c *Control) exit() {
	if c.quitting && !c.ended && c.unfinished() == "" {
		c.ended = true
		c.do(Exit{})
	}
}

// bound: who waits is told what is missing. The withdrawal goes on.
func (c *Control) bound() {
	missing := c.unfinished()
	if missing == "" {
		return
	}
	c.overdue = fmt.Sprintf("not withdrawn within %s: %s", c.cfg.Bound, missing)
	for _, id := range c.pending {
		c.do(Disabled{Call: id, Code: codes.DeadlineExceeded, Reason: c.overdue + "; it goes on, ask again"})
	}
	for _, session := range c.leaving {
		c.end(session, codes.DeadlineExceeded, c.overdue)
	}
	c.pending, c.leaving = nil, nil
	if c.quitting {
		for _, name := range c.names() {
			if c.resources[name].Phase != Stopped {
				c.do(To{Resource: name, Event: Halt{}})
			}
		}
	}
}

// unfinished says which resources are not withdrawn since the last closing, or
// not stopped when the plugin ends; "" when all are.
func (c *Control) unfinished() string {
	var missing []string
	for _, name := range c.names() {
		r := c.resources[name]
		done := r.Phase == Stopped
		if !c.quitting {
			done = done || (r.Epoch == c.epoch && (r.Phase == Idle || r.Phase == Withdrawn))
		}
		if done {
			continue
		}
		why := r.Error
		if why == "" {
			why = string(r.Phase)
		}
		missing = append(missing, name+": "+why)
	}
	return strings.Join(missing, "; ")
}

func (c *Control) quit() {
	if c.quitting {
		return
	}
	c.quitting, c.open = true, false
	c.epoch++
	const reason = "the plugin stops"
	if c.holder != nil {
		c.end(c.holder.Session, codes.Unavailable, reason)
	}
	for _, session := range c.leaving {
		c.end(session, codes.Unavailable, reason)
	}
	for _, id := range c.pending {
		c.do(Disabled{Call: id, Code: codes.Unavailable, Reason: reason})
	}
	c.holder, c.lost, c.leaving, c.pending = nil, nil, nil, nil
	clear(c.timers)
	for _, name := range c.names() {
		c.do(To{Resource: name, Event: Shutdown{Epoch: c.epoch}})
	}
	c.watch()
}
