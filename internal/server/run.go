package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

var errForced = errors.New("forced to exit by a second signal")

// abandoned is an error of Abandon.
type abandoned struct{ error }

func (a abandoned) Unwrap() error { return a.error }

// Abandon makes an error of Part.Run end the process at once: no part is stopped, and
// no call is answered any more.
func Abandon(err error) error { return abandoned{err} }

// Part is a component of the process. Its functions can be nil.
type Part struct {
	Name string
	// Prepare makes the part usable for later parts. Its context ends at the
	// stop of the process.
	Prepare func(ctx context.Context) error
	// Run serves until Stop, or until its work is done. An error ends the
	// process. Its context ends after Stop.
	Run func(ctx context.Context) error
	// Stop makes Run return, waits for in-flight work, and releases what
	// Prepare acquired, before the deadline of ctx. It is called once if
	// Prepare succeeded.
	Stop func(ctx context.Context) error
}

// options of run, with their defaults.
type options struct {
	Logger  *slog.Logger     // no log
	Bound   time.Duration    // for all stops; 30 s
	Signals <-chan os.Signal // SIGTERM and SIGINT
}

// run starts the parts in order, and stops them in reverse order when ctx ends,
// on a signal, when a part fails, or when all have ended. No part runs after it
// returns, unless the error says so.
func run(ctx context.Context, o options, parts ...Part) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Bound == 0 {
		o.Bound = 30 * time.Second
	}
	if o.Signals == nil {
		signals := make(chan os.Signal, 2)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		defer signal.Stop(signals)
		o.Signals = signals
	}
	r := &runner{options: o, forced: make(chan struct{})}
	r.force = sync.OnceFunc(func() { close(r.forced) })
	r.stopping, r.stop = context.WithCancelCause(ctx)
	defer r.stop(nil)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(ctx, done) })
	defer watching.Wait()
	defer close(done)

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.startAndStop(ctx, parts)
	}()
	select {
	case <-stopped:
	case <-r.forced:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

type runner struct {
	options
	stopping context.Context
	stop     context.CancelCauseFunc
	forced   chan struct{} // closed by force: a second signal, or Abandon
	force    func()
	started  []*started
	stopAt   time.Time
	serving  sync.WaitGroup

	mu  sync.Mutex
	err error // of all parts
}

type started struct {
	Part
	cancel context.CancelFunc
	ended  chan struct{}
}

// watch handles a signal, and forces the end on a second one.
func (r *runner) watch(ctx context.Context, done <-chan struct{}) {
	select {
	case s := <-r.Signals:
		r.Logger.Info("stopping", "signal", s.String())
		r.stop(errors.New(s.String()))
	case <-r.stopping.Done():
		if ctx.Err() != nil {
			r.Logger.Info("stopping", "reason", context.Cause(ctx).Error())
		}
	case <-done:
		return
	}
	select {
	case s := <-r.Signals:
		r.Logger.Warn("second signal, exiting immediately", "signal", s.String())
		r.add(errForced)
		r.force()
	case <-done:
	}
}

// startAndStop starts parts until one fails or the process is to stop, and
// stops the started ones in reverse order.
func (r *runner) startAndStop(ctx context.Context, parts []Part) {
	for _, p := range parts {
		if err := r.prepare(p); err != nil {
			r.fail(err)
			break
		}
		r.begin(ctx, p) // also if the process is to stop, so that the part is stopped
		if r.stopping.Err() != nil {
			break
		}
	}
	ended := make(chan struct{})
	go func() {
		r.serving.Wait()
		close(ended)
	}()
	select {
	case <-r.stopping.Done():
	case <-ended:
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), r.deadline())
	defer cancel()
	for i := len(r.started) - 1; i >= 0; i-- {
		r.add(r.stopOne(ctx, r.started[i]))
	}
}

// prepare leaves a Prepare that is still running at the deadline of the stop, such
// as one that reads a disk that does not answer.
func (r *runner) prepare(p Part) error {
	prepared := make(chan struct{})
	var err error
	go func() {
		defer close(prepared)
		err = guarded(r.stopping, p.Name, "prepare", p.Prepare)
	}()
	select {
	case <-prepared:
		return err
	case <-r.stopping.Done():
	}
	ctx, cancel := context.WithDeadline(context.Background(), r.deadline())
	defer cancel()
	if !within(ctx, prepared) {
		return fmt.Errorf("prepare %s: still running after stop", p.Name)
	}
	return err
}

// deadline of the whole stop, which begins with the first call.
func (r *runner) deadline() time.Time {
	if r.stopAt.IsZero() {
		r.stopAt = time.Now().Add(r.Bound)
	}
	return r.stopAt
}

func (r *runner) begin(ctx context.Context, p Part) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &started{Part: p, cancel: cancel, ended: make(chan struct{})}
	r.started = append(r.started, s)
	r.Logger.Debug("part started", "subsystem", p.Name)
	r.serving.Go(func() {
		defer close(s.ended)
		if err := guarded(ctx, p.Name, "run", p.Run); err != nil {
			if r.stopping.Err() == nil {
				r.Logger.Error("part failed, stopping", "subsystem", p.Name, "err", err)
			}
			r.fail(err)
			if _, ok := errors.AsType[abandoned](err); ok {
				r.force()
			}
		}
	})
}

// fail stops the process. During a stop context.Canceled is not an error.
func (r *runner) fail(err error) {
	if r.stopping.Err() == nil || !errors.Is(err, context.Canceled) {
		r.add(err)
		r.stop(err)
	}
}

func (r *runner) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = errors.Join(r.err, err)
}

// stopOne waits for Stop and the end of Run until the deadline of ctx plus
// grace.
func (r *runner) stopOne(ctx context.Context, s *started) error {
	begun := time.Now()
	var err error
	stopped := make(chan struct{})
	result := make(chan error, 1)
	go func() {
		defer close(stopped)
		result <- guarded(ctx, s.Name, "stop", s.Stop)
	}()
	if within(ctx, stopped) {
		err = <-result
	} else {
		err = fmt.Errorf("stop %s: timed out", s.Name)
	}
	s.cancel()
	if !within(ctx, s.ended) {
		err = errors.Join(err, fmt.Errorf("run %s: still running after stop", s.Name))
	}
	r.Logger.Debug("part stopped", "subsystem", s.Name, "duration", time.Since(begun), "err", err)
	return err
}

const grace = time.Second

// within waits until ctx ends, plus grace.
func within(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// guarded names the part in errors, and converts a panic, so that the other
// parts are stopped in order.
func guarded(ctx context.Context, part, what string, f func(context.Context) error) (err error) {
	if f == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s %s: panic: %v\n%s", what, part, v, debug.Stack())
		}
	}()
	if err := f(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", what, part, err)
	}
	return nil
}
