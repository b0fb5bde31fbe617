package server

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestDrainWaitsForRunningCalls(t *testing.T) {
	r := newRig(t, "error")
	inside, leave := make(chan struct{}), make(chan struct{})
	r.service.answer = func(context.Context) error { close(inside); <-leave; return nil }
	call := make(chan error, 1)
	go func() { call <- r.check(context.WithoutCancel(t.Context())) }()
	<-inside
	drained := make(chan error, 1)
	go func() { drained <- r.server.Drain(t.Context()) }()
	for { // new clients are turned away at once
		c, err := net.Dial("unix", r.path)
		if err != nil {
			break
		}
		_ = c.Close()
		runtime.Gosched()
	}
	select {
	case err := <-drained:
		t.Errorf("Drain returned before the call ended: %v", err)
	default:
	}
	close(leave)
	if err := errors.Join(<-call, <-drained); err != nil {
		t.Error(err)
	}
}

func TestDrainCancelsAtDeadline(t *testing.T) {
	r := newRig(t, "error")
	inside := make(chan struct{})
	r.service.answer = func(ctx context.Context) error { close(inside); <-ctx.Done(); return ctx.Err() }
	call := make(chan error, 1)
	go func() { call <- r.check(context.WithoutCancel(t.Context())) }()
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.server.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 calls canceled") {
		t.Errorf("got %v", err)
	}
	if err := <-call; err == nil {
		t.Error("the call succeeded")
	}
}

func TestDrainIsBoundedEvenWhenHandlersAreStuck(t *testing.T) {
	r := newRig(t, "error")
	inside, leave := make(chan struct{}), make(chan struct{})
	r.service.answer = func(context.Context) error { close(inside); <-leave; return nil }
	call := make(chan error, 1)
	go func() { call <- r.check(context.WithoutCancel(t.Context())) }()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.server.Drain(ctx); err == nil || !strings.Contains(err.Error(), "1 still running") {
		t.Errorf("got %v", err)
	}
	close(leave)
	<-call
}
