package flock

import (
	"os"

	"golang.org/x/sys/unix"
)

// TryShared takes the shared lock at once, or fails with ErrHeld: any number
// may have it while nobody has the exclusive one.
func TryShared(f *os.File) error { return apply(f, unix.LOCK_SH|unix.LOCK_NB) }
