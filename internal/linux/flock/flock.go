// Package flock locks whole files with flock(2). The kernel releases the lock
// when its holder dies. A lock belongs to the open file, so two opens exclude
// each other within a process too.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld is returned by Try if the file is locked.
var ErrHeld = errors.New("the lock is held by another process or open file")

// every is the polling interval of Lock; flock(2) cannot wait for a context.
const every = 5 * time.Millisecond

// Lock takes the exclusive lock, waiting until ctx ends. Closing the file
// releases it, unless a child inherited the file.
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
			// This goroutine can have been suspended past its deadline.
			if err = Try(f); !errors.Is(err, ErrHeld) {
				return err
			}
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// Try takes the exclusive lock or returns ErrHeld.
func Try(f *os.File) error { return apply(f, unix.LOCK_EX|unix.LOCK_NB) }

// Unlock releases the lock, even one that a child inherited.
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

// TryShared takes the shared lock or returns ErrHeld.
func TryShared(f *os.File) error { return apply(f, unix.LOCK_SH|unix.LOCK_NB) }
