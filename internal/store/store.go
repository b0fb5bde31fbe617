// Package store keeps typed records in one database per role: Store is a bbolt
// file, Shared an object that several machines reach. A successful Update
// survives power loss, and View shows only what does. A database of another role
// or newer version, or with damage, is refused with a distinct error.
// Preallocated space lets updates and deletes of a Store succeed on a full file
// system.
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
	"sync/atomic"
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
	// ErrVersion: the file has another version of this role.
	ErrVersion = errors.New("unsupported version")
	// ErrDamaged: the file or a record cannot be read.
	ErrDamaged = errors.New("store is damaged")
)

// Options describe a store.
type Options struct {
	// Role and Version are recorded and must match: older programs do not read
	// a newer layout.
	Role    string
	Version int
	// Preallocate is the number of bytes written at creation, and again
	// whenever three quarters of the space are used; 0 disables it.
	Preallocate int64
	// ReadOnly opens an existing file; concurrent readers are possible.
	ReadOnly bool
	// Upgrade, if set, converts an older version, once, in the transaction that
	// records the new version.
	Upgrade func(tx *Tx, from int) error
	// Owner, if set, is a process that uses a Shared alone: one that has opened it with
	// another owner before gets ErrReplaced from then on.
	Owner string
}

const (
	// heldBound is Open's wait for the lock of another process, such as a
	// predecessor that is shutting down.
	heldBound = time.Second
	// mapped is the initial memory map, address space only: without remapping,
	// a writer never waits for readers.
	mapped = 256 << 20
	// smallest is the size of the two meta pages of a database.
	smallest = 2 * 4096
	// growth is the step beyond the preallocated space.
	growth = 1 << 20
)

// Store is safe for concurrent use.
type Store struct {
	path    string
	db      *bbolt.DB
	file    *os.File                      // of db
	durable atomic.Int64                  // newest transaction known to be on the disk
	commit  atomic.Pointer[chan struct{}] // closed when the last commit has ended
	writer  chan struct{}                 // holds the write token
	reserve reserve                       // guarded by the token
	commits int                           // since the last copy, from 1; guarded by the token
	loaded  int64                         // transaction of bbolt's freelist; guarded by the token
	views   views
}

// Open opens a store, or creates it in an existing directory. Errors: ErrHeld,
// ErrRole, ErrVersion, ErrDamaged, and those of the file system.
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
	case err == nil && info.Size() < smallest: // bbolt would make a database of an empty one
		return nil, fmt.Errorf("%w: it has %d bytes, expected at least %d", ErrDamaged, info.Size(), smallest)
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

// openFile converts a panic or fault of bbolt on a damaged file to an error.
func openFile(ctx context.Context, path string, readOnly bool) (s *Store, err error) {
	var file *os.File
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			// The leaked map of bbolt keeps the file open and locked.
			_, _ = flock.Unlock(file), file.Close()
			if _, ok := v.(runtime.Error); ok {
				v = "inconsistent pages"
			}
			s, err = nil, fmt.Errorf("%w: %v", ErrDamaged, v)
		}
	}()
	db, err := openCurrent(path, &file, &bbolt.Options{
		Timeout:         bound(ctx),
		ReadOnly:        readOnly,
		InitialMmapSize: mapped,
		// Without the freelist in the file every open reads all pages. The map
		// form keeps commits fast with a large freelist.
		PreLoadFreelist: true,
		FreelistType:    bbolt.FreelistMapType,
	})
	if err != nil {
		return nil, explainOpen(ctx, file, err)
	}
	db.AllocSize = growth
	s = &Store{path: path, db: db, file: file, writer: make(chan struct{}, 1)}
	if s.loaded, err = s.newest(); err == nil {
		err = s.checkLength()
	}
	if err == nil {
		err = s.checkPages()
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// openCurrent opens the file and locks it. While it waits for the lock, the
// holder can replace the file (renew).
func openCurrent(path string, file **os.File, o *bbolt.Options) (*bbolt.DB, error) {
	o.OpenFile = func(name string, flag int, mode fs.FileMode) (f *os.File, err error) {
		*file, err = os.OpenFile(name, flag&^os.O_CREATE, mode)
		return *file, err
	}
	for {
		db, err := bbolt.Open(path, 0o600, o)
		if err != nil {
			return nil, err
		}
		locked, err1 := (*file).Stat()
		current, err2 := os.Stat(path)
		if err := errors.Join(err1, err2); err != nil {
			return nil, errors.Join(err, db.Close())
		}
		if os.SameFile(locked, current) {
			return db, nil
		}
		if err := db.Close(); err != nil {
			return nil, err
		}
	}
}

// checkLength refuses a truncated file: a read beyond its end would kill the
// process.
func (s *Store) checkLength() error {
	info, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	return s.db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("%w: it has %d bytes, expected %d", ErrDamaged, info.Size(), tx.Size())
		}
		return nil
	})
}

// checkPages reads every used page, so that a later transaction does not panic
// on damage.
func (s *Store) checkPages() error {
	return s.db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			var last []byte
			return b.ForEach(func(key, value []byte) error {
				// Bucket never writes such records.
				if bytes.Compare(key, last) <= 0 || bytes.IndexByte(value, 0) >= 0 {
					return fmt.Errorf("%w: a page of bucket %q has unsorted records", ErrDamaged, name)
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
		return fmt.Errorf("%w%s: stop that process, or use another directory", ErrHeld, holder(file.Name()))
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// Close closes the file after running transactions.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close store %s: %w", s.path, err)
	}
	return nil
}

// View calls fn with a consistent snapshot. It succeeds only if the snapshot is
// on the disk. Unavailable: it is perhaps not. fn must not call Update, which
// can wait for the View.
func (s *Store) View(ctx context.Context, fn func(tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if tx := joined(ctx, s); tx != nil {
		return fn(tx)
	}
	id, err := s.view(fn)
	if int64(id) > s.durable.Load() && !s.db.IsReadOnly() {
		if err := s.await(ctx, id); err != nil {
			return err
		}
	}
	return s.name(err)
}

// view returns the number of the transaction that fn has read.
func (s *Store) view(fn func(tx *Tx) error) (id int, err error) {
	defer s.views.begin()()
	err = s.db.View(func(tx *bbolt.Tx) error {
		id = tx.ID()
		return fn(&Tx{boltTables{tx}, s})
	})
	return id, err
}

// Update commits the changes of fn durably if it returns nil; otherwise nothing
// is changed. Updates are serialized; ctx limits the wait. fn must neither
// block nor call View or Update. Unavailable: the changes are perhaps made; a
// repeat reads the records again and is safe. After a failed commit nothing is
// read or changed until it is known to be on the disk, and nothing is changed
// until the Views that began before have ended.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	if !s.db.IsReadOnly() {
		if err := s.confirm(ctx); err != nil {
			return err
		}
	}
	if err := s.views.await(ctx); err != nil {
		return fmt.Errorf("store %s: wait for reads that began before a failed commit: %w", s.path, err)
	}
	ended := make(chan struct{})
	s.commit.Store(&ended)
	defer close(ended)
	var id int
	var refused error
	err := s.db.Update(func(tx *bbolt.Tx) error {
		id, refused = tx.ID(), fn(boltTx(tx))
		return refused
	})
	switch {
	case err == nil:
	case id == 0 || refused != nil:
		return s.name(err)
	default:
		return s.commitError(err)
	}
	s.loaded = int64(id)
	s.durable.Store(int64(id))
	// The used space is known only now. A failure does not undo the update, so
	// it is ignored.
	_ = s.db.View(func(tx *bbolt.Tx) error { return s.follow(tx.Size()) })
	s.countCommit()
	return nil
}

// Spare returns an error (such as unix.ENOSPC) if the preallocated space runs
// short and the file system is full.
func (s *Store) Spare(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	return s.name(s.db.View(func(tx *bbolt.Tx) error {
		if free := int64(s.db.Stats().FreePageN) * int64(s.db.Info().PageSize); free >= s.reserve.step/4 {
			return nil // freed pages are reused
		}
		return s.follow(tx.Size())
	}))
}

// name adds the store's path to errors of bbolt and of sync.
func (s *Store) name(err error) error {
	if _, bare := err.(syscall.Errno); bare || errors.Is(err, bolterrors.ErrDatabaseNotOpen) || errors.Is(err, bolterrors.ErrDatabaseReadOnly) {
		return fmt.Errorf("store %s: %w", s.path, err)
	}
	return err
}
