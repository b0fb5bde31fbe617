package register

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// keep looks whether hosts find the socket, and puts it there when they do not.
func (k *keeper) keep(ctx context.Context) {
	if k.listener != nil {
		seen, err := k.listener.Look()
		if err != nil {
			k.logger.Warn("the registration socket cannot be looked at", "error", err)
			return
		}
		if seen == unixsock.Ours {
			return
		}
		// It is closed after its successor is made: until then the kernel
		// cannot give its inode number again, by which hosts tell the two apart.
		defer k.lose(seen)()
		if time.Since(k.made) < restless {
			k.rest = time.Now().Add(k.every) // the event of this very loss may still wake us
			return
		}
	}
	if time.Now().Before(k.rest) {
		return
	}
	l, err := unixsock.Listen(ctx, unixsock.Address{Path: k.socket, SharedDir: true})
	switch {
	case err == nil:
		k.place(l)
	case ctx.Err() != nil:
	default:
		dir := filepath.Dir(k.socket)
		if _, missing := os.Stat(dir); errors.Is(missing, fs.ErrNotExist) {
			err = fmt.Errorf("the directory %s is not there; the kubelet makes it when it starts, and in a container it must be mounted from the host (%w)", dir, err)
		}
		k.note(func(r *record, now time.Time) { r.miss(now, err) })
	}
}

// pause is how long to wait for the next look.
func (k *keeper) pause() time.Duration {
	if rest := time.Until(k.rest); rest > 0 {
		return rest
	}
	return k.every
}

// place begins to serve a socket that hosts find already; what they have sent
// meanwhile waits in its queue.
func (k *keeper) place(l *unixsock.Listener) {
	k.listener, k.made = l, time.Now()
	k.note(func(r *record, now time.Time) { r.place(now) })
	k.serving.Go(func() {
		err := k.server.Serve(k.ctx, l)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			k.logger.Error("the registration socket is served no more", "error", err)
		}
	})
}

// lose gives up a socket that hosts do not find any more, and returns what
// closes it. What is under way on it goes on.
func (k *keeper) lose(seen unixsock.Sight) (closeIt func()) {
	what := "somebody removed it"
	if seen == unixsock.Replaced {
		what = "somebody put something else in its place"
	}
	k.logger.Warn("the registration socket is lost", "socket", k.socket, "reason", what)
	k.mu.Lock() // no report: it is about to be put back
	k.record.lose(time.Now(), errors.New(what))
	k.mu.Unlock()
	lost := k.listener
	k.listener = nil
	return func() {
		if err := lost.Close(); err != nil {
			k.logger.Warn("a lost registration socket could not be closed", "error", err)
		}
	}
}

// withdraw takes the socket out of the directory when it is still ours there,
// so that the host deregisters the plugin.
func (k *keeper) withdraw() error {
	if k.listener == nil {
		return nil
	}
	err := k.listener.Close()
	k.listener = nil
	if err != nil {
		return fmt.Errorf("registration: %w", err)
	}
	return nil
}

// findWatchers finds out, while nobody asks, who watches the directory: that
// nobody does, or who does and yet is silent, leads to the fault.
func (k *keeper) findWatchers() {
	k.mu.Lock()
	sought := k.record.sought
	k.mu.Unlock()
	if k.Status().State != Silent || time.Since(sought) < firstReminder {
		return
	}
	found, err := inotify.Watchers(filepath.Dir(k.socket), func(string) bool { return true })
	var text string
	switch {
	case err != nil:
		k.logger.Debug("who watches the registration directory is unknown", "error", err)
	case len(found) == 0:
		text = ". No other process that can be seen from here watches it now (from a container the host's cannot be seen)"
	default:
		var names []string
		for _, p := range found {
			names = append(names, p.String())
		}
		text = ". It is watched by " + strings.Join(names, ", ") + "; if that is the host, its log says why it does not ask"
	}
	k.mu.Lock()
	k.record.sought, k.record.watched = time.Now(), text
	k.mu.Unlock()
}
