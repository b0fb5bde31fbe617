package gate

import "time"

type step int

const (
	unregistered step = iota
	registering
	awaitingStream // for ListAndWatch
	streaming
	backingOff
)

// registration is kept up from the first opening on.
type registration struct {
	step      step
	pause     time.Duration
	downAt    time.Time // of the last stream
	restarted bool      // kubelet, while the old stream was open
	streamed  bool      // the kubelet has called ListAndWatch
	failure   error
}

// register registers the resource once it is offered with a device: one that never
// had a device does not appear in the Node object. Later it registers again when
// the pause is over.
func (r *resource) register() {
	due := r.timers.due(TimerRegister, r.now) && (r.step == backingOff || r.step == awaitingStream)
	switch {
	case due:
		r.pause = min(2*r.pause, MaxBackoff)
	case r.step == unregistered && r.phase == Offered && len(r.snapshot) > 0:
	default:
		return
	}
	r.step = registering
	r.driver.Register(r.name)
}

// Registered answers Register.
func (g *Gate) Registered(now time.Time, name string, err error) {
	g.on(now, name, func(r *resource) { r.registered(err) })
}

// KubeletStarted reports that the kubelet created a new socket.
func (g *Gate) KubeletStarted(now time.Time) {
	g.step(now, func() {
		for _, r := range g.resources {
			if r.phase != Stopped {
				r.kubeletStarted()
			}
		}
	})
}

func (r *resource) registered(err error) {
	if r.step != registering {
		return // the stream came first
	}
	if r.failure = err; err != nil {
		r.retry(r.pause)
		return
	}
	r.step = awaitingStream
	r.timers[TimerRegister] = r.now.Add(r.pause)
}

// A new kubelet knows no resource and has removed the sockets, so only the
// minimum delay remains.
func (r *resource) kubeletStarted() {
	switch r.step {
	case backingOff, awaitingStream:
		r.pause, r.step = InitialBackoff, backingOff
		r.timers[TimerRegister] = latest(r.downAt.Add(MinRegisterDelay), r.now)
	case streaming:
		r.restarted = true
	}
}

func (r *resource) retry(pause time.Duration) {
	r.step = backingOff
	r.timers[TimerRegister] = r.now.Add(pause)
}
