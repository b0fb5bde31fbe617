package testkit

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// Unmount unmounts a file system of a test. A child that another test is
// starting has copies of this process's files until it executes its program,
// and keeps the file system busy.
func Unmount(t testing.TB, target string) {
	t.Helper()
	EventuallyNil(t, "umount "+target, func() error {
		err := unix.Unmount(target, 0)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatalf("umount %s: %v", target, err)
		}
		return err
	})
}
