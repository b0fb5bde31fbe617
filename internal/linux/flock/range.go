package flock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// LockByte takes an exclusive lock on one byte of a file, opened for writing,
// waiting until ctx ends: one file has locks for any number of objects. It is a
// lock of the open file, as that of Lock, and independent of it. Closing the
// file releases it.
func LockByte(ctx context.Context, f *os.File, at int64) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1}
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock byte %d of %s: %w", at, f.Name(), err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("lock byte %d of %s: %w: %w", at, f.Name(), ErrHeld, ctx.Err())
		}
	}
}
