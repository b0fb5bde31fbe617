package gate

import "time"

type step int

const (
	unregistered step = iota // and nobody wanted it yet
	serving                  // Serve is under way
	registering              // Register is under way
	awaiting                 // registered; the kubelet has not called ListAndWatch
	streaming
	pausing // before the next try
)

// registration is how the resource stands with the kubelet. From the first Open
// on it is kept for ever.
type registration struct {
	step      step
	pause     time.Duration // before the next try but one
	upAt      time.Time
	downAt    time.Time
	restarted bool  // the kubelet began anew while the old stream still stood
	failure   error // of the last try
	unserved  bool  // it is of serving, not of registering
	lingering bool
}

// registerFirst makes the resource known once it has something to offer: a
// resource that never had a device never comes into the Node object.
func (r *Resource) registerFirst() {
	if r.step == unregistered && r.phase == Offered && len(r.snapshot) > 0 {
		r.step = serving
		r.do(Serve{})
	}
}

func (r *Resource) registrationEvent(event ResourceEvent) {
	switch e := event.(type) {
	case Served:
		if r.step != serving {
			return
		}
		if e.Err != nil {
			r.failure, r.unserved = e.Err, true
			r.retry(r.pause)
			return
		}
		if r.unserved { // else what came of the last registration counts until the next has its answer
			r.failure, r.unserved = nil, false
		}
		r.step = registering
		r.do(Register{})
	case Registered:
		if r.step != registering {
			return // its stream came before the answer
		}
		if r.failure = e.Err; e.Err != nil {
			r.retry(r.pause)
			return
		}
		r.step = awaiting
		r.arm(TimerRegister, r.now.Add(r.pause))
	case StreamUp:
		r.streamUp(e.Stream)
		r.step, r.failure, r.upAt, r.restarted = streaming, nil, r.now, false
		delete(r.timers, TimerRegister)
	case StreamDown:
		r.lost(e.Stream)
	case KubeletStarted:
		r.kubeletStarted()
	}
}

func (r *Resource) lost(stream uint64) {
	if stream != r.stream || stream == 0 {
		return
	}
	r.streamDown()
	r.downAt = r.now
	if r.now.Sub(r.upAt) >= Steady {
		r.pause = LostPause
	}
	pause := r.pause
	if r.restarted {
		pause, r.pause, r.restarted = MinPause, LostPause, false
	}
	r.retry(pause)
}

// kubeletStarted: a new kubelet knows nobody and has removed the sockets; there
// is no reason to wait for longer than the pause that an old one needs.
func (r *Resource) kubeletStarted() {
	switch r.step {
	case pausing, awaiting:
		r.pause = LostPause
		at := r.downAt.Add(MinPause)
		if at.Before(r.now) {
			at = r.now
		}
		r.step = pausing
		r.arm(TimerRegister, at)
	case streaming:
		r.restarted = true
	}
}

func (r *Resource) retry(pause time.Duration) {
	r.step = pausing
	r.arm(TimerRegister, r.now.Add(pause))
}

func (r *Resource) registerAgain() {
	if r.step != pausing && r.step != awaiting {
		return
	}
	r.pause = min(2*r.pause, MaxPause)
	r.step = serving
	r.do(Serve{})
}
