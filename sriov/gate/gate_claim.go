package gate

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
)

const (
	notControlledReason = "the plugin is not in controlled mode and always offers its devices; start it with --controlled-mode"
	shuttingDownReason  = "the plugin is shutting down"
)

// A refused claim's stream is ended.
func (e Enable) apply(g *Gate) {
	if code, reason := g.refusal(e.Claim); code != codes.OK {
		g.end(e.Session, code, reason)
		return
	}
	if h := g.live(); h != nil {
		g.end(h.session, codes.Aborted, fmt.Sprintf("superseded: %s took over with generation %d", owner(e.Claim), e.Claim.Generation))
	}
	// The claim interrupts a withdrawal in progress.
	enabled := fmt.Sprintf("%s enabled the devices again, with generation %d", owner(e.Claim), e.Claim.Generation)
	g.abortPending(codes.Aborted, enabled, "superseded: "+enabled)
	g.holder = &holder{Claim: e.Claim, session: e.Session}
	g.published = nil // also without a change
	delete(g.timers, TimerHold)
	delete(g.timers, TimerLease)
	if e.Claim.Lease > 0 {
		g.set(TimerLease, g.now.Add(e.Claim.Lease))
	}
	if g.open {
		g.restrict(g.closed.with(e.Claim.Closed)) // no function is opened before the scan
	}
	// The node might have changed before this call.
	g.rescan()
}

func (g *Gate) refusal(c Claim) (codes.Code, string) {
	h := g.live()
	switch {
	case g.quitting:
		return codes.Unavailable, shuttingDownReason
	case !g.cfg.Controlled:
		return codes.FailedPrecondition, notControlledReason
	case c.Hash != "" && c.Hash != g.hash:
		return codes.FailedPrecondition, fmt.Sprintf("config_hash is %q, but the plugin's configuration has the hash %q; retry when the new configuration has arrived", c.Hash, g.hash)
	case h != nil && h.UID != "" && h.UID == c.UID && c.Generation < h.Generation:
		return codes.FailedPrecondition, fmt.Sprintf("generation %d is older than generation %d, with which %s holds the devices for the same node state %s", c.Generation, h.Generation, owner(h.Claim), c.UID)
	}
	return codes.OK, ""
}

func owner(c Claim) string {
	if c.Node == "" {
		return "a config daemon"
	}
	return fmt.Sprintf("the config daemon of node %q", c.Node)
}

// apply ignores streams that do not hold the devices.
func (e StreamClosed) apply(g *Gate) {
	if h := g.live(); h != nil && h.session == e.Session {
		g.loseHolder(h)
	}
	g.endingSessions = slices.DeleteFunc(g.endingSessions, func(s string) bool { return s == e.Session })
}

func (g *Gate) loseHolder(h *holder) {
	delete(g.timers, TimerLease)
	if h.Hold > 0 {
		h.lost = true
		g.set(TimerHold, g.now.Add(h.Hold))
		return
	}
	g.holder = nil
	g.close()
}

func (e Heartbeat) apply(g *Gate) {
	h := g.live()
	switch {
	case h == nil || e.Session == "" || h.session != e.Session:
		g.do(HeartbeatReply{Call: e.Call, Code: codes.FailedPrecondition, Reason: "the session does not hold the devices; call EnableDevices again"})
	default:
		if h.Lease > 0 {
			g.set(TimerLease, g.now.Add(h.Lease))
		}
		g.do(HeartbeatReply{Call: e.Call, Code: codes.OK, Lease: h.Lease})
	}
}

func (g *Gate) leaseExpired() {
	h := g.holder
	g.loseHolder(h)
	g.end(h.session, codes.DeadlineExceeded, fmt.Sprintf("the lease of %s expired without a Heartbeat", h.Lease))
}
