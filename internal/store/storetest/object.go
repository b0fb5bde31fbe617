// Package storetest has a store.Object in memory that fails on demand, and the
// conformance suite for every store.Object.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"sync"
)

// Fault is what happens to one write.
type Fault int

const (
	// None: the write succeeds.
	None Fault = iota
	// Changed: another process writes first, without a change of the entries.
	Changed
	// Failed: nothing is written.
	Failed
	// Lost: the write succeeds, its answer is lost.
	Lost
	// Late: the write fails, but reaches the object with the next call.
	Late
)

// ErrFault is the error of Failed, Lost and Late.
var ErrFault = errors.New("no answer from the object")

// Object is a store.Object in memory.
type Object struct {
	changed error

	mu         sync.Mutex
	generation uint64
	entries    map[string][]byte
	late       func()
	fault      func() Fault
	failRead   error
}

// NewObject returns an object that does not exist yet. changed is
// store.ErrChanged, which the tests of package store cannot import through here.
func NewObject(changed error) *Object {
	return &Object{changed: changed, entries: map[string][]byte{}}
}

// FailWrites calls fault for each write; nil ends that.
func (o *Object) FailWrites(fault func() Fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fault = fault
}

// FailReads makes reads fail; nil ends that.
func (o *Object) FailReads(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failRead = err
}

// Generation returns the number of writes.
func (o *Object) Generation() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.generation
}

// ReadState implements store.Object.
func (o *Object) ReadState(ctx context.Context) (generation uint64, entries map[string][]byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finish()
	if err := errors.Join(ctx.Err(), o.failRead); err != nil {
		return 0, nil, err
	}
	entries = map[string][]byte{}
	for name, value := range o.entries {
		entries[name] = bytes.Clone(value)
	}
	return o.generation, entries, nil
}

// WriteState implements store.Object.
func (o *Object) WriteState(ctx context.Context, expect uint64, set map[string][]byte, remove []string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finish()
	if err := ctx.Err(); err != nil {
		return err
	}
	fault := None
	if o.fault != nil {
		fault = o.fault()
	}
	write := func() {
		if o.generation != expect {
			return
		}
		o.generation++
		for name, value := range set {
			o.entries[name] = bytes.Clone(value)
		}
		for _, name := range remove {
			delete(o.entries, name)
		}
	}
	switch fault {
	case Changed:
		o.generation++
	case Failed:
		return ErrFault
	case Late:
		o.late = write
		return ErrFault
	}
	if o.generation != expect {
		return o.changed
	}
	write()
	if fault == Lost {
		return ErrFault
	}
	return nil
}

func (o *Object) finish() {
	if o.late != nil {
		o.late()
		o.late = nil
	}
}
