package cli

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Interruptible returns a context that ends with a signal to stop. A second
// signal ends the process at once. Writing to a pipe that nobody reads any more
// fails, and does not end the process before it has cleaned up.
func Interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	IgnoreBrokenPipes()
	signals := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // as it is below nohup
		signals = append(signals, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// IgnoreBrokenPipes makes writes to a pipe that nobody reads fail with EPIPE,
// where the Go runtime would end the process.
func IgnoreBrokenPipes() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) }
