package op

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
)

type waiter struct {
	Request
	ctx   context.Context
	fn    func(context.Context) (any, error)
	since time.Time
	// turn is closed at the end of the wait, after op is set: the operation
	// that was started or joined, or nil after Close.
	turn chan struct{}
	op   *operation
}

// enter returns the operation that was started or joined for r.
func (o *Operations) enter(ctx context.Context, r Request, fn func(context.Context) (any, error)) (*operation, error) {
	keys := slices.Clone(r.Keys)
	slices.Sort(keys)
	r.Keys = slices.Compact(keys)
	if len(r.Keys) == 0 {
		return nil, errs.Errorf(errs.Internal, "%s has no object", r.what())
	}
	w := &waiter{Request: r, ctx: ctx, fn: fn, since: time.Now(), turn: make(chan struct{})}
	o.mu.Lock()
	if o.closed || o.base.Err() != nil {
		o.mu.Unlock()
		return nil, errs.Errorf(errs.Unavailable, "%s is refused: %w", r.what(), ErrClosed)
	}
	o.enqueue(w)
	o.cancelFor(w)
	o.dispatch()
	o.mu.Unlock()
	return o.await(w)
}

func (o *Operations) await(w *waiter) (*operation, error) {
	timer := time.NewTimer(o.wait)
	defer timer.Stop()
	for {
		select {
		case <-w.turn:
			if w.op == nil {
				return nil, errs.Errorf(errs.Unavailable, "%s is refused: %w", w.what(), ErrClosed)
			}
			return w.op, nil
		case <-w.ctx.Done():
			op, err := o.stopWaiting(w, false)
			if op != nil {
				return op, nil
			}
			return nil, fmt.Errorf("%v: %w", err, w.ctx.Err()) // no kind: it is the caller's context
		case <-timer.C:
			op, err := o.stopWaiting(w, true)
			if op != nil || err != nil {
				return op, err
			}
			// Canceled operations are awaited without limit.
			timer.Reset(o.wait)
		}
	}
}

// stopWaiting removes w from the queue, or returns the operation if the turn came
// concurrently. With late it returns an error, unless w waits only for canceled
// operations: then w stays.
func (o *Operations) stopWaiting(w *waiter, late bool) (*operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.Index(o.queue, w)
	if at < 0 {
		<-w.turn
		if w.op == nil {
			return nil, errs.Errorf(errs.Unavailable, "%s is refused: %w", w.what(), ErrClosed)
		}
		return w.op, nil
	}
	if late && w.undoes() && o.onlyCancelled(w.Keys) {
		return nil, nil
	}
	err := o.busy(w, at)
	o.queue = slices.Delete(o.queue, at, at+1)
	o.dispatch()
	return nil, err
}

// enqueue inserts by priority: requests that undo first, yielding ones last,
// each in the order of arrival.
func (o *Operations) enqueue(w *waiter) {
	at := len(o.queue)
	for at > 0 && w.priority() > o.queue[at-1].priority() {
		at--
	}
	o.queue = slices.Insert(o.queue, at, w)
}

func (r Request) undoes() bool { return len(r.Cancels) > 0 }

func (r Request) priority() int {
	switch {
	case r.undoes():
		return 1
	case r.Yields:
		return -1
	}
	return 0
}

func (o *Operations) cancelFor(w *waiter) {
	for _, key := range w.Keys {
		op := o.held[key]
		switch {
		case op == nil:
		case op.yields:
			op.cancelled = true
			op.cancel(ErrYielded)
		case slices.Contains(w.Cancels, key) && !op.undoes:
			op.cancelled = true
			op.cancel(ErrUndone)
		}
	}
}

func (o *Operations) onlyCancelled(keys []string) bool {
	for _, key := range keys {
		if op := o.held[key]; op != nil && !op.cancelled {
			return false
		}
	}
	return true
}

// dispatch starts or joins all possible requests in order. A waiter reserves
// its keys against later ones, so that requests with several keys cannot
// starve.
func (o *Operations) dispatch() {
	if o.closed {
		return
	}
	claimed := map[string]bool{}
	var left []*waiter
	for _, w := range o.queue {
		switch {
		case w.ctx.Err() != nil:
			left = append(left, w) // about to leave: does not block others
		case o.join(w):
		case o.free(w.Keys, claimed):
			o.start(w)
		default:
			left = append(left, w)
			for _, key := range w.Keys {
				claimed[key] = true
			}
		}
	}
	o.queue = left
}

func (o *Operations) join(w *waiter) bool {
	op := o.held[w.Keys[0]]
	if op == nil || w.Fingerprint == "" || op.cancelled || op.fingerprint != w.Fingerprint || !slices.Equal(op.keys, w.Keys) {
		return false
	}
	op.joined++
	w.op = op
	close(w.turn)
	return true
}

func (o *Operations) free(keys []string, claimed map[string]bool) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return claimed[key] || o.held[key] != nil })
}

// busy names what blocks w.
func (o *Operations) busy(w *waiter, at int) error {
	waited := time.Since(w.since).Round(time.Millisecond)
	for _, key := range w.Keys {
		if op := o.held[key]; op != nil {
			return errs.Errorf(errs.Busy, "%s is busy: %s has been in progress for %s; %s waited %s, retry later",
				objects([]string{key}), op.what, time.Since(op.since).Round(time.Millisecond), w.what(), waited)
		}
	}
	for _, key := range w.Keys {
		for _, other := range o.queue[:at] {
			if slices.Contains(other.Keys, key) {
				return errs.Errorf(errs.Busy, "%s is busy: %s waits for it too; %s waited %s, retry later", objects([]string{key}), other.what(), w.what(), waited)
			}
		}
	}
	return errs.Errorf(errs.Busy, "%s is busy; %s waited %s, retry later", objects(w.Keys), w.what(), waited)
}

func (r Request) what() string {
	if r.What == "" {
		return "an operation on " + objects(r.Keys)
	}
	return r.What
}

// objects turns volume-name:pvc-1 into "volume name pvc-1".
func objects(keys []string) string {
	all := make([]string, len(keys))
	for i, key := range keys {
		kind, name, ok := strings.Cut(key, ":")
		if !ok {
			kind, name = "object", key
		}
		all[i] = strings.ReplaceAll(kind, "-", " ") + " " + name
	}
	return strings.Join(all, ", ")
}
