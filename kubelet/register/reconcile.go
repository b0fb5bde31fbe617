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

// reconcile recreates the socket if hosts no longer find it.
func (k *reconciler) reconcile(ctx context.Context) {
	if k.isUnsure() {
		if err := k.withdraw(); err != nil {
			k.logger.Error("removing registration socket failed", "err", err)
		}
		k.update(func(r *record, now time.Time) { r.miss(now, errors.New("it is created again, to register again")) })
		k.notBefore = time.Now().Add(k.every)
		return
	}
	if k.listener != nil {
		seen, err := k.listener.Look()
		if err != nil {
			k.logger.Warn("registration socket check failed", "err", err)
			return
		}
		if seen == unixsock.Ours {
			return
		}
		// Close the old listener last: until then its inode number, by which
		// hosts distinguish the sockets, cannot be reused.
		defer k.lose(seen)()
		if time.Since(k.created) < minSocketAge {
			k.notBefore = time.Now().Add(k.every) // this loss can still wake the loop
			return
		}
	}
	if time.Now().Before(k.notBefore) {
		return
	}
	l, err := unixsock.Listen(ctx, unixsock.Address{Path: k.socket, SharedDir: true})
	switch {
	case err == nil:
		k.serve(l)
	case ctx.Err() != nil:
	default:
		dir := filepath.Dir(k.socket)
		if _, missing := os.Stat(dir); errors.Is(missing, fs.ErrNotExist) {
			err = fmt.Errorf("the directory %s does not exist; the kubelet creates it at start, and in a container it must be mounted from the host (%w)", dir, err)
		}
		k.update(func(r *record, now time.Time) { r.miss(now, err) })
	}
}

func (k *reconciler) isUnsure() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.record.isUnsure()
}

func (k *reconciler) pause() time.Duration {
	if rest := time.Until(k.notBefore); rest > 0 {
		return rest
	}
	return k.every
}

// Connections of hosts can wait in its backlog.
func (k *reconciler) serve(l *unixsock.Listener) {
	k.listener, k.created = l, time.Now()
	k.update(func(r *record, now time.Time) { r.place(now) })
	k.serving.Go(func() {
		err := k.server.Serve(k.ctx, l)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			k.logger.Error("serving registration socket failed", "err", err)
		}
	})
}

// lose returns a function that closes the lost socket. In-flight RPCs continue.
func (k *reconciler) lose(seen unixsock.PathState) (closeOld func()) {
	what := "another process removed it"
	if seen == unixsock.Replaced {
		what = "another process replaced it"
	}
	k.logger.Warn("registration socket lost", "socket", k.socket, "reason", what)
	k.mu.Lock() // without a log entry: it is recreated
	k.record.lose(time.Now(), errors.New(what))
	k.mu.Unlock()
	lost := k.listener
	k.listener = nil
	return func() {
		if err := lost.Close(); err != nil {
			k.logger.Warn("closing lost registration socket failed", "err", err)
		}
	}
}

// The host deregisters the plugin when the socket is removed.
func (k *reconciler) withdraw() error {
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

// findWatchers helps to find why no host calls GetInfo.
func (k *reconciler) findWatchers() {
	k.mu.Lock()
	sought := k.record.watchersFound
	k.mu.Unlock()
	if k.Status().State != Silent || time.Since(sought) < firstReminder {
		return
	}
	found, err := inotify.Watchers(filepath.Dir(k.socket), func(string) bool { return true })
	var text string
	switch {
	case err != nil:
		k.logger.Debug("finding watchers of registration directory failed", "err", err)
	case len(found) == 0:
		text = ". No other visible process watches the directory now (a container cannot see the processes of the host)"
	default:
		var names []string
		for _, p := range found {
			names = append(names, p.String())
		}
		text = ". The directory is watched by " + strings.Join(names, ", ") + "; if one of them is the kubelet, see its log"
	}
	k.mu.Lock()
	k.record.watchersFound, k.record.watchers = time.Now(), text
	k.mu.Unlock()
}
