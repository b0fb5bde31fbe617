package store

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/cleatproject/cleat/errs"
)

// unknown is the value of Store.durable when nothing is known to be on the disk.
const unknown = 0

// confirm makes the newest transaction durable, unless that is known. It is not
// known after a failed write. The caller holds the write token.
func (s *Store) confirm(ctx context.Context) error {
	newest, err := s.newest()
	if err != nil || newest == s.durable.Load() && newest >= s.loaded {
		return err
	}
	written, err := isWritten(ctx, s.file)
	if err == nil && newest < s.loaded {
		err = s.lost(s.loaded)
	}
	if err == nil && !written {
		err = errors.New("its file has blocks that only a new file makes safe, restart cleat")
	}
	if err == nil {
		err = s.writeNewest()
	}
	if err != nil {
		return errs.Errorf(errs.Unavailable, "store %s: a write failed, and nothing is read or changed until the newest transaction is on the disk: %w", s.path, err)
	}
	return nil
}

// lost is the error if the page cache has dropped a page that was not written,
// such as the meta page of a failed commit: bbolt's freelist is of that commit.
func (s *Store) lost(id int64) error {
	return fmt.Errorf("transaction %d is no longer in the page cache, restart cleat", id)
}

// newest returns the number of the newest transaction in the page cache.
func (s *Store) newest() (id int64, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error { id = int64(tx.ID()); return nil })
	return id, s.name(err)
}

// writeNewest makes the newest transaction in the page cache durable. It is also
// called when the file is opened: the page cache outlives a process that died
// in a commit, or after a failed one.
//
// bbolt writes the meta page after a successful fsync of all other pages of a
// transaction. So the meta page alone can be in the page cache but not on the
// disk. Linux marks a page as clean even if its write failed, and a repeated
// fsync would succeed without writing it: the page is written again before the
// fsync. Power losses meanwhile leave the other meta page, whose pages are not
// reused before.
func (s *Store) writeNewest() error {
	newest, err := s.newest()
	if err != nil {
		return err
	}
	page := make([]byte, s.db.Info().PageSize)
	at := newest % 2 * int64(len(page)) // transactions alternate between the meta pages
	if _, err := s.file.ReadAt(page, at); err != nil {
		return err
	}
	// btrfs can read the page of a failed write from the disk again.
	if now, err := s.newest(); err != nil {
		return err
	} else if now != newest {
		return s.lost(newest)
	}
	// Full: a store of an older version, which copies on write and cannot be
	// moved without space.
	if _, err := s.file.WriteAt(page, at); err != nil && !isFull(err) {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.durable.Store(newest)
	return nil
}

// acquire returns with the write token.
func (s *Store) acquire(ctx context.Context) error {
	select {
	case s.writer <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("store %s: wait for other updates: %w", s.path, ctx.Err())
	}
}

func (s *Store) release() { <-s.writer }

// await returns when the transaction id, which a View has read, is durable: it
// waits for the commit in progress, and confirms one that failed.
func (s *Store) await(ctx context.Context, id int) error {
	if ended := s.commit.Load(); ended != nil {
		select {
		case <-*ended:
		case <-ctx.Done():
			return fmt.Errorf("store %s: wait for a commit: %w", s.path, ctx.Err())
		}
	}
	if int64(id) <= s.durable.Load() {
		return nil
	}
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	return s.confirm(ctx)
}

// commitError explains a failed commit. A full file system refuses a write as a
// whole, before the meta page.
func (s *Store) commitError(err error) error {
	s.views.commitFailed()
	s.loaded, _ = s.newest() // an error is also one of the next Update
	if isFull(err) {
		return s.name(err)
	}
	s.durable.Store(unknown)
	return errs.Errorf(errs.Unavailable, "store %s: commit: %w; the change is perhaps recorded, repeat the call to find out", s.path, err)
}
