package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/cleatproject/cleat/errs"
)

// ErrChanged is WriteState's error if the generation is another one.
var ErrChanged = errors.New("the state was changed by another process")

// Object holds the state of a Shared where several machines reach it.
type Object interface {
	// ReadState returns a consistent snapshot. Generation 0: the object does
	// not exist.
	ReadState(ctx context.Context) (generation uint64, entries map[string][]byte, err error)
	// WriteState changes entries and the generation, atomically and durably, if
	// the generation is expect. Errors: ErrChanged, without a change;
	// errs.Exhausted, without a change, as it does not fit; after another error
	// the change can have been made, or can still be made later.
	WriteState(ctx context.Context, expect uint64, set map[string][]byte, remove []string) error
}

// ErrReplaced is the error of a process whose Shared another owner has opened.
var ErrReplaced = errors.New("another process has taken over the state")

// owners has the Options.Owner that has opened a Shared last.
func owners() Bucket[string] { return Bucket[string]{Name: "cleat-owner"} }

// maxAttempts of an Update against concurrent ones of other processes, each of
// which makes one fail only by succeeding itself.
const maxAttempts = 32

// Shared is a Database in an Object. It reads all records in each transaction:
// they should be thousands at most. It is safe for concurrent use, also by
// several processes.
type Shared struct {
	name    string
	object  Object
	options Options
	writer  chan struct{} // holds the write token
}

var _, _ Database = (*Store)(nil), (*Shared)(nil)

// OpenShared opens a database, or creates it in an object that does not exist.
// The name appears in errors. Of the options, Role, Version, Upgrade and Owner apply.
// Errors: ErrRole, ErrVersion, ErrDamaged, and those of the object.
func OpenShared(ctx context.Context, name string, object Object, o Options) (*Shared, error) {
	s := &Shared{name: name, object: object, options: o, writer: make(chan struct{}, 1)}
	err := s.update(ctx, func(generation uint64, tx *Tx) error {
		if o.Owner != "" {
			if err := owners().Put(tx, identityKey, o.Owner); err != nil {
				return err
			}
		}
		if generation == 0 {
			return identities().Put(tx, identityKey, identity{o.Role, o.Version})
		}
		found, err := identify(tx, o)
		if err == nil && found.Version < o.Version {
			err = upgrade(tx, o, found.Version)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", name, err)
	}
	return s, nil
}

// Spare returns an error if the object has a limit, and is nearly full.
func (s *Shared) Spare(ctx context.Context) error {
	o, limited := s.object.(interface{ Spare(context.Context) error })
	if !limited {
		return nil
	}
	if err := o.Spare(ctx); err != nil {
		return fmt.Errorf("store %s: %w", s.name, err)
	}
	return nil
}

// watched is an Object that can be watched.
type watched interface {
	Watch(ctx context.Context, report func(error))
	RecentState() (entries map[string][]byte, ok bool)
}

// Watch has the object watched, for Recent, until ctx ends. It reports failures, after
// which it tries again, and returns at once if the object cannot be watched.
func (s *Shared) Watch(ctx context.Context, report func(error)) {
	if o, ok := s.object.(watched); ok {
		o.Watch(ctx, report)
	}
}

// Recent is View with the last state that this process has read or written, without a
// request, as long as Watch has seen no other one. isRecalled: it is such a state. It
// serves to find out that there is nothing to do: before a decision, View reads.
func (s *Shared) Recent(ctx context.Context, fn func(tx *Tx) error) (isRecalled bool, err error) {
	if o, ok := s.object.(watched); ok {
		if entries, ok := o.RecentState(); ok {
			return true, s.view(entries, fn)
		}
	}
	return false, s.View(ctx, fn)
}

// View calls fn with a consistent snapshot.
func (s *Shared) View(ctx context.Context, fn func(tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if tx := joined(ctx, s); tx != nil {
		return fn(tx)
	}
	_, entries, err := s.object.ReadState(ctx)
	if err != nil {
		return fmt.Errorf("store %s: read: %w", s.name, err)
	}
	return s.view(entries, fn)
}

func (s *Shared) view(entries map[string][]byte, fn func(tx *Tx) error) error {
	m, err := newMemory(entries, true)
	if err != nil {
		return fmt.Errorf("store %s: %w", s.name, err)
	}
	tx := &Tx{m, s}
	if err := s.check(tx); err != nil {
		return err
	}
	return fn(tx)
}

// Update implements Database. Busy: other processes changed the state in every
// attempt. Exhausted: the changes do not fit. Unavailable: the changes are
// perhaps made, now or later; a repeat reads the state again and is safe.
func (s *Shared) Update(ctx context.Context, fn func(tx *Tx) error) error {
	return s.update(ctx, func(_ uint64, tx *Tx) error {
		if err := s.check(tx); err != nil {
			return err
		}
		return fn(tx)
	})
}

// check refuses a database that another process has upgraded, replaced or taken over.
func (s *Shared) check(tx *Tx) error {
	found, err := identify(tx, s.options)
	if err == nil && found.Version < s.options.Version {
		err = fmt.Errorf("%w: it has version %d again, expected %d; an older backup was restored, restart cleat", ErrVersion, found.Version, s.options.Version)
	}
	if err == nil && s.options.Owner != "" {
		var owner string
		if owner, _, err = owners().Get(tx, identityKey); err == nil && owner != s.options.Owner {
			err = errs.Errorf(errs.Unavailable, "%w: it is that of %q now", ErrReplaced, owner)
		}
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", s.name, err)
	}
	return nil
}

func (s *Shared) update(ctx context.Context, fn func(generation uint64, tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.writer <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("store %s: wait for other updates: %w", s.name, ctx.Err())
	}
	defer func() { <-s.writer }()
	for attempt := range maxAttempts {
		generation, entries, recalled := s.recall(attempt)
		if !recalled {
			var err error
			if generation, entries, err = s.object.ReadState(ctx); err != nil {
				return fmt.Errorf("store %s: read: %w", s.name, err)
			}
		}
		m, err := newMemory(entries, false)
		if err != nil {
			return fmt.Errorf("store %s: %w", s.name, err)
		}
		err = fn(generation, &Tx{tables: m})
		set, remove := m.difference(entries)
		switch {
		case recalled && (err != nil || len(set)+len(remove) == 0):
			continue // only a write shows that the state is the present one
		case err != nil || len(set)+len(remove) == 0:
			return err
		}
		switch err := s.object.WriteState(ctx, generation, set, remove); {
		case err == nil:
			return nil
		case errors.Is(err, errs.Exhausted):
			return fmt.Errorf("store %s: write: %w", s.name, err)
		case !errors.Is(err, ErrChanged):
			return errs.Errorf(errs.Unavailable, "store %s: write: %w; the change is perhaps recorded, repeat the call to find out", s.name, err)
		}
	}
	return errs.Errorf(errs.Busy, "store %s: %w in each of %d attempts, retry", s.name, ErrChanged, maxAttempts)
}

// recall returns the state of the object's last read or write for a first attempt.
func (s *Shared) recall(attempt int) (generation uint64, entries map[string][]byte, ok bool) {
	o, recalls := s.object.(interface {
		RecallState() (generation uint64, entries map[string][]byte, ok bool)
	})
	if !recalls || attempt > 0 {
		return 0, nil, false
	}
	return o.RecallState()
}
