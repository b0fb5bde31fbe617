package testkit

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// LimitFiles leaves this process some descriptors: further ones fail with EMFILE until
// release is called. The test cannot run in parallel.
func LimitFiles(t testing.TB, left int) (release func()) {
	t.Helper()
	var before unix.Rlimit
	Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	probe := Value(os.Open(os.DevNull))(t)
	const more = 64 // than the highest one in use
	limit := unix.Rlimit{Cur: uint64(probe.Fd()) + more, Max: before.Max}
	Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	held := []*os.File{probe}
	release = sync.OnceFunc(func() {
		for _, f := range held {
			f.Close()
		}
		Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	})
	t.Cleanup(release)
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		held = append(held, f)
	}
	for _, f := range held[len(held)-left:] {
		f.Close()
	}
	held = held[:len(held)-left]
	return release
}
