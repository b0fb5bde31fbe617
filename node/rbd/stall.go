package rbd

import (
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/volume/access"
)

// stall is since when a device with requests in flight completed none.
type stall struct {
	completed uint64
	since     time.Time
}

// waiting returns an error if operations on an image, or the requests of its
// devices, wait for the cluster longer than usual.
func (a *Attacher) waiting(l access.RBD, devices []krbd.Device) error {
	usual := a.config.Timeout / 3
	if err := a.ops.Waiting(name(l.Pool, l.Image), usual); err != nil {
		return errs.Errorf(errs.Unavailable, "%w: it does not answer, or its pool is full", err)
	}
	for _, d := range devices {
		if waited := a.stalled(d); waited > usual {
			return errs.Errorf(errs.Unavailable, "%d requests of %s have waited %v for the Ceph cluster: it does not answer, or its pool is full", d.InFlight, d.Path, waited.Round(time.Second))
		}
	}
	return nil
}

// stalled returns how long a device has completed none of its requests, as
// earlier calls saw it.
func (a *Attacher) stalled(d krbd.Device) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.InFlight == 0 {
		delete(a.stalls, d.Instance)
		return 0
	}
	have, known := a.stalls[d.Instance]
	if !known || have.completed != d.Completed {
		have = stall{completed: d.Completed, since: time.Now()}
		a.stalls[d.Instance] = have
	}
	return time.Since(have.since)
}
