// Package flock takes whole-file locks that the kernel gives back when their
// holder dies. A lock belongs to the open file, not to the process: two opens
// of one file exclude each other also within a process.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld is the answer of Try when somebody else holds the lock.
var ErrHeld = errors.New("somebody else holds the lock")

// every is how often Lock looks again; the kernel has no wait that a context
// could end.
const every = 5 * time.Millisecond

// Lock takes the exclusive lock of an open file or directory, waiting until
// ctx ends. Closing the file gives it back, unless a child inherited it.
func Lock(ctx context.Context, f *os.File) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		err := Try(f)
		if !errors.Is(err, ErrHeld) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			// Who was away for longer than it may wait looks once more.
			if err = Try(f); !errors.Is(err, ErrHeld) {
				return err
			}
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// Try takes the exclusive lock at once, or fails with ErrHeld.
func Try(f *os.File) error { return apply(f, unix.LOCK_EX|unix.LOCK_NB) }

// Unlock gives the lock back, also when a child has inherited the open file.
func Unlock(f *os.File) error { return apply(f, unix.LOCK_UN) }

func apply(f *os.File, how int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	var locked error
	err = raw.Control(func(fd uintptr) {
		for {
			if locked = unix.Flock(int(fd), how); locked != unix.EINTR {
				return
			}
		}
	})
	if err = errors.Join(err, locked); errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrHeld
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// TryShared takes the shared lock at once, or fails with ErrHeld. Shared locks
// exclude only the exclusive one.
func TryShared(f *os.File) error { return apply(f, unix.LOCK_SH|unix.LOCK_NB) }
