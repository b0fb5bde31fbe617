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

// errForced: a second signal ended the process before all parts had stopped.
var errForced = errors.New("a second signal forced the end")

// Part is one thing that the process does. Its functions can be nil.
type Part struct {
	Name string
	// Prepare makes the part usable for the next ones, which are prepared after
	// it. Its context ends when the process is to stop.
	Prepare func(ctx context.Context) error
	// Run serves until Stop, or until nothing is left to do. An error ends the
	// process. Its context ends after Stop.
	Run func(ctx context.Context) error
	// Stop makes Run return, waits for running work, and releases what Prepare
	// acquired; ctx has the bound. It is called once if Prepare succeeded.
	Stop func(ctx context.Context) error
}

// options are those of run; nil and zero have defaults.
type options struct {
	Logger  *slog.Logger     // no log
	Bound   time.Duration    // for stopping all parts; 30 s
	Signals <-chan os.Signal // SIGTERM and SIGINT
}

// run starts the parts in order, and stops them in reverse when ctx ends, a signal
// comes, one of them fails, or all have ended. It returns nil when nothing failed.
// Nothing that it started runs on when it returns, unless the error says so.
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
	r := &runner{options: o, failed: make(chan error, len(parts)), ended: make(chan struct{})}
	return r.run(ctx, parts)
}

type runner struct {
	options
	started []*started
	failed  chan error // of Run; room for all
	serving sync.WaitGroup
	ended   chan struct{} // closed when every Run has returned
}

// started is a part that was prepared.
type started struct {
	Part
	cancel context.CancelFunc
	ended  chan struct{} // closed when Run has returned
}

func (r *runner) run(ctx context.Context, parts []Part) error {
	reason := r.start(ctx, parts)
	go func() {
		r.serving.Wait()
		close(r.ended)
	}()
	if reason == nil {
		reason = r.wait(ctx)
	}
	if errors.Is(reason, errAskedToStop) {
		reason = nil
	}
	return r.stop(ctx, reason)
}

var errAskedToStop = errors.New("asked to stop")

// start prepares and starts the parts in order, until one fails or the process is
// to stop.
func (r *runner) start(ctx context.Context, parts []Part) error {
	for _, p := range parts {
		why, err := r.prepare(ctx, p)
		switch {
		case errors.Is(why, errForced):
			return why
		case err == nil:
			r.begin(ctx, p) // also when the process is to stop, so that the part is stopped
		case why != nil:
			err = notCancelled(err)
		}
		switch {
		case err != nil && errors.Is(why, errAskedToStop):
			return err
		case err != nil || why != nil:
			return errors.Join(why, err)
		}
	}
	return nil
}

// prepare runs a part's Prepare, whose error is err. why is set when the process
// is to end for another reason; it has cancelled Prepare's context.
func (r *runner) prepare(ctx context.Context, p Part) (why, err error) {
	preparing, cancel := context.WithCancel(ctx)
	defer cancel()
	prepared := make(chan error, 1)
	go func() { prepared <- guarded(preparing, p.Name, "prepare", p.Prepare) }()
	select {
	case err = <-prepared:
		if ctx.Err() != nil {
			why = errAskedToStop
		}
		return why, err
	case s := <-r.Signals:
		r.Logger.Info("stopping", "signal", s.String())
		why = errAskedToStop
	case why = <-r.failed:
		r.Logger.Error("stopping, since a part failed", "error", why)
	}
	cancel()
	select {
	case err = <-prepared:
		return why, err
	case <-r.Signals: // Prepare ignores its context
		if errors.Is(why, errAskedToStop) {
			return errForced, nil
		}
		return errors.Join(why, errForced), nil
	}
}

func notCancelled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// begin starts a prepared part.
func (r *runner) begin(ctx context.Context, p Part) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &started{Part: p, cancel: cancel, ended: make(chan struct{})}
	r.started = append(r.started, s)
	r.Logger.Debug("part starts", "part", p.Name)
	r.serving.Go(func() {
		defer close(s.ended)
		if err := guarded(ctx, p.Name, "run", p.Run); err != nil {
			r.failed <- err
		}
	})
}

// wait returns why the process is to end.
func (r *runner) wait(ctx context.Context) error {
	select {
	case s := <-r.Signals:
		r.Logger.Info("stopping", "signal", s.String())
		return errAskedToStop
	case err := <-r.failed:
		r.Logger.Error("stopping, since a part failed", "error", err)
		return err
	case <-ctx.Done():
		r.Logger.Info("stopping", "reason", context.Cause(ctx).Error())
		return errAskedToStop
	case <-r.ended:
		select { // the last to end may have failed
		case err := <-r.failed:
			return err
		default:
			return errAskedToStop
		}
	}
}

// stop stops the started parts in reverse, and adds their errors to reason.
func (r *runner) stop(ctx context.Context, reason error) error {
	if errors.Is(reason, errForced) {
		return reason
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Bound)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var all error
		for i := len(r.started) - 1; i >= 0; i-- {
			all = errors.Join(all, r.stopOne(ctx, r.started[i]))
		}
		done <- all
	}()
	select {
	case err := <-done:
		return errors.Join(reason, err, r.failures())
	case s := <-r.Signals:
		r.Logger.Warn("forced to end at once", "signal", s.String())
		return errors.Join(reason, errForced)
	}
}

// stopOne stops a part and waits for its Run to return, both within the rest of
// the bound and a grace in which a Stop that honours its context returns.
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
		err = fmt.Errorf("stop %s: it did not return within the bound", s.Name)
	}
	s.cancel()
	if !within(ctx, s.ended) {
		err = errors.Join(err, fmt.Errorf("run %s: it goes on after it was stopped", s.Name))
	}
	r.Logger.Debug("part stopped", "part", s.Name, "duration", time.Since(begun), "error", err)
	return err
}

// grace is what a part gets after the bound.
const grace = time.Second

// within waits for done until ctx has ended, and the grace after it.
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

// failures returns the errors of Run while stopping, without those of cancelled
// contexts.
func (r *runner) failures() (all error) {
	for {
		select {
		case err := <-r.failed:
			all = errors.Join(all, notCancelled(err))
		default:
			return all
		}
	}
}

// guarded calls a function of a part and names it in the error. It turns a panic
// into an error, so that the other parts are stopped in order.
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
