package gate

import "time"

type step int

const (
	unregistered step = iota
	serving
	registering
	awaitingStream // for ListAndWatch
	streaming
	backingOff
)

// registration is kept up from the first Open on.
type registration struct {
	step          step
	pause         time.Duration
	streamStart   time.Time
	downAt        time.Time
	restarted     bool // kubelet, while the old stream was open
	failure       error
	serveFailed   bool // failure is of Serve
	stopScheduled bool
}

// A resource that never had a device does not appear in the Node object.
func (r *Resource) registerIfNeeded() {
	if r.step == unregistered && r.phase == Offered && len(r.snapshot) > 0 {
		r.step = serving
		r.do(Serve{})
	}
}

func (e Served) applyTo(r *Resource) {
	if r.step != serving {
		return
	}
	if e.Err != nil {
		r.failure, r.serveFailed = e.Err, true
		r.retry(r.pause)
		return
	}
	if r.serveFailed { // Register's stays until its next answer
		r.failure, r.serveFailed = nil, false
	}
	r.step = registering
	r.do(Register{})
}

func (e Registered) applyTo(r *Resource) {
	if r.step != registering {
		return // the stream came first
	}
	if r.failure = e.Err; e.Err != nil {
		r.retry(r.pause)
		return
	}
	r.step = awaitingStream
	r.set(TimerRegister, r.now.Add(r.pause))
}

// The kubelet has dropped the older stream.
func (e StreamUp) applyTo(r *Resource) {
	r.stream, r.firstList, r.delivered, r.anyDelivered, r.issued = e.Stream, true, false, false, nil
	r.stopScheduled = false
	r.step, r.failure, r.streamStart, r.restarted = streaming, nil, r.now, false
	delete(r.timers, TimerRegister)
}

// Without a stream the kubelet marks devices unhealthy.
func (e StreamDown) applyTo(r *Resource) {
	if e.Stream != r.stream || e.Stream == 0 {
		return
	}
	r.stream, r.firstList, r.delivered, r.anyDelivered, r.issued = 0, false, false, false, nil
	for id, x := range r.entries {
		if x.unhealthySince.IsZero() {
			r.entries[id] = entry{unhealthySince: r.now, everListed: x.everListed}
		}
	}
	r.downAt = r.now
	if r.now.Sub(r.streamStart) >= BackoffReset {
		r.pause = InitialBackoff
	}
	pause := r.pause
	if r.restarted {
		pause, r.pause, r.restarted = MinRegisterDelay, InitialBackoff, false
	}
	r.retry(pause)
}

// A new kubelet knows no resource and has removed the sockets, so only the
// minimum delay remains.
func (KubeletStarted) applyTo(r *Resource) {
	switch r.step {
	case backingOff, awaitingStream:
		r.pause, r.step = InitialBackoff, backingOff
		r.set(TimerRegister, latest(r.downAt.Add(MinRegisterDelay), r.now))
	case streaming:
		r.restarted = true
	}
}

func (r *Resource) retry(pause time.Duration) {
	r.step = backingOff
	r.set(TimerRegister, r.now.Add(pause))
}

func (r *Resource) reregister() {
	if r.step != backingOff && r.step != awaitingStream {
		return
	}
	r.pause = min(2*r.pause, MaxBackoff)
	r.step = serving
	r.do(Serve{})
}
