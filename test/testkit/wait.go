package testkit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// Timeout is how long tests wait for an event before they fail. No passing test
// waits this long.
const Timeout = time.Minute

// Context returns a context that ends after Timeout. Unlike t.Context() it can
// be used in cleanup functions.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Timeout)
	t.Cleanup(cancel)
	return ctx
}

// Eventually polls until a condition holds. Use it only where no event reports
// the condition.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	EventuallyNil(t, what, func() error {
		if !holds() {
			return errNotYet
		}
		return nil
	})
}

var errNotYet = errors.New("not so")

// EventuallyNil is Eventually for a condition that returns why it does not
// hold.
func EventuallyNil(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := Poll(Timeout, nil, check); err != nil {
		t.Fatalf("not within %s: %s: %v", Timeout, what, err)
	}
}

// Poll calls check until it returns nil, stop is closed or bound has passed,
// and returns the last error.
func Poll(bound time.Duration, stop <-chan struct{}, check func() error) error {
	deadline := time.Now().Add(bound)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-stop:
			return err
		case <-time.After(pause):
		}
	}
}

// Receive returns the next element of a channel, or the zero value once the
// channel is closed.
func Receive[V any](t testing.TB, what string, c <-chan V) V {
	t.Helper()
	return ReceiveUntil(t, what, c, func(V) bool { return true })
}

// ReceiveUntil receives until wanted accepts an element, and returns it. A
// channel that is closed before fails the test, unless its zero value is
// wanted.
func ReceiveUntil[V any](t testing.TB, what string, c <-chan V, wanted func(V) bool) V {
	t.Helper()
	deadline := time.NewTimer(Timeout)
	defer deadline.Stop()
	for {
		select {
		case v, open := <-c:
			if wanted(v) {
				return v
			}
			if !open {
				t.Fatalf("the channel was closed before: %s", what)
			}
			t.Logf("before %s: %+v", what, v)
		case <-deadline.C:
			t.Fatalf("not within %s: %s", Timeout, what)
		}
	}
}

// Go runs a function, such as a server loop, until stop is called or the test
// ends. stop cancels the function's context and waits until it returns; an
// error other than context.Canceled fails the test.
func Go(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		case <-time.After(Timeout):
			t.Errorf("still running %s after its context was canceled", Timeout)
		}
	})
	t.Cleanup(stop)
	return stop
}
