package gate

import (
	"cmp"
	"slices"
	"time"
)

// Stream is a call of ListAndWatch.
type Stream struct {
	Seq  uint64   // of List; 0: none yet
	List []Device // newest, sorted by id

	since time.Time
	sent  uint64 // the last list that was passed to the stream while it was the newest
}

// Listen reports a call of ListAndWatch; nil: the resource has stopped.
func (g *Gate) Listen(now time.Time, name string) (s *Stream) {
	g.on(now, name, func(r *resource) { s = r.listen() })
	return s
}

// Sent reports that a list was passed to a stream.
func (g *Gate) Sent(now time.Time, name string, s *Stream, seq uint64) {
	g.on(now, name, func(r *resource) { r.sent(s, seq) })
}

// Hangup reports the end of a stream.
func (g *Gate) Hangup(now time.Time, name string, s *Stream) {
	g.on(now, name, func(r *resource) { r.hangup(s) })
}

// hasLast reports whether the kubelet got the newest list.
func (s *Stream) hasLast() bool { return s.sent > 0 && s.sent == s.Seq }

type entry struct {
	healthy    bool
	everListed bool
	// When the kubelet got it as unhealthy; zero: unknown.
	unhealthySince time.Time
}

// A device that leaves becomes unhealthy first, and stays while a call can be
// allocating it.
func (r *resource) list() {
	if r.phase == Withdrawing && len(r.calls) > 0 {
		if _, waiting := r.timers[TimerDrain]; waiting && (r.stream == nil || r.stream.Seq > 0) {
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
			if r.stream == nil {
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
	if !next.IsZero() {
		r.timers[TimerRemove] = next
	}
	r.issueList()
}

func (r *resource) removableAt(e entry) (time.Time, bool) {
	if len(r.calls) > 0 || e.unhealthySince.IsZero() {
		return time.Time{}, false
	}
	from := latest(e.unhealthySince, r.lastCall)
	if r.phase == Withdrawn {
		from = latest(from, r.withdrawnAt)
	}
	return from.Add(QuietPeriod), true
}

func (r *resource) issueList() {
	s := r.stream
	if s == nil {
		return
	}
	devices := make([]Device, 0, len(r.entries))
	for id, e := range r.entries {
		devices = append(devices, Device{ID: id, Healthy: e.healthy})
	}
	slices.SortFunc(devices, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	if s.Seq > 0 && slices.Equal(devices, s.List) {
		return
	}
	if len(devices) == 0 {
		// Also for the first list of a stream: the kubelet might be allocating.
		if len(r.calls) > 0 {
			return
		}
		if at := r.lastCall.Add(QuietPeriod); r.now.Before(at) {
			r.timers[TimerRemove] = at
			return
		}
	}
	for id, e := range r.entries {
		e.everListed = true
		r.entries[id] = e
	}
	s.Seq, s.List = s.Seq+1, devices
}

// listen: the kubelet has dropped the older stream.
func (r *resource) listen() *Stream {
	delete(r.timers, TimerStop)
	delete(r.timers, TimerRegister)
	r.stream, r.streamed = &Stream{since: r.now}, true
	r.step, r.failure, r.restarted = streaming, nil, false
	return r.stream
}

func (r *resource) sent(s *Stream, seq uint64) {
	if s != r.stream || seq != s.Seq || s.sent == seq {
		return
	}
	s.sent = seq
	for _, d := range s.List {
		if e, listed := r.entries[d.ID]; listed && !d.Healthy && !e.healthy && e.unhealthySince.IsZero() {
			e.unhealthySince = r.now
			r.entries[d.ID] = e
		}
	}
}

// hangup: without a stream the kubelet marks devices unhealthy.
func (r *resource) hangup(s *Stream) {
	if s != r.stream {
		return
	}
	r.stream, r.downAt = nil, r.now
	for id, e := range r.entries {
		if e.unhealthySince.IsZero() {
			r.entries[id] = entry{unhealthySince: r.now, everListed: e.everListed}
		}
	}
	if r.now.Sub(s.since) >= BackoffReset {
		r.pause = InitialBackoff
	}
	pause := r.pause
	if r.restarted {
		pause, r.pause, r.restarted = MinRegisterDelay, InitialBackoff, false
	}
	r.retry(pause)
}

// isListed reports whether the kubelet can have one of the devices as healthy.
func (r *resource) isListed(concerned func(id string) bool) bool {
	s := r.stream
	return s != nil && (!s.hasLast() || slices.ContainsFunc(s.List, func(d Device) bool { return d.Healthy && concerned(d.ID) }))
}
