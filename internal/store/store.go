// Package store keeps typed records in one bbolt file per role. A successful
// Update survives power loss. A file of another role, of a newer version or
// with damage is refused with a distinct error. Preallocated space lets updates
// and deletes succeed on a full file system.
package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/cleatproject/cleat/internal/linux/flock"
)

var (
	// ErrHeld: another process has the file open.
	ErrHeld = errors.New("locked by another cleat process")
	// ErrRole: the file belongs to another part of cleat.
	ErrRole = errors.New("store of another role")
	// ErrVersion: the file was written by another version of this role.
	ErrVersion = errors.New("unsupported version")
	// ErrDamaged: the file, or a record in it, cannot be read.
	ErrDamaged = errors.New("store is damaged")
)

// Options describe a store.
type Options struct {
	// Role and Version are recorded in the file and must match: a node's store
	// is not an engine's, and older programs do not read a newer layout.
	Role    string
	Version int
	// Preallocate is the number of bytes to preallocate at creation, and again
	// whenever three quarters of the space are used; 0 disables it. It has no
	// effect on file systems without fallocate (NFS).
	Preallocate int64
	// ReadOnly opens an existing file for reading; concurrent readers are possible.
	ReadOnly bool
	// Upgrade, if set, converts the records of an older version. It runs once,
	// in the transaction that records the new version.
	Upgrade func(tx *Tx, from int) error
}

const (
	// heldBound is how long Open waits for the lock of another process, such as
	// a predecessor that is shutting down.
	heldBound = time.Second
	// mapped is the initial size of the memory map, in address space only:
	// without remapping, a writer never waits for readers.
	mapped = 256 << 20
	// growth is the step by which a file grows beyond the preallocated space.
	growth = 1 << 20
)

// Store is an open file. Its methods are safe for concurrent use.
type Store struct {
	path    string
	db      *bbolt.DB
	writer  chan struct{} // holds the write token
	reserve reserve       // used by the holder of the token
}

// Open opens the store at path, or creates it in an existing directory. Errors:
// ErrHeld, ErrRole, ErrVersion, ErrDamaged, and those of the file system.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	s, err := open(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	return s, nil
}

func open(ctx context.Context, path string, o Options) (*Store, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !o.ReadOnly:
		if err := create(ctx, path, o); err != nil {
			return nil, fmt.Errorf("create: %w", err)
		}
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: not a regular file", ErrDamaged)
	case err == nil && info.Size() == 0: // bbolt would make a database of it
		return nil, fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	s, err := openFile(ctx, path, o.ReadOnly)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, o); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// openFile opens an existing bbolt file. A damaged one can make bbolt fail by
// panic or by a fault in its map; that is an error like any other here.
func openFile(ctx context.Context, path string, readOnly bool) (s *Store, err error) {
	var file *os.File
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			// The map that bbolt leaves keeps the open file, and with it the lock.
			_, _ = flock.Unlock(file), file.Close()
			if _, ok := v.(runtime.Error); ok {
				v = "its pages do not fit together"
			}
			s, err = nil, fmt.Errorf("%w: %v", ErrDamaged, v)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:         bound(ctx),
		ReadOnly:        readOnly,
		InitialMmapSize: mapped,
		// The list of free pages stays in the file: without it every start
		// reads all pages. The map form keeps commits flat when there are many.
		PreLoadFreelist: true,
		FreelistType:    bbolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode fs.FileMode) (*os.File, error) {
			var err error
			file, err = os.OpenFile(name, flag&^os.O_CREATE, mode)
			return file, err
		},
	})
	if err != nil {
		return nil, explainOpen(ctx, file, err)
	}
	db.AllocSize = growth
	s = &Store{path: path, db: db, writer: make(chan struct{}, 1)}
	err = s.checkLength()
	if err == nil {
		err = s.checkPages()
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// checkLength refuses a truncated file before a read behind its end kills the
// process.
func (s *Store) checkLength() error {
	info, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	return s.db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("%w: it has %d bytes and should have %d", ErrDamaged, info.Size(), tx.Size())
		}
		return nil
	})
}

// checkPages reads every page in use, so that a damaged one is found here and
// not by a panic of bbolt in a later transaction.
func (s *Store) checkPages() error {
	return s.db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			var last []byte
			return b.ForEach(func(key, value []byte) error {
				// Neither holds in what Bucket writes.
				if bytes.Compare(key, last) <= 0 || bytes.IndexByte(value, 0) >= 0 {
					return fmt.Errorf("%w: a page of bucket %q does not hold records in order", ErrDamaged, name)
				}
				last = key
				return nil
			})
		})
	})
}

func bound(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(min(heldBound, time.Until(deadline)), time.Millisecond)
	}
	return heldBound
}

func explainOpen(ctx context.Context, file *os.File, err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrHeld, ctx.Err())
		}
		return fmt.Errorf("%w%s; stop it, or use a directory of your own", ErrHeld, holder(file.Name()))
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// Close closes the file, after the transactions that run.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close store %s: %w", s.path, err)
	}
	return nil
}

// Tx is a transaction: View's reads, Update's reads and writes. It ends with
// the function that got it.
type Tx struct{ bolt *bbolt.Tx }

// View calls fn with the records of one moment.
func (s *Store) View(ctx context.Context, fn func(tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.name(s.db.View(func(tx *bbolt.Tx) error { return fn(&Tx{tx}) }))
}

// Update calls fn and commits what it changed, durably, when it returns nil;
// else nothing changed. One update runs at a time; ctx bounds the wait for the
// turn. fn must neither block nor call View or Update.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.writer <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("store %s: wait for other updates: %w", s.path, ctx.Err())
	}
	defer func() { <-s.writer }()
	if err := s.db.Update(func(tx *bbolt.Tx) error { return fn(&Tx{tx}) }); err != nil {
		return s.name(err)
	}
	// What the commit itself took is known only behind it. A failure here would
	// not undo the update, so it is none.
	_ = s.db.View(func(tx *bbolt.Tx) error { return s.reserve.follow(tx.Size()) })
	return nil
}

// Spare is an error (unix.ENOSPC and the like) while what is set aside runs short
// and the file system has no more. Updates succeed until it is used up: who is
// about to add something asks first, so that the rest is left to those that take
// away, which need room as well.
func (s *Store) Spare(ctx context.Context) error {
	select {
	case s.writer <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("store %s: wait for updates: %w", s.path, ctx.Err())
	}
	defer func() { <-s.writer }()
	return s.name(s.db.View(func(tx *bbolt.Tx) error {
		if free := int64(s.db.Stats().FreePageN) * int64(s.db.Info().PageSize); free >= s.reserve.step/4 {
			return nil // what was taken away is used again
		}
		return s.reserve.follow(tx.Size())
	}))
}

// name adds the store's path to those of bbolt's errors that do not say it:
// its own, and what a sync of the file answers.
func (s *Store) name(err error) error {
	if _, bare := err.(syscall.Errno); bare || errors.Is(err, bolterrors.ErrDatabaseNotOpen) || errors.Is(err, bolterrors.ErrDatabaseReadOnly) {
		return fmt.Errorf("store %s: %w", s.path, err)
	}
	return err
}
