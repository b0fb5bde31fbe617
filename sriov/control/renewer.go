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

	"github.com/cleatproject/cleat/internal/monitor"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/gate"
)

// RenewerState is a Renewer's state.
type RenewerState string

// In the last three it waits for the next Enable.
const (
	StateIdle       RenewerState = "idle" // no claim
	StateDisabling  RenewerState = "disabling"
	StateEnabling   RenewerState = "enabling"    // not accepted yet, or lost
	StateHeld       RenewerState = "held"        // accepted
	StateNotServed  RenewerState = "nobody"      // no process serves the socket
	StateRefused    RenewerState = "refused"     // retried with exponential backoff; the claim before can be held
	StateSuperseded RenewerState = "superseded"  // by another daemon
	StateDisabled   RenewerState = "disabled"    // by another client
	StateStale      RenewerState = "stood-still" // this process was suspended and lost the devices
)

// RenewerStatus is a Renewer's status.
type RenewerStatus struct {
	State RenewerState
	Since time.Time // of State
	// Desired and accepted claim; they differ during a takeover.
	Desired, Held *gate.Claim
	Plugin        gate.Status // last one; valid only with Held
	// Of the last failure.
	Code   codes.Code
	Reason string
}

func (r *renewal) status() RenewerStatus {
	s := RenewerStatus{State: StateIdle, Desired: r.desired, Code: r.failure.code, Reason: r.failure.reason}
	if c := r.current; c != nil {
		s.Held, s.Plugin = &c.claim, c.status
	}
	switch {
	case r.desired == nil && (r.disabling || r.current != nil || len(r.waiters) > 0):
		s.State = StateDisabling
	case r.desired == nil:
	case r.halted != "":
		s.State = r.halted
	case r.current != nil && !r.current.withdrawn && r.retryState != StateRefused:
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
	Socket  string // absolute path, or unix:///path
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Renewer holds a claim on a plugin's devices across restarts of the plugin.
// Methods are safe for concurrent use, and have effect while Run runs.
//
// If another daemon takes over, or another client has the devices withdrawn,
// the Renewer does not compete: it reports its state and waits for the next
// Enable. It does the same if its process was suspended (SIGSTOP) and lost the
// devices: the caller's view of the node might be stale.
type Renewer struct {
	config  RenewerConfig
	monitor *monitor.Monitor
	status  atomic.Pointer[RenewerStatus]
	changed chan struct{}
	started atomic.Bool
	work    sync.WaitGroup

	held       prometheus.Gauge
	losses     *prometheus.CounterVec
	reconnects prometheus.Counter

	// Guarded by the monitor.
	machine renewal
	ctx     context.Context
	opened  int // streams
}

// NewRenewer returns a Renewer without a claim.
func NewRenewer(c RenewerConfig) (*Renewer, error) {
	path, err := unixsock.ParseEndpoint(c.Socket)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	c.Socket, c.Logger = path, cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	r := &Renewer{
		config: c, changed: make(chan struct{}, 1), machine: renewal{jitter: jitter},
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleat_sriov_gate_held", Help: "1 while the device plugin has accepted this daemon's claim on its devices.",
		}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_sriov_gate_losses_total", Help: "Unexpected losses of the devices, by the plugin's gRPC code, or connection.",
		}, []string{"code"}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleat_sriov_gate_reconnects_total", Help: "Attempts to enable the devices, without the first one.",
		}),
	}
	r.monitor = monitor.New(r.machine.next, func(now time.Time) { r.apply(now, func() {}) })
	r.status.Store(&RenewerStatus{State: StateIdle, Since: time.Now()})
	if c.Metrics != nil {
		if err := errors.Join(c.Metrics.Register(r.held), c.Metrics.Register(r.losses), c.Metrics.Register(r.reconnects)); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return r, nil
}

// jitter: renewers that failed together should not retry together.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// Enable sets the desired claim without waiting. The same claim has no effect,
// unless the Renewer has stopped retrying. Another claim takes over without a
// withdrawal: a caller that changes devices calls Disable first.
func (r *Renewer) Enable(c gate.Claim) { r.step(func() { r.machine.enable(c) }) }

// Disable clears the desired claim and withdraws the devices from any holder,
// because the caller is about to change them. It returns when the plugin has
// acknowledged, or with a Reason if no plugin could. It fails when ctx ends,
// after a later Enable, or if the socket cannot be used. The devices might then
// still be offered.
//
// If the plugin restarts, it is called again.
func (r *Renewer) Disable(ctx context.Context) (gate.Withdrawal, error) {
	w := &disableCall{}
	r.step(func() { r.machine.disable(w) })
	err := r.monitor.Await(ctx, func() bool { return w.done })
	if err == nil {
		return w.result, w.err
	}
	if errors.Is(err, monitor.ErrClosed) {
		err = errors.New("the renewer has stopped")
	}
	reason := cmp.Or(r.Status().Reason, "no answer yet")
	r.step(func() { r.machine.cancel(w) })
	return gate.Withdrawal{Reason: reason}, fmt.Errorf("the plugin at %s has not acknowledged the withdrawal of its devices (%s): %w", r.config.Socket, reason, err)
}

// Status returns the status, which must not be modified.
func (r *Renewer) Status() RenewerStatus { return *r.status.Load() }

// Changed receives a value after status changes, which can be merged.
// Heartbeats are not changes. Only one receiver is allowed.
func (r *Renewer) Changed() <-chan struct{} { return r.changed }

// Run runs until ctx ends. Open streams then break, so that the hold time
// covers a daemon restart; call Disable first to withdraw the devices. Run can
// be called once.
func (r *Renewer) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return errors.New("a Renewer can run only once")
	}
	r.step(func() { r.ctx, r.machine.dialer = ctx, r })
	<-ctx.Done()
	r.monitor.Close()
	r.work.Wait()
	r.held.Set(0)
	r.status.Store(&RenewerStatus{State: StateIdle, Since: time.Now(), Reason: "the renewer has stopped"})
	return context.Cause(ctx)
}

func (r *Renewer) step(event func()) {
	r.monitor.Do(func(now time.Time) { r.apply(now, event) })
}

// apply runs an event of the state machine.
func (r *Renewer) apply(now time.Time, event func()) {
	if r.ctx == nil || r.ctx.Err() == nil { // otherwise the streams break
		r.machine.step(now, event)
		r.publish()
	}
}

func (r *Renewer) publish() {
	s := r.machine.published
	held := 0.0
	if s.Held != nil {
		held = 1
	}
	r.held.Set(held) // before the status
	before := *r.status.Swap(&s)
	if s.State != before.State || s.Reason != before.Reason {
		r.log(s)
	}
	before.Plugin.LeaseEnds = s.Plugin.LeaseEnds // heartbeats are no change
	if !reflect.DeepEqual(before, s) {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

func (r *Renewer) log(s RenewerStatus) {
	logger := r.config.Logger.With("state", s.State, "socket", r.config.Socket)
	if c := s.Desired; c != nil {
		logger = logger.With("generation", c.Generation, "uid", c.UID, "config_hash", c.Hash)
	}
	if s.Reason == "" {
		logger.Info("device plugin claim changed")
		return
	}
	logger.Warn("device plugin claim not accepted", "reason", s.Reason)
}
