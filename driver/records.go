package driver

import (
	"context"

	"github.com/cleatproject/cleat/internal/store"
)

// Records are an engine's own records of one type, stored as JSON by key. Name is
// theirs in the State. A change is durable when a method returns nil; after an error it
// is perhaps made, and a repeat is safe.
type Records[T any] struct {
	State State
	Name  string
}

func (r Records[T]) bucket() store.Bucket[T] { return store.Bucket[T]{Name: "engine-" + r.Name} }

// Get returns the record of a key.
func (r Records[T]) Get(ctx context.Context, key string) (value T, found bool, err error) {
	db, err := database(r.State)
	if err != nil {
		return value, false, err
	}
	err = db.View(ctx, func(tx *store.Tx) (err error) {
		value, found, err = r.bucket().Get(tx, key)
		return err
	})
	return value, found, err
}

// All returns all records by key.
func (r Records[T]) All(ctx context.Context) (map[string]T, error) {
	db, err := database(r.State)
	if err != nil {
		return nil, err
	}
	all := map[string]T{}
	return all, db.View(ctx, func(tx *store.Tx) error {
		for e, err := range r.bucket().Range(tx, "") {
			if err != nil {
				return err
			}
			all[e.Key] = e.Value
		}
		return nil
	})
}

// Change replaces the record of a key, which must not be empty, by what decide makes of
// it; a record that is not kept is deleted. The record does not change between what decide
// is given and what it returns. decide must not block, and can run several times. Its error
// is that of Change, and nothing is changed.
func (r Records[T]) Change(ctx context.Context, key string, decide func(now T, found bool) (next T, keep bool, err error)) error {
	db, err := database(r.State)
	if err != nil {
		return err
	}
	return db.Update(ctx, func(tx *store.Tx) error {
		now, found, err := r.bucket().Get(tx, key)
		if err != nil {
			return err
		}
		next, keep, err := decide(now, found)
		switch {
		case err != nil:
			return err
		case keep:
			return r.bucket().Put(tx, key, next)
		}
		return r.bucket().Delete(tx, key)
	})
}

// Put writes the record of a key, which must not be empty.
func (r Records[T]) Put(ctx context.Context, key string, value T) error {
	return r.Change(ctx, key, func(T, bool) (T, bool, error) { return value, true, nil })
}

// Delete deletes the record of a key, if it exists.
func (r Records[T]) Delete(ctx context.Context, key string) error {
	return r.Change(ctx, key, func(now T, _ bool) (T, bool, error) { return now, false, nil })
}
