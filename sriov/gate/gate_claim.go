package gate

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	notControlledReason = "the plugin is not in controlled mode and always offers its devices; start it with --controlled-mode"
	shuttingDownReason  = "the plugin is shutting down"
)

// Session is a stream of EnableDevices whose claim was accepted.
type Session struct {
	Claim
	ID  string // unique
	End *End   // nil: it holds the devices, or its withdrawal is not finished
}

func (s *Session) end(code codes.Code, reason string) {
	if s.End == nil {
		s.End = &End{code, reason}
	}
}

// Enable takes the devices for a claim, or returns an *End. For a new hash, the
// caller reads its configuration first.
func (g *Gate) Enable(now time.Time, id string, claim Claim) (s *Session, err error) {
	g.step(now, func() {
		if err = g.refusal(claim); err != nil {
			return
		}
		if h := g.live(); h != nil {
			h.end(codes.Aborted, fmt.Sprintf("superseded: %s took over with generation %d", owner(claim), claim.Generation))
		}
		// The claim interrupts a withdrawal in progress.
		enabled := fmt.Sprintf("%s enabled the devices again, with generation %d", owner(claim), claim.Generation)
		g.abortPending(codes.Aborted, enabled, "superseded: "+enabled)
		s = &Session{Claim: claim, ID: id}
		g.holder, g.lost = s, false
		delete(g.timers, TimerHold)
		delete(g.timers, TimerLease)
		if claim.Lease > 0 {
			g.timers[TimerLease] = g.now.Add(claim.Lease)
		}
		if g.open {
			g.restrict(g.closed.with(claim.Closed)) // no function is opened before the scan
		}
		// The node might have changed before this call.
		g.rescan()
	})
	return s, err
}

func (g *Gate) live() *Session {
	if g.lost {
		return nil
	}
	return g.holder
}

func (g *Gate) refusal(c Claim) error {
	h := g.live()
	switch {
	case g.quitting:
		return &End{codes.Unavailable, shuttingDownReason}
	case !g.cfg.Controlled:
		return &End{codes.FailedPrecondition, notControlledReason}
	case c.Hash != "" && c.Hash != g.hash:
		return &End{codes.FailedPrecondition, fmt.Sprintf("config_hash is %q, but the plugin's configuration has the hash %q; retry when the new configuration has arrived", c.Hash, g.hash)}
	case h != nil && h.UID != "" && h.UID == c.UID && c.Generation < h.Generation:
		return &End{codes.FailedPrecondition, fmt.Sprintf("generation %d is older than generation %d, with which %s holds the devices for the same node state %s", c.Generation, h.Generation, owner(h.Claim), c.UID)}
	}
	return nil
}

func owner(c Claim) string {
	if c.Node == "" {
		return "a config daemon"
	}
	return fmt.Sprintf("the config daemon of node %q", c.Node)
}

// Disconnect reports the end of a stream, from either side.
func (g *Gate) Disconnect(now time.Time, s *Session) {
	g.step(now, func() {
		g.ending = slices.DeleteFunc(g.ending, func(other *Session) bool { return other == s })
		if g.live() == s {
			g.loseHolder()
		}
	})
}

func (g *Gate) loseHolder() {
	if h := g.holder; h.Hold > 0 {
		g.lost = true
		delete(g.timers, TimerLease)
		g.timers[TimerHold] = g.now.Add(h.Hold)
		return
	}
	g.close()
}

// Heartbeat renews the lease of a session.
func (g *Gate) Heartbeat(now time.Time, session string) (lease time.Duration, err error) {
	g.step(now, func() {
		h := g.live()
		if h == nil || session == "" || h.ID != session {
			err = &End{codes.FailedPrecondition, "the session does not hold the devices; call EnableDevices again"}
			return
		}
		if lease = h.Lease; lease > 0 {
			g.timers[TimerLease] = g.now.Add(lease)
		}
	})
	return lease, err
}

func (g *Gate) leaseExpired() {
	h := g.holder
	g.loseHolder()
	h.end(codes.DeadlineExceeded, fmt.Sprintf("the lease of %s expired without a Heartbeat", h.Lease))
}
