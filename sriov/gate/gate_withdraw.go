package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// Disabling is a DisableDevices call. Once it is Done, the others are final; Err is
// an *End.
type Disabling struct {
	Done bool
	Withdrawal
	Err error
}

func (d *Disabling) refuse(code codes.Code, reason string) { d.Done, d.Err = true, &End{code, reason} }

// close drops the holder and begins a withdrawal; finish ends it and answers the
// callers.
func (g *Gate) close() {
	g.holder, g.lost, g.scanErr = nil, false, nil
	delete(g.timers, TimerHold)
	delete(g.timers, TimerLease)
	delete(g.timers, TimerScan)
	if !g.open {
		return
	}
	g.open = false
	for _, r := range g.resources {
		r.withdraw()
	}
	g.startWithdrawTimer()
}

func (g *Gate) startWithdrawTimer() {
	if g.unfinished() != "" {
		g.timeoutReason = ""
		g.timers[TimerWithdraw] = g.now.Add(g.cfg.WithdrawTimeout)
	}
}

// Disable withdraws the devices from a session; empty: from any holder.
func (g *Gate) Disable(now time.Time, session string) *Disabling {
	d := &Disabling{}
	g.step(now, func() {
		h := g.live()
		switch {
		case g.quitting:
			d.refuse(codes.Unavailable, shuttingDownReason)
			return
		case !g.cfg.Controlled:
			d.refuse(codes.FailedPrecondition, notControlledReason)
			return
		case session != "" && h != nil && h.ID != session:
			d.refuse(codes.FailedPrecondition, fmt.Sprintf("%s holds the devices now, with generation %d", owner(h.Claim), h.Generation))
			return
		}
		g.disabling = append(g.disabling, d)
		if h != nil {
			g.ending = append(g.ending, h)
		}
		g.close()
		if _, isSet := g.timers[TimerWithdraw]; !isSet {
			g.startWithdrawTimer() // the earlier one has fired
		}
	})
	return d
}

// Cancel reports that the caller of Disable no longer waits.
func (g *Gate) Cancel(now time.Time, d *Disabling) {
	g.step(now, func() {
		g.disabling = slices.DeleteFunc(g.disabling, func(other *Disabling) bool { return other == d })
	})
}

func (g *Gate) finish() {
	if g.open || g.unfinished() != "" {
		return
	}
	delete(g.timers, TimerWithdraw)
	g.timeoutReason = ""
	all := Withdrawal{Acknowledged: true, Confirmed: true}
	for _, name := range g.names() {
		r := g.resources[name]
		// The kubelet does not know idle resources.
		all.Confirmed = all.Confirmed && (r.confirmed || r.phase == Idle)
		all.InUse = append(all.InUse, r.inUse...)
	}
	for _, d := range g.disabling {
		d.Done, d.Withdrawal = true, all
	}
	for _, s := range g.ending {
		s.end(codes.OK, "disabled")
	}
	g.disabling, g.ending = nil, nil
}

func (g *Gate) abortPending(code codes.Code, toCallers, toSessions string) {
	for _, d := range g.disabling {
		d.refuse(code, toCallers)
	}
	for _, s := range g.ending {
		s.end(code, toSessions)
	}
	g.disabling, g.ending = nil, nil
}

// The withdrawal continues.
func (g *Gate) withdrawTimedOut() {
	missing := g.unfinished()
	if missing == "" {
		return
	}
	g.timeoutReason = fmt.Sprintf("not withdrawn within %s: %s", g.cfg.WithdrawTimeout, missing)
	g.abortPending(codes.DeadlineExceeded, g.timeoutReason+"; the withdrawal continues, retry", g.timeoutReason)
	for _, r := range g.resources {
		if g.quitting && r.phase != Stopped {
			r.stop()
		}
	}
}

// unfinished lists the resources that are not withdrawn, or not stopped at
// shutdown.
func (g *Gate) unfinished() string {
	var missing []string
	for _, name := range g.names() {
		r := g.resources[name]
		done := r.released
		if !g.quitting {
			done = r.phase == Idle || r.phase == Withdrawn || r.phase == Stopped
		}
		if !done {
			missing = append(missing, name+": "+cmp.Or(r.problem(), string(r.phase)))
		}
	}
	return strings.Join(missing, "; ")
}

// Quit withdraws everything.
func (g *Gate) Quit(now time.Time) {
	g.step(now, func() {
		if g.quitting {
			return
		}
		if h := g.live(); h != nil {
			h.end(codes.Unavailable, shuttingDownReason)
		}
		g.abortPending(codes.Unavailable, shuttingDownReason, shuttingDownReason)
		g.quitting, g.open, g.holder, g.lost = true, false, nil, false
		clear(g.timers)
		for _, r := range g.resources {
			r.shutdown()
		}
		g.startWithdrawTimer()
	})
}

// Exited reports whether the plugin can end, after Quit.
func (g *Gate) Exited() bool { return g.quitting && g.unfinished() == "" }
