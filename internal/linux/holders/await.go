package holders

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/retry"
)

const (
	// shortUse is for programs that look at a device for a moment, as udev's do.
	shortUse = time.Second
	// startUp is for processes with a mount namespace of their own: it has copies of
	// all mounts until the container runtime has changed its root.
	startUp = 5 * time.Second
)

// AwaitUnused repeats a call that fails while a block device is in use: for a
// second, and for another one as long as its mounts in other mount namespaces are
// those of processes that have just been started.
func AwaitUnused(ctx context.Context, major, minor uint32, try func() (inUse bool, err error)) error {
	for {
		var inUse, hasLooked, starting bool
		err := retry.For(ctx, shortUse, func() (again bool, err error) {
			if inUse, err = try(); inUse && !hasLooked {
				hasLooked, starting = true, areStarting(ctx, major, minor)
			}
			return inUse, err
		})
		if !inUse || !starting || ctx.Err() != nil {
			return err
		}
	}
}

// areStarting reports whether other mount namespaces have mounts of a device, and
// all processes there have just been started.
func areStarting(ctx context.Context, major, minor uint32) (found bool) {
	s, own := newSearch(ctx, longBound), process{dir: "/proc/thread-self"}.namespace()
	of := s.devicesOf(major, minor)
	hasMount := map[string]bool{own: false}
	for _, p := range s.processes() {
		namespace := p.namespace()
		if _, isKnown := hasMount[namespace]; !isKnown {
			hasMount[namespace] = len(s.mountPoints(p, of)) > 0
		}
		if !hasMount[namespace] {
			continue
		}
		if s.over() || !p.isStarting() {
			return false
		}
		found = true
	}
	return found
}

// isStarting is also true for a process that is gone.
func (p process) isStarting() bool {
	const startTime, ticks = 22, 100 // proc_pid_stat(5); a tick is 10 ms
	stat, err := os.ReadFile(filepath.Join(p.dir, "stat"))
	if err != nil {
		return true
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // from the third on
	var now unix.Timespec
	if len(fields) <= startTime-3 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return false
	}
	started, err := strconv.ParseInt(string(fields[startTime-3]), 10, 64)
	return err == nil && time.Duration(now.Nano())-time.Duration(started)*time.Second/ticks < startUp
}
