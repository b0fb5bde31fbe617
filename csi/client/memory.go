package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/store"
)

// memory is what an orchestrator keeps on disk. The file is open only for the
// moment of each transaction, so that many commands may run side by side.
type memory struct {
	dir  string
	turn chan struct{} // one transaction of this process at a time
}

func newMemory(dir string) *memory { return &memory{dir: dir, turn: make(chan struct{}, 1)} }

const (
	memoryFile    = "client.db"
	memoryRole    = "client"
	memoryVersion = 1
)

// phase says how far an object has come. A record is written before the driver
// is asked, so that a crash leaves a trace of what may exist.
type phase string

const (
	creating phase = "creating"
	ready    phase = "ready"
	deleting phase = "deleting"
)

// labels are what a record is found by. Name is unique for one driver and
// kind; ID is empty while the object is created.
type labels struct {
	Driver string `json:"driver"`
	Name   string `json:"name"`
	ID     string `json:"id,omitempty"`
}

func (l labels) key() string { return l.Driver + "/" + l.Name }

func (l labels) label() labels { return l }

type labelled interface{ label() labels }

// shelf is the memory of one kind of objects.
type shelf[T labelled] struct {
	memory *memory
	bucket store.Bucket[T]
}

// put writes a record before the driver is asked.
func (s shelf[T]) put(ctx context.Context, record T) error {
	return s.memory.with(ctx, false, func(tx *store.Tx) error { return s.bucket.Put(tx, record.label().key(), record) })
}

// keep writes what the driver has answered. That must not be forgotten because
// the caller's time ran out meanwhile.
func (s shelf[T]) keep(ctx context.Context, record T) error {
	ctx, cancel := outlasting(ctx)
	defer cancel()
	return s.put(ctx, record)
}

// drop removes a record, as keep writes one.
func (s shelf[T]) drop(ctx context.Context, record T) error {
	ctx, cancel := outlasting(ctx)
	defer cancel()
	return s.memory.with(ctx, false, func(tx *store.Tx) error { return s.bucket.Delete(tx, record.label().key()) })
}

// outlasting gives a context of a few seconds more, however ctx ends.
func outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// all returns the records of a driver, by name.
func (s shelf[T]) all(ctx context.Context, driver string) (out []T, err error) {
	err = s.memory.with(ctx, true, func(tx *store.Tx) error {
		for e, err := range s.bucket.Prefix(tx, driver+"/") {
			if err != nil {
				return err
			}
			out = append(out, e.Value)
		}
		return nil
	})
	return out, err
}

// find returns the record with this name or, if no name fits, with this id.
func (s shelf[T]) find(ctx context.Context, driver, ref string) (found T, ok bool, err error) {
	err = s.memory.with(ctx, true, func(tx *store.Tx) error {
		if found, ok, err = s.bucket.Get(tx, labels{Driver: driver, Name: ref}.key()); ok || err != nil {
			return err
		}
		for e, err := range s.bucket.Prefix(tx, driver+"/") {
			if err != nil {
				return err
			}
			if ref != "" && e.Value.label().ID == ref {
				found, ok = e.Value, true
				return nil
			}
		}
		return nil
	})
	return found, ok, err
}

// with opens the file for one transaction. While another process has it, it
// tries again until ctx ends.
func (m *memory) with(ctx context.Context, readOnly bool, fn func(*store.Tx) error) error {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the memory in %s: %w", m.dir, ctx.Err())
	}
	defer func() { <-m.turn }()
	path := filepath.Join(m.dir, memoryFile)
	if readOnly {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil // never written: no records
		}
	} else if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("the directory for the client's memory: %w", err)
	}
	for {
		s, err := store.Open(ctx, path, store.Options{Role: memoryRole, Version: memoryVersion, ReadOnly: readOnly})
		if errors.Is(err, store.ErrHeld) && ctx.Err() == nil {
			continue // Open itself waited
		}
		if err != nil {
			return err
		}
		run := s.Update
		if readOnly {
			run = s.View
		}
		return errors.Join(run(ctx, fn), s.Close())
	}
}

// lockFiles bounds how many files locks take, however many objects there are;
// two objects that share one wait for each other, no more.
const lockFiles = 64

// lock makes calls about one object wait for each other, also those of other
// processes.
func (m *memory) lock(ctx context.Context, key string) (unlock func(), err error) {
	dir := filepath.Join(m.dir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the directory for the client's locks: %w", err)
	}
	sum := sha256.Sum256([]byte(key))
	path := filepath.Join(dir, fmt.Sprintf("%02d", sum[0]%lockFiles))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Lock(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("another command works on it: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing gives the lock back; nothing was written
}

// staging is the directory where a volume is staged: short, and a single path
// element whatever the driver's ids look like.
func (m *memory) staging(driver, id string) string {
	sum := sha256.Sum256([]byte(driver + "\x00" + id))
	return filepath.Join(m.dir, "staging", hex.EncodeToString(sum[:12]))
}

// now is the time as records keep it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
