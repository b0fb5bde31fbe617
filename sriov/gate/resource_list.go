package gate

import (
	"cmp"
	"slices"
	"time"
)

type listing struct {
	stream       uint64 // 0: none
	entries      map[string]entry
	seq          uint64
	issued       []Device // on this stream
	firstList    bool     // none issued on this stream yet
	anyDelivered bool
	delivered    bool
}

type entry struct {
	healthy    bool
	everListed bool
	// When the kubelet got it as unhealthy; zero: unknown.
	unhealthySince time.Time
}

// A device that leaves becomes unhealthy first, and stays while a call can be
// allocating it.
func (r *Resource) list() {
	if r.phase == Withdrawing && len(r.calls) > 0 {
		if _, waiting := r.timers[TimerDrain]; waiting && !r.firstList {
			return
		}
	}
	if r.phase == Offered {
		for id := range r.snapshot {
			// Entries with the same health keep their since.
			healthy := r.isOffered(id)
			if e, listed := r.entries[id]; !listed || e.healthy != healthy {
				r.entries[id] = entry{healthy: healthy, everListed: e.everListed}
			}
		}
	}
	var next time.Time
	for id, e := range r.entries {
		if _, there := r.snapshot[id]; there && r.phase == Offered {
			continue
		}
		if !e.everListed {
			delete(r.entries, id)
			continue
		}
		if e.healthy {
			e = entry{everListed: true}
			if r.stream == 0 {
				e.unhealthySince = r.downAt // unhealthy for the kubelet since the stream ended
			}
			r.entries[id] = e
		}
		switch at, known := r.removableAt(e); {
		case r.phase == Withdrawing:
			// A paused kubelet reads all queued lists at once, so it must first
			// confirm the list without a healthy device.
		case known && !r.now.Before(at):
			delete(r.entries, id)
		case known && at.After(next):
			next = at
		}
	}
	if !next.IsZero() && !r.timers[TimerRemove].Equal(next) {
		r.set(TimerRemove, next)
	}
	r.issueList()
}

func (r *Resource) removableAt(e entry) (time.Time, bool) {
	if len(r.calls) > 0 || e.unhealthySince.IsZero() {
		return time.Time{}, false
	}
	from := latest(e.unhealthySince, r.lastCall)
	if r.phase == Withdrawn {
		from = latest(from, r.withdrawnAt)
	}
	return from.Add(QuietPeriod), true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (r *Resource) issueList() {
	if r.stream == 0 {
		return
	}
	devices := make([]Device, 0, len(r.entries))
	for id, e := range r.entries {
		devices = append(devices, Device{ID: id, Healthy: e.healthy})
	}
	slices.SortFunc(devices, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	if !r.firstList && slices.Equal(devices, r.issued) {
		return
	}
	if len(devices) == 0 {
		// Also for the first list of a stream: the kubelet might be allocating.
		if len(r.calls) > 0 {
			return
		}
		if at := r.lastCall.Add(QuietPeriod); r.now.Before(at) {
			if !r.timers[TimerRemove].Equal(at) {
				r.set(TimerRemove, at)
			}
			return
		}
	}
	r.seq++
	for id, e := range r.entries {
		e.everListed = true
		r.entries[id] = e
	}
	r.issued, r.firstList, r.delivered = devices, false, false
	r.do(Send{Stream: r.stream, Seq: r.seq, Devices: slices.Clone(devices)})
}

func (e Sent) applyTo(r *Resource) {
	if e.Stream != r.stream || e.Seq != r.seq || r.delivered {
		return
	}
	r.delivered, r.anyDelivered = true, true
	for _, d := range r.issued {
		if e, listed := r.entries[d.ID]; listed && !d.Healthy && !e.healthy && e.unhealthySince.IsZero() {
			e.unhealthySince = r.now
			r.entries[d.ID] = e
		}
	}
}

// noneHealthy is about the kubelet's list.
func (r *Resource) noneHealthy() bool {
	if r.stream == 0 {
		return true
	}
	return r.delivered && !slices.ContainsFunc(r.issued, func(d Device) bool { return d.Healthy })
}
