package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/actor"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/gate"
)

// RenewerState is the state of a Renewer.
type RenewerState string

// The states. In the last three nothing is tried until the next Enable.
const (
	StateIdle       RenewerState = "idle"        // nothing is desired, nothing held
	StateDisabling  RenewerState = "disabling"   // the devices are being withdrawn
	StateEnabling   RenewerState = "enabling"    // the claim is not accepted yet, or not again
	StateHeld       RenewerState = "held"        // the plugin has accepted a claim
	StateNobody     RenewerState = "nobody"      // nobody serves the control socket
	StateRefused    RenewerState = "refused"     // by the plugin; retried with exponential backoff
	StateSuperseded RenewerState = "superseded"  // another daemon took over
	StateDisabled   RenewerState = "disabled"    // somebody else had the devices withdrawn
	StateStale      RenewerState = "stood-still" // this process was stopped and lost them
)

// RenewerStatus is the status of a Renewer.
type RenewerStatus struct {
	State RenewerState
	Since time.Time // of State
	// Desired is the claim that should be held, Held the one that the plugin has
	// accepted. They differ while one takes over from the other.
	Desired, Held *gate.Claim
	Plugin        gate.Status // the last on the stream; with Held only
	// Code and Reason are the last failure; OK and empty without.
	Code   codes.Code
	Reason string
}

// status returns the status of the Renewer.
func (r *renewal) status() RenewerStatus {
	s := RenewerStatus{State: StateIdle, Desired: r.desired, Code: r.failure.code, Reason: r.failure.reason}
	if c := r.current; c != nil {
		s.Held, s.Plugin = &c.claim, c.status
		if c.unanswered != "" {
			s.Reason = c.unanswered
		}
	}
	switch {
	case r.desired == nil && (r.disabling || r.current != nil || len(r.waiters) > 0):
		s.State = StateDisabling
	case r.desired == nil:
	case r.halted != "":
		s.State = r.halted
	case r.current != nil && !r.current.withdrawn:
		s.State = StateHeld
	case r.retryState != "":
		s.State = r.retryState
	default:
		s.State = StateEnabling
	}
	s.Since = r.published.Since
	if s.State != r.published.State {
		s.Since = r.now
	}
	return s
}

// RenewerConfig configures a Renewer.
type RenewerConfig struct {
	Socket  string // of the plugin: its absolute path, or unix:///path
	Logger  *slog.Logger
	Metrics prometheus.Registerer // nil: none
}

// Renewer holds a claim on a plugin's devices for as long as its caller wants,
// over restarts of the plugin. Its methods are safe for concurrent use; they have
// effect while Run runs.
//
// It does not fight: when another daemon takes over, or somebody has the devices
// withdrawn, it stays without them until the next Enable, and reports so. The same
// when its process was stopped (SIGSTOP) and lost the devices by that: what the
// caller knows may be stale. The caller watches Changed.
type Renewer struct {
	config  RenewerConfig
	loop    *actor.Actor[event, action]
	status  atomic.Pointer[RenewerStatus]
	changed chan struct{}
	started atomic.Bool
	work    sync.WaitGroup

	held       prometheus.Gauge
	losses     *prometheus.CounterVec
	reconnects prometheus.Counter

	// The event loop owns these.
	machine renewal
	streams map[uint64]*connection
}

// NewRenewer returns a Renewer that holds nothing. Errors: the path is invalid,
// metrics cannot be registered.
func NewRenewer(c RenewerConfig) (*Renewer, error) {
	path, err := unixsock.ParseEndpoint(c.Socket)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	c.Socket, c.Logger = path, cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	r := &Renewer{
		config: c, loop: actor.New[event, action](), changed: make(chan struct{}, 1),
		machine: renewal{jitter: jitter}, streams: map[uint64]*connection{},
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleat_sriov_gate_held", Help: "1 while the device plugin has accepted that this daemon answers for its devices.",
		}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_sriov_gate_losses_total", Help: "Times that the devices were lost unexpectedly, by the gRPC code that the plugin gave, or connection.",
		}, []string{"code"}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleat_sriov_gate_reconnects_total", Help: "Attempts to enable the devices, after the first.",
		}),
	}
	r.status.Store(&RenewerStatus{State: StateIdle, Since: time.Now()})
	if c.Metrics != nil {
		if err := errors.Join(c.Metrics.Register(r.held), c.Metrics.Register(r.losses), c.Metrics.Register(r.reconnects)); err != nil {
			return nil, fmt.Errorf("register the metrics of the gate: %w", err)
		}
	}
	return r, nil
}

// jitter keeps renewers that failed together from trying again together.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// Enable asks for the devices from now on, and returns at once. The same claim
// again changes nothing, unless the Renewer has stopped trying. Another claim
// takes over from the one before without a withdrawal in between: a caller that
// changes the devices calls Disable first.
func (r *Renewer) Enable(c gate.Claim) { r.loop.Send(enableRequested{c}) }

// Disable asks for nothing from now on, and has the devices withdrawn from any
// holder, also another daemon: the caller is about to change them. It returns
// when the plugin has acknowledged that, when no plugin could (no error; Reason
// says why), or with an error: when ctx ends, when somebody enables meanwhile,
// when the socket cannot be used. After an error the devices may still be
// offered; an open stream is still being ended.
//
// A plugin that restarts meanwhile is waited for and asked again.
func (r *Renewer) Disable(ctx context.Context) (Withdrawal, error) {
	w, err := make(waiter, 1), errors.New("the renewer has ended")
	if r.loop.Send(disableRequested{w}) {
		select {
		case a := <-w:
			return a.result, a.err
		case <-ctx.Done():
			err = ctx.Err()
		case <-r.loop.Done():
		}
	}
	reason := cmp.Or(r.Status().Reason, "no answer yet")
	r.loop.Send(waiterGone{w})
	return Withdrawal{Reason: reason}, fmt.Errorf("the plugin at %s has not acknowledged that the devices are withdrawn (%s): %w", r.config.Socket, reason, err)
}

// Status returns the status. The caller does not change what it points to.
func (r *Renewer) Status() RenewerStatus { return *r.status.Load() }

// Changed gets a value after the status changed: several changes can be one.
// Heartbeats are no change. It is for one receiver.
func (r *Renewer) Changed() <-chan struct{} { return r.changed }

// Run runs until ctx ends, and returns its error. The streams then end as if the
// daemon were lost, so that a hold time covers the restart of a daemon; a caller
// that wants the devices withdrawn calls Disable before. It runs once.
func (r *Renewer) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return errors.New("a renewer runs once")
	}
	ctx, stop := context.WithCancel(ctx)
	step := func(now time.Time, e event) []action {
		if end, ended := e.(streamEnded); ended {
			delete(r.streams, end.stream)
		}
		actions := r.machine.step(now, e)
		if at := r.machine.next(); at.IsZero() {
			r.loop.Clear("next")
		} else {
			r.loop.Set("next", at, timerExpired{})
		}
		return actions
	}
	err := r.loop.Run(ctx, step, func(a action) { a.run(ctx, r) })
	stop()
	r.work.Wait()
	r.held.Set(0)
	r.status.Store(&RenewerStatus{State: StateIdle, Since: time.Now(), Reason: "the renewer has ended"})
	return err
}

// run stores the status, logs a new state and reports a change.
func (p publish) run(_ context.Context, r *Renewer) {
	s := p.status
	held := 0.0
	if s.Held != nil {
		held = 1
	}
	r.held.Set(held) // before the status, so that its readers find it counted
	before := *r.status.Swap(&s)
	if s.State != before.State || s.Reason != before.Reason {
		r.log(s)
	}
	before.Plugin.LeaseEnds = s.Plugin.LeaseEnds // a heartbeat is no change
	if !reflect.DeepEqual(before, s) {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

func (r *Renewer) log(s RenewerStatus) {
	const message = "control of the device plugin"
	logger := r.config.Logger.With("state", s.State, "socket", r.config.Socket)
	if c := s.Desired; c != nil {
		logger = logger.With("generation", c.Generation, "uid", c.UID, "config_hash", c.Hash)
	}
	if s.Reason == "" {
		logger.Info(message)
		return
	}
	logger.Warn(message, "reason", s.Reason)
}
