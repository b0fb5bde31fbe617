package op

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
)

// waiter is a request that waits for its turn.
type waiter struct {
	Request
	ctx   context.Context
	fn    func(context.Context) (any, error)
	since time.Time
	// turn is closed when the wait is over; op, set before, is the operation
	// it started or joined, nil when the Operations were closed.
	turn chan struct{}
	op   *operation
}

// enter returns the operation whose result the caller of r gets.
func (o *Operations) enter(ctx context.Context, r Request, fn func(context.Context) (any, error)) (*operation, error) {
	keys := slices.Clone(r.Keys)
	slices.Sort(keys)
	r.Keys = slices.Compact(keys)
	if len(r.Keys) == 0 {
		return nil, errs.Errorf(errs.Internal, "%s names no object to work on", r.what())
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

// await waits for the turn of w, within the bound.
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
			op, err := o.giveUp(w, false)
			if op != nil {
				return op, nil
			}
			return nil, fmt.Errorf("%v: %w", err, w.ctx.Err()) // no kind: the caller gave up
		case <-timer.C:
			op, err := o.giveUp(w, true)
			if op != nil || err != nil {
				return op, err
			}
			// It waits for operations that it cancelled: as long as its caller.
			timer.Reset(o.wait)
		}
	}
}

// giveUp takes w out of the queue. It returns the operation when the turn came
// at the same instant. With late set it returns the error for w, or, when w
// waits only for operations that were cancelled, leaves it in the queue.
func (o *Operations) giveUp(w *waiter, late bool) (*operation, error) {
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

// enqueue gives w its place: requests that undo before the others, those that
// yield last, each kind in the order of arrival.
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

// cancelFor cancels the operations that hold keys of w and have to end for it.
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

// dispatch starts and joins whatever can run now, in the order of the queue. A
// waiter reserves its keys against later ones, or one that needs several would
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
			left = append(left, w) // about to give up: keeps nobody out
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

// busy says what keeps w, at this place in the queue, from its objects.
func (o *Operations) busy(w *waiter, at int) error {
	waited := time.Since(w.since).Round(time.Millisecond)
	for _, key := range w.Keys {
		if op := o.held[key]; op != nil {
			return errs.Errorf(errs.Busy, "%s is busy: %s has been in progress for %s; %s waited %s, try again",
				objects([]string{key}), op.what, time.Since(op.since).Round(time.Millisecond), w.what(), waited)
		}
	}
	for _, key := range w.Keys {
		for _, other := range o.queue[:at] {
			if slices.Contains(other.Keys, key) {
				return errs.Errorf(errs.Busy, "%s is busy: %s waits for it too; %s waited %s, try again", objects([]string{key}), other.what(), w.what(), waited)
			}
		}
	}
	return errs.Errorf(errs.Busy, "%s is busy; %s waited %s, try again", objects(w.Keys), w.what(), waited)
}

func (r Request) what() string {
	if r.What == "" {
		return "an operation on " + objects(r.Keys)
	}
	return r.What
}

// objects names the objects of keys for a message: of volume-name:pvc-1 it makes
// "volume name pvc-1".
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
