package gate

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
)

// enable gives the devices to a claim, or ends its stream.
func (c *Control) enable(n Claim) {
	if code, reason := c.refusal(n); code != codes.OK {
		c.end(n.Session, code, reason)
		return
	}
	if h := c.holder; h != nil {
		c.end(h.Session, codes.Aborted, fmt.Sprintf("superseded: %s took over with generation %d", whose(n), n.Generation))
	}
	// Who waits for a withdrawal must not be told that it is done.
	taken := fmt.Sprintf("%s enabled the devices again, with generation %d", whose(n), n.Generation)
	for _, session := range c.leaving {
		c.end(session, codes.Aborted, "superseded: "+taken)
	}
	for _, id := range c.pending {
		c.do(Disabled{Call: id, Code: codes.Aborted, Reason: taken})
	}
	c.leaving, c.pending = nil, nil
	c.holder, c.lost = &n, nil
	delete(c.timers, TimerHold)
	delete(c.timers, TimerLease)
	c.do(Accept{Session: n.Session})
	if n.Lease > 0 {
		c.set(TimerLease, c.now.Add(n.Lease))
	}
	// What is offered follows what the node has now, not what it had before it was configured.
	c.rescan()
}

func (c *Control) refusal(n Claim) (codes.Code, string) {
	h := c.holder
	switch {
	case c.quitting:
		return codes.Unavailable, "the plugin stops"
	case !c.cfg.Controlled:
		return codes.FailedPrecondition, "the plugin is not in controlled mode: it offers its devices by itself; start it with --controlled-mode"
	case n.Generation < 0:
		return codes.InvalidArgument, fmt.Sprintf("node_state_generation %d is negative", n.Generation)
	case n.Lease < 0:
		return codes.InvalidArgument, fmt.Sprintf("lease_duration %s is negative; leave it out for no lease", n.Lease)
	case n.Hold < 0:
		return codes.InvalidArgument, fmt.Sprintf("hold_time %s is negative; leave it out for none", n.Hold)
	case n.Hash != "" && n.Hash != c.hash:
		return codes.FailedPrecondition, fmt.Sprintf("the plugin's configuration has the hash %q, config_hash is %q; try again when the new one has arrived", c.hash, n.Hash)
	case h != nil && h.UID != "" && h.UID == n.UID && n.Generation < h.Generation:
		return codes.FailedPrecondition, fmt.Sprintf("generation %d is older than %d, which %s holds for the same node state %s", n.Generation, h.Generation, whose(*h), n.UID)
	}
	return codes.OK, ""
}

func whose(n Claim) string {
	if n.Node == "" {
		return "a config daemon"
	}
	return fmt.Sprintf("the config daemon of node %q", n.Node)
}

// closed: a stream of nobody's that ends says nothing.
func (c *Control) closed(session string) {
	if c.holder != nil && c.holder.Session == session {
		c.lose()
	}
	c.leaving = slices.DeleteFunc(c.leaving, func(s string) bool { return s == session })
}

// lose: the holder went unexpectedly.
func (c *Control) lose() {
	h := c.holder
	c.holder = nil
	delete(c.timers, TimerLease)
	if h.Hold > 0 {
		c.lost = h
		c.set(TimerHold, c.now.Add(h.Hold))
		return
	}
	c.close()
}

func (c *Control) heartbeat(e Heartbeat) {
	h := c.holder
	switch {
	case h == nil || e.Session == "" || h.Session != e.Session:
		c.do(Beat{Call: e.Call, Code: codes.FailedPrecondition, Reason: "the session does not hold the devices (any more); enable again"})
	case h.Lease == 0:
		c.do(Beat{Call: e.Call, Code: codes.FailedPrecondition, Reason: "the session has no lease; set lease_duration in EnableDevices"})
	default:
		c.set(TimerLease, c.now.Add(h.Lease))
		c.do(Beat{Call: e.Call, Code: codes.OK, Lease: h.Lease})
	}
}

func (c *Control) leaseOver() {
	h := c.holder
	c.lose()
	c.end(h.Session, codes.DeadlineExceeded, fmt.Sprintf("no Heartbeat for %s, the lease", h.Lease))
}
