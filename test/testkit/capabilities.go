package testkit

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// WithoutCapabilities runs f in a thread to which permissions apply, although its
// user is root. f must not end the test.
func WithoutCapabilities(t testing.TB, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread exits
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		err := unix.Capset(&header, &make([]unix.CapUserData, 2)[0])
		if err == nil {
			f()
		}
		done <- err
	}()
	Must(t, Receive(t, "the function without capabilities returns", done))
}
