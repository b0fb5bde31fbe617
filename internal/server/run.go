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

// ErrForced is in Run's error when a second signal cut the stopping short. What
// still runs is then left to the end of the process, which should follow.
var ErrForced = errors.New("a second signal forced the end")

// Part is one thing that the process does. All its functions may be nil.
type Part struct {
	Name string
	// Prepare makes the part usable for those behind it; it is done before
	// they begin. Its context ends when the process is told to stop.
	Prepare func(ctx context.Context) error
	// Start serves until Stop, or until the part has nothing more to do. An
	// error ends the process. Its context ends only after Stop.
	Start func(ctx context.Context) error
	// Stop makes Start return, lets running work end, and gives back what
	// Prepare took; ctx ends with the bound. It is called once for each part
	// whose Prepare succeeded.
	Stop func(ctx context.Context) error
}

// Options are those of Run; the zero value serves.
type Options struct {
	Logger  *slog.Logger     // nil: no log
	Bound   time.Duration    // for stopping everything; zero is 30 s
	Signals <-chan os.Signal // nil: SIGTERM and SIGINT of the process
}

// Run runs the parts until ctx ends, a signal comes, one of them fails, or all
// have ended by themselves. It returns nil when nothing failed. Nothing it
// started runs on when it returns, unless the error says so.
func Run(ctx context.Context, o Options, parts ...Part) error {
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
	r := &run{Options: o, failed: make(chan error, len(parts)), ended: make(chan struct{})}
	return r.run(ctx, parts)
}

type run struct {
	Options
	started []*started
	failed  chan error // of Start; room for all
	serving sync.WaitGroup
	ended   chan struct{} // closed when every Start has returned
}

// started is a part that was prepared.
type started struct {
	Part
	cancel context.CancelFunc
	ended  chan struct{} // closed when Start has returned
}

func (r *run) run(ctx context.Context, parts []Part) error {
	reason := r.start(ctx, parts)
	go func() {
		r.serving.Wait()
		close(r.ended)
	}()
	if reason == nil {
		reason = r.wait(ctx)
	}
	if errors.Is(reason, errAsked) {
		reason = nil
	}
	return r.stop(ctx, reason)
}

// errAsked: the end was asked for.
var errAsked = errors.New("asked to stop")

// start prepares and starts the parts in order, until one fails or the end is
// asked for.
func (r *run) start(ctx context.Context, parts []Part) error {
	for _, p := range parts {
		why, err := r.prepare(ctx, p)
		switch {
		case errors.Is(why, ErrForced):
			return why
		case err == nil:
			r.begin(ctx, p) // also when the end was asked for: so it is stopped
		case why != nil:
			err = notCancelled(err)
		}
		switch {
		case err != nil && errors.Is(why, errAsked):
			return err
		case err != nil || why != nil:
			return errors.Join(why, err)
		}
	}
	return nil
}

// prepare runs a part's Prepare. why is set when the process is to end for
// another reason, of which Prepare's context has told it; err is Prepare's.
func (r *run) prepare(ctx context.Context, p Part) (why, err error) {
	preparing, cancel := context.WithCancel(ctx)
	defer cancel()
	prepared := make(chan error, 1)
	go func() { prepared <- guarded(preparing, p.Name, "prepare", p.Prepare) }()
	select {
	case err = <-prepared:
		if ctx.Err() != nil {
			why = errAsked
		}
		return why, err
	case s := <-r.Signals:
		r.Logger.Info("stopping", "signal", s.String())
		why = errAsked
	case why = <-r.failed:
		r.Logger.Error("stopping, since a part failed", "error", why)
	}
	cancel()
	select {
	case err = <-prepared:
		return why, err
	case <-r.Signals: // Prepare does not end when it is told to
		if errors.Is(why, errAsked) {
			return ErrForced, nil
		}
		return errors.Join(why, ErrForced), nil
	}
}

func notCancelled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// begin starts a part that is prepared.
func (r *run) begin(ctx context.Context, p Part) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &started{Part: p, cancel: cancel, ended: make(chan struct{})}
	r.started = append(r.started, s)
	r.Logger.Debug("part starts", "part", p.Name)
	r.serving.Go(func() {
		defer close(s.ended)
		if err := guarded(ctx, p.Name, "run", p.Start); err != nil {
			r.failed <- err
		}
	})
}

// wait returns why the process is to end.
func (r *run) wait(ctx context.Context) error {
	select {
	case s := <-r.Signals:
		r.Logger.Info("stopping", "signal", s.String())
		return errAsked
	case err := <-r.failed:
		r.Logger.Error("stopping, since a part failed", "error", err)
		return err
	case <-ctx.Done():
		r.Logger.Info("stopping", "reason", context.Cause(ctx).Error())
		return errAsked
	case <-r.ended:
		select { // the last to end may have failed
		case err := <-r.failed:
			return err
		default:
			return errAsked
		}
	}
}

// stop stops the started parts in reverse, and adds their errors to reason.
func (r *run) stop(ctx context.Context, reason error) error {
	if errors.Is(reason, ErrForced) {
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
		return errors.Join(reason, ErrForced)
	}
}

// stopOne stops a part and waits for its Start to return, both within what is
// left of the bound and a little grace: a Stop that honours its context has to
// return from it.
func (r *run) stopOne(ctx context.Context, s *started) error {
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

// grace is what a part gets when the bound is over.
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

// failures collects what failed while stopping; a Start that returns its own
// cancelled context did what it should.
func (r *run) failures() (all error) {
	for {
		select {
		case err := <-r.failed:
			all = errors.Join(all, notCancelled(err))
		default:
			return all
		}
	}
}

// guarded calls a function of a part and says in its error which it was. A
// panic is an error too, so that the other parts are stopped in order.
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
