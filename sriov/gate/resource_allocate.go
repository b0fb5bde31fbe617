package gate

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

// Call is an Allocate or GetPreferredAllocation call. The kubelet allocates after
// the latter.
type Call struct {
	devices   []string
	withdrawn bool // a device, since the call was admitted
}

// Begin admits a call, before any work for it, or returns an *End.
func (g *Gate) Begin(now time.Time, name string, devices []string) (c *Call, err error) {
	err = &End{codes.FailedPrecondition, shuttingDownReason}
	g.on(now, name, func(r *resource) { c, err = r.begin(devices) })
	return c, err
}

// Check returns an *End if an admitted call must not answer OK.
func (g *Gate) Check(now time.Time, name string, c *Call) error {
	var err error = &End{codes.FailedPrecondition, shuttingDownReason}
	g.on(now, name, func(r *resource) { err = r.check(c) })
	return err
}

// End reports that the handler of an admitted call returned.
func (g *Gate) End(now time.Time, name string, c *Call) {
	g.on(now, name, func(r *resource) { r.finish(c) })
}

// A refused call counts as just ended: the kubelet is allocating until it reads
// the answer.
func (r *resource) begin(devices []string) (*Call, error) {
	if reason := r.refusalReason(devices); reason != "" {
		r.lastCall = r.now
		return nil, &End{codes.FailedPrecondition, reason}
	}
	c := &Call{devices: devices}
	r.calls[c] = true
	return c, nil
}

// check: a device withdrawn since the admission might be configured differently,
// even if it is offered again.
func (r *resource) check(c *Call) error {
	reason := r.refusalReason(c.devices)
	if reason == "" && c.withdrawn {
		reason = "the devices were withdrawn while the call was in flight; recreate the pod"
	}
	if reason != "" {
		return &End{codes.FailedPrecondition, reason}
	}
	return nil
}

func (r *resource) finish(c *Call) {
	if r.calls[c] {
		delete(r.calls, c)
		r.lastCall = r.now
	}
}

func (r *resource) isAllocating(concerned func(id string) bool) bool {
	for c := range r.calls {
		if slices.ContainsFunc(c.devices, concerned) {
			return true
		}
	}
	return false
}

func (r *resource) refusalReason(devices []string) string {
	if r.phase != Offered {
		return fmt.Sprintf("devices of this resource cannot be allocated now (phase %s)", r.phase)
	}
	for _, id := range devices {
		switch d, exists := r.snapshot[id]; {
		case !exists:
			return fmt.Sprintf("device %q does not exist", id)
		case !d.Healthy:
			return fmt.Sprintf("device %q is not healthy", id)
		case r.isClosed(id):
			return fmt.Sprintf("device %q is withdrawn: %s", id, r.closed.Reason(d))
		}
	}
	return ""
}
