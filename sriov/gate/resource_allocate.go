package gate

import (
	"fmt"

	"google.golang.org/grpc/codes"
)

// begin admits a call, or refuses it. What it asks for must be offered now.
func (r *Resource) begin(e AllocateBegin) {
	if reason := r.whyNot(e.Devices); reason != "" {
		r.refuse(e.Call, reason)
		return
	}
	r.calls[e.Call] = call{epoch: r.epoch, devices: e.Devices}
	r.do(Admit{Call: e.Call})
}

// check looks again before a call answers OK: what was admitted before a
// withdrawal may have been configured anew since, even if it is offered again.
func (r *Resource) check(id uint64) {
	c, running := r.calls[id]
	if !running {
		r.refuse(id, "the call was not admitted")
		return
	}
	reason := r.whyNot(c.devices)
	if reason == "" && c.epoch != r.epoch {
		reason = "the devices were withdrawn meanwhile"
	}
	if reason != "" {
		r.do(Refuse{Call: id, Code: codes.FailedPrecondition, Reason: reason})
		return
	}
	r.do(Approve{Call: id})
}

func (r *Resource) whyNot(devices []string) string {
	if r.phase != Offered {
		return fmt.Sprintf("the devices of this resource are not offered now (%s)", r.phase)
	}
	for _, id := range devices {
		switch healthy, there := r.snapshot[id]; {
		case !there:
			return fmt.Sprintf("device %q is not there (any more)", id)
		case !healthy:
			return fmt.Sprintf("device %q is not healthy", id)
		}
	}
	return ""
}

// refuse ends a call that was not admitted. It counts as one that just ended:
// the kubelet is in the middle of its allocation until it reads the answer.
func (r *Resource) refuse(id uint64, reason string) {
	r.lastCall = r.now
	r.do(Refuse{Call: id, Code: codes.FailedPrecondition, Reason: reason})
}
