package store

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// confirm makes the newest transaction durable, unless that is known. It is not
// known after a failed commit, and when the file is opened: the page cache
// outlives a process that died in a commit, or after a failed one.
//
// bbolt writes the meta page after a successful fsync of all other pages of the
// transaction. So only the meta page can be in the page cache alone. Linux
// marks a page as clean even if its write failed, and a repeated fsync would
// succeed without writing it: the page is written again before the fsync. The
// other meta page, which a power loss meanwhile leaves, has its pages too:
// pages are reused only after confirm.
//
// The caller holds the write token.
func (s *Store) confirm() error {
	var newest int
	if err := s.db.View(func(tx *bbolt.Tx) error { newest = tx.ID(); return nil }); err != nil {
		return s.name(err)
	}
	if int64(newest) == s.durable.Load() {
		return nil
	}
	page := make([]byte, s.db.Info().PageSize)
	at := int64(newest%2) * int64(len(page)) // the meta pages alternate
	_, err := s.file.ReadAt(page, at)
	if err == nil {
		_, err = s.file.WriteAt(page, at)
	}
	if err = errors.Join(err, s.file.Sync()); err != nil {
		return errs.Errorf(errs.Unavailable, "store %s: its newest transaction is perhaps not on the disk, nothing is read or changed until it is written: %w", s.path, err)
	}
	s.durable.Store(int64(newest))
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
	return s.confirm()
}

// commitError explains a failed commit. A full file system refuses a write as a
// whole, and before the meta page.
func (s *Store) commitError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return s.name(err)
	}
	return errs.Errorf(errs.Unavailable, "store %s: commit: %w; the change is perhaps recorded, repeat the call to find out", s.path, err)
}
