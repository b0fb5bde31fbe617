//go:build crashpoints

// Package crashpoint, armed: see crashpoint.go.
package crashpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Environment is a comma-separated list of name=count: the process kills itself
// at the count-th Hit of that name.
const Environment = "CLEAT_CRASHPOINT"

// LogEnvironment is a file to which the name of a reached point is appended
// with O_APPEND before the process dies, so that the test can count them. With
// a FIFO a reader is notified immediately.
const LogEnvironment = "CLEAT_CRASHPOINT_LOG"

// ActionEnvironment is the action at a point: Freeze, by default the process is killed.
const ActionEnvironment = "CLEAT_CRASHPOINT_ACTION"

// Freeze stops the call forever while other goroutines continue, until the
// reader of the log powers off the machine.
const Freeze = "freeze"

var armed = parse(os.Getenv(Environment))

type counter struct{ left atomic.Int64 }

func parse(list string) map[string]*counter {
	points := map[string]*counter{}
	for item := range strings.SplitSeq(list, ",") {
		name, count, ok := strings.Cut(item, "=")
		n, err := strconv.ParseInt(count, 10, 64)
		if !ok || err != nil {
			continue
		}
		c := &counter{}
		c.left.Store(n)
		points[name] = c
	}
	return points
}

// Hit kills the process with SIGKILL, or stops its caller, at a point set in
// the environment.
func Hit(name string) {
	c := armed[name]
	if c == nil || c.left.Add(-1) != 0 {
		return
	}
	if path := os.Getenv(LogEnvironment); path != "" {
		if f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_, _ = f.WriteString(name + "\n")
			_ = f.Close()
		}
	}
	for os.Getenv(ActionEnvironment) == Freeze {
		time.Sleep(time.Hour) // if all goroutines wait for this one, the runtime reports an empty select as deadlock
	}
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
	select {}
}
