package dputest

import (
	"context"
	"sync"
)

type pending struct {
	release func()
	answer  chan outcome
}

type outcome struct {
	name string
	err  error
}

// pend starts a held CreateDevice; nil if that is not possible.
func (t *trial) pend(ctx context.Context, v volume) *pending {
	t.Helper()
	if t.Hold == nil {
		t.Log("not checked, since Options.Hold is not set")
		return nil
	}
	held, release := t.Hold(t.T, v.id)
	p := &pending{release: sync.OnceFunc(release), answer: make(chan outcome, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		name, err := t.create(ctx, v.request())
		p.answer <- outcome{name, err}
	}()
	t.Cleanup(func() { // before the cleanup of the volume, which must not wait for it
		p.release()
		<-ended
	})
	select {
	case <-held:
	case got := <-p.answer:
		t.Fatalf("Options.Hold does not hold CreateDevice(%q): %q, %v", v.id, got.name, got.err)
	case <-t.ctx.Done():
		t.Fatalf("Options.Hold did not hold CreateDevice(%[2]q) within %[1]s", t.Timeout, v.id)
	}
	return p
}

// negate waits for a DeleteDevice to reach the plugin; done: it returned OK.
func (t *trial) negate(v volume) (done bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, t.Patience)
	defer cancel()
	return retry(ctx, func() error { return t.remove(ctx, v.id, "") }) == nil
}

// finish repeats the DeleteDevice until it succeeds; then no device can exist
// or appear.
func (t *trial) finish(v volume, done bool) {
	t.Helper()
	if !done {
		if err := retry(t.ctx, func() error { return t.remove(t.ctx, v.id, "") }); err != nil {
			t.Errorf("DeleteDevice(%q), repeated: %v", v.id, err)
		}
	}
	t.requireStaysAbsent(v)
	if !t.Failed() {
		name := t.createWithRetry(v.request())
		t.still(v, name)
		t.gone(v, name)
	}
}

// testRetryContinues: after a cancel, the retry gets the first call's device.
func testRetryContinues(t *trial) {
	v := t.volume("continues")
	ctx, leave := context.WithCancel(t.ctx)
	defer leave()
	p := t.pend(ctx, v)
	if p == nil {
		return
	}
	leave()
	<-p.answer
	brief, cancel := context.WithTimeout(t.ctx, t.Patience)
	defer cancel()
	name, err := t.create(brief, v.request()) // it can wait, be refused, or succeed
	p.release()
	again := t.createWithRetry(v.request())
	if err == nil && name != again {
		t.Errorf("CreateDevice(%q) answers %q, then %q", v.id, name, again)
	}
	for range 3 {
		t.still(v, again)
	}
	t.gone(v, again)
	t.requireStaysAbsent(v)
}

// testNegation: DeleteDevice cancels a pending CreateDevice. It can wait for
// work that cannot be interrupted, but after its OK there is no device, and the
// CreateDevice returns none.
func testNegation(t *trial) {
	v := t.volume("negation")
	p := t.pend(t.ctx, v)
	if p == nil {
		return
	}
	done := t.negate(v)
	p.release()
	if got := <-p.answer; got.err == nil {
		t.Errorf("CreateDevice(%q) returns device %q, but was cancelled by DeleteDevice", v.id, got.name)
	}
	t.finish(v, done)
}

// testAbandoned: the same after the caller of CreateDevice has cancelled, the
// usual case.
func testAbandoned(t *trial) {
	v := t.volume("abandoned")
	ctx, leave := context.WithCancel(t.ctx)
	defer leave()
	p := t.pend(ctx, v)
	if p == nil {
		return
	}
	leave()
	<-p.answer
	done := t.negate(v)
	p.release()
	t.finish(v, done)
}

// testParallel: while one volume is pending, another one works.
func testParallel(t *trial) {
	if !t.Options.Parallel {
		t.Log("not checked, since Options.Parallel is not set")
		return
	}
	stuck, free := t.volume("stuck"), t.volume("free")
	p := t.pend(t.ctx, stuck)
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.Timeout/2)
	defer cancel()
	name, err := t.create(ctx, free.request())
	if err != nil {
		t.Fatalf("CreateDevice(%q) while %q is pending: %v", free.id, stuck.id, err)
	}
	t.gone(free, name)
	p.release()
	if got := <-p.answer; got.err != nil {
		t.Errorf("CreateDevice(%q), held for a while: %v", stuck.id, got.err)
	} else {
		t.still(stuck, got.name)
	}
}
