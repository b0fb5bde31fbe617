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

// Environment lists name=count, separated by commas: the process kills itself
// at the count-th Hit of that name.
const Environment = "CLEAT_CRASHPOINT"

// LogEnvironment is a file, or a FIFO, to which the name of a reached point is
// appended before the process dies.
const LogEnvironment = "CLEAT_CRASHPOINT_LOG"

// ActionEnvironment is Freeze; by default the process is killed.
const ActionEnvironment = "CLEAT_CRASHPOINT_ACTION"

// Freeze stops the call while other goroutines continue, until the reader of
// the log powers off the machine.
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

// Hit kills the process with SIGKILL, or stops its caller, at a configured
// point.
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
		time.Sleep(time.Hour) // an empty select could be reported as deadlock
	}
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
	select {}
}
