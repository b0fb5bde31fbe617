package cli

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Interruptible returns a context that ends on SIGINT, SIGTERM or SIGHUP. A
// second signal ends the process. Writes to a broken pipe only fail.
func Interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	IgnoreBrokenPipes()
	signals := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // as under nohup
		signals = append(signals, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// IgnoreBrokenPipes makes writes to a broken pipe fail with EPIPE; for standard
// output Go ends the process by default.
func IgnoreBrokenPipes() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) }
