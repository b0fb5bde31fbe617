package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// close begins a withdrawal; finish ends it and answers the callers.
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
		g.do(Forward{Resource: name, Event: Close{Epoch: g.epoch}})
	}
	g.startWithdrawTimer()
}

func (g *Gate) startWithdrawTimer() {
	if g.unfinished() != "" {
		g.timeoutReason = ""
		g.set(TimerWithdraw, g.now.Add(g.cfg.WithdrawTimeout))
	}
}

func (e Disable) apply(g *Gate) {
	refuse := func(code codes.Code, reason string) { g.do(DisableReply{Call: e.Call, Code: code, Reason: reason}) }
	h := g.live()
	switch {
	case g.quitting:
		refuse(codes.Unavailable, shuttingDownReason)
		return
	case !g.cfg.Controlled:
		refuse(codes.FailedPrecondition, notControlledReason)
		return
	case e.Session != "" && h != nil && h.session != e.Session:
		refuse(codes.FailedPrecondition, fmt.Sprintf("%s holds the devices now, with generation %d", owner(h.Claim), h.Generation))
		return
	}
	g.pendingDisables = append(g.pendingDisables, e.Call)
	if h != nil {
		g.endingSessions = append(g.endingSessions, h.session)
	}
	g.holder = nil
	g.close()
	if _, isSet := g.timers[TimerWithdraw]; !isSet {
		g.startWithdrawTimer() // the earlier one has fired
	}
}

func (e DisableCanceled) apply(g *Gate) {
	g.pendingDisables = slices.DeleteFunc(g.pendingDisables, func(id uint64) bool { return id == e.Call })
}

func (g *Gate) finish() {
	if g.open || g.unfinished() != "" {
		return
	}
	delete(g.timers, TimerWithdraw)
	g.timeoutReason = ""
	for _, id := range g.pendingDisables {
		d := DisableReply{Call: id, Code: codes.OK, Confirmed: true}
		for _, name := range g.names() {
			r := g.resources[name]
			// The kubelet does not know idle resources.
			d.Confirmed = d.Confirmed && (r.Confirmed || r.Phase == Idle)
			d.InUse = append(d.InUse, r.InUse...)
		}
		g.do(d)
	}
	for _, session := range g.endingSessions {
		g.end(session, codes.OK, "disabled")
	}
	g.pendingDisables, g.endingSessions = nil, nil
}

func (g *Gate) abortPending(code codes.Code, toCallers, toSessions string) {
	for _, id := range g.pendingDisables {
		g.do(DisableReply{Call: id, Code: code, Reason: toCallers})
	}
	for _, session := range g.endingSessions {
		g.end(session, code, toSessions)
	}
	g.pendingDisables, g.endingSessions = nil, nil
}

func (g *Gate) exit() {
	if g.quitting && !g.ended && g.unfinished() == "" {
		g.ended = true
		g.do(Exit{})
	}
}

// The withdrawal continues.
func (g *Gate) withdrawTimedOut() {
	missing := g.unfinished()
	if missing == "" {
		return
	}
	g.timeoutReason = fmt.Sprintf("not withdrawn within %s: %s", g.cfg.WithdrawTimeout, missing)
	g.abortPending(codes.DeadlineExceeded, g.timeoutReason+"; the withdrawal continues, retry", g.timeoutReason)
	if g.quitting {
		for _, name := range g.names() {
			if g.resources[name].Phase != Stopped {
				g.do(Forward{Resource: name, Event: Halt{}})
			}
		}
	}
}

// unfinished lists the resources that are not withdrawn, or not stopped at
// shutdown.
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
		g.end(h.session, codes.Unavailable, shuttingDownReason)
	}
	g.abortPending(codes.Unavailable, shuttingDownReason, shuttingDownReason)
	g.holder = nil
	clear(g.timers)
	for _, name := range g.names() {
		g.do(Forward{Resource: name, Event: Shutdown{Epoch: g.epoch}})
	}
	g.startWithdrawTimer()
}
