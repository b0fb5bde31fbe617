package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// close withdraws the devices. finish answers the callers that wait for the
// withdrawal.
func (g *Gate) close() {
	delete(g.timers, TimerHold)
	delete(g.timers, TimerLease)
	delete(g.timers, TimerScan)
	g.scanErr = nil
	if !g.open {
		return
	}
	g.open = false
	g.epoch++
	for _, name := range g.names() {
		g.do(To{Resource: name, Event: Close{Epoch: g.epoch}})
	}
	g.startBound()
}

// startBound starts the timeout of a withdrawal that is not finished.
func (g *Gate) startBound() {
	if g.unfinished() != "" {
		g.overdue = ""
		g.set(TimerBound, g.now.Add(g.cfg.Bound))
	}
}

func (e Disable) apply(g *Gate) {
	refuse := func(code codes.Code, reason string) { g.do(Disabled{Call: e.Call, Code: code, Reason: reason}) }
	h := g.live()
	switch {
	case g.quitting:
		refuse(codes.Unavailable, pluginStops)
		return
	case !g.cfg.Controlled:
		refuse(codes.FailedPrecondition, notControlled)
		return
	case e.Session != "" && h != nil && h.session != e.Session:
		refuse(codes.FailedPrecondition, fmt.Sprintf("%s holds the devices now, with generation %d", owner(h.Claim), h.Generation))
		return
	}
	g.pending = append(g.pending, e.Call)
	if h != nil {
		g.leaving = append(g.leaving, h.session)
	}
	g.holder = nil
	g.close()
	if _, isSet := g.timers[TimerBound]; !isSet {
		g.startBound() // the timer of an earlier withdrawal has fired
	}
}

func (e DisableGone) apply(g *Gate) {
	g.pending = slices.DeleteFunc(g.pending, func(id uint64) bool { return id == e.Call })
}

// finish answers the waiting callers once all devices are withdrawn.
func (g *Gate) finish() {
	if g.open || g.unfinished() != "" {
		return
	}
	delete(g.timers, TimerBound)
	g.overdue = ""
	for _, id := range g.pending {
		d := Disabled{Call: id, Code: codes.OK, Confirmed: true}
		for _, name := range g.names() {
			r := g.resources[name]
			// A resource that the kubelet does not know needs no confirmation.
			d.Confirmed = d.Confirmed && (r.Confirmed || r.Phase == Idle)
			d.InUse = append(d.InUse, r.InUse...)
		}
		g.do(d)
	}
	for _, session := range g.leaving {
		g.end(session, codes.OK, "disabled")
	}
	g.pending, g.leaving = nil, nil
}

// giveUp fails the Disable calls and ends the sessions that wait for a
// withdrawal.
func (g *Gate) giveUp(code codes.Code, toCallers, toSessions string) {
	for _, id := range g.pending {
		g.do(Disabled{Call: id, Code: code, Reason: toCallers})
	}
	for _, session := range g.leaving {
		g.end(session, code, toSessions)
	}
	g.pending, g.leaving = nil, nil
}

// exit returns Exit once every resource has stopped.
func (g *Gate) exit() {
	if g.quitting && !g.ended && g.unfinished() == "" {
		g.ended = true
		g.do(Exit{})
	}
}

// bound fails the waiting callers with the unfinished resources. The withdrawal
// continues.
func (g *Gate) bound() {
	missing := g.unfinished()
	if missing == "" {
		return
	}
	g.overdue = fmt.Sprintf("not withdrawn within %s: %s", g.cfg.Bound, missing)
	g.giveUp(codes.DeadlineExceeded, g.overdue+"; the withdrawal continues, retry", g.overdue)
	if g.quitting {
		for _, name := range g.names() {
			if g.resources[name].Phase != Stopped {
				g.do(To{Resource: name, Event: Halt{}})
			}
		}
	}
}

// unfinished lists the resources that are not withdrawn since the last closing,
// or not stopped while the plugin shuts down. It returns "" if the withdrawal
// is complete.
func (g *Gate) unfinished() string {
	var missing []string
	for _, name := range g.names() {
		r := g.resources[name]
		done := r.Phase == Stopped
		if !g.quitting {
			done = done || (r.Epoch == g.epoch && (r.Phase == Idle || r.Phase == Withdrawn))
		}
		if done {
			continue
		}
		missing = append(missing, name+": "+cmp.Or(r.Error, string(r.Phase)))
	}
	return strings.Join(missing, "; ")
}

func (Quit) apply(g *Gate) {
	if g.quitting {
		return
	}
	g.quitting, g.open = true, false
	g.epoch++
	if h := g.live(); h != nil {
		g.end(h.session, codes.Unavailable, pluginStops)
	}
	g.giveUp(codes.Unavailable, pluginStops, pluginStops)
	g.holder = nil
	clear(g.timers)
	for _, name := range g.names() {
		g.do(To{Resource: name, Event: Shutdown{Epoch: g.epoch}})
	}
	g.startBound()
}
