package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/internal/rpcdial"
)

// KubeletSocket is the file name of the kubelet's registration service in its
// directory for device plugins.
const KubeletSocket = "kubelet.sock"

// registerTimeout bounds a registration. The kubelet calls back before it answers,
// and gives up itself after 10 s.
const registerTimeout = 15 * time.Second

// Kubelet registers with the kubelet's own service: a call of Register. Dir is
// its directory for device plugins, where the sockets of resources are too.
type Kubelet struct{ Dir string }

// Register is part of Registrar.
func (k Kubelet) Register(ctx context.Context, r Registration) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	path := filepath.Join(k.Dir, KubeletSocket)
	conn, err := rpcdial.Connect(ctx, path)
	if err != nil {
		return fmt.Errorf("reach the kubelet on %s: %w", path, err)
	}
	defer conn.Close()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: filepath.Base(r.Endpoint), ResourceName: r.Resource, Options: r.Options,
	})
	if err != nil {
		return fmt.Errorf("register %s with the kubelet: %w", r.Resource, err)
	}
	return nil
}

// Forget is part of Registrar: the end of the connection is enough.
func (Kubelet) Forget(context.Context, string) error { return nil }

// kubeletPoll is how often the kubelet's socket is checked while its directory
// cannot be watched, or does not exist.
const kubeletPoll = 2 * time.Second

// Restarts calls started each time the kubelet creates its socket: it has forgotten
// all device plugins and removed their sockets. It blocks until ctx ends.
func (k Kubelet) Restarts(ctx context.Context, started func()) error {
	last, _ := k.identity()
	for ctx.Err() == nil {
		k.awaitChange(ctx)
		now, there := k.identity()
		if there && now != last {
			started()
			last = now
		}
	}
	return nil
}

// identity identifies a socket of the kubelet.
func (k Kubelet) identity() (identity, bool) {
	info, err := os.Lstat(filepath.Join(k.Dir, KubeletSocket))
	if err != nil {
		return identity{}, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, false
	}
	return identity{st.Ino, st.Ctim}, true
}

type identity struct {
	inode uint64
	made  syscall.Timespec
}

// awaitChange returns after a change of the directory, or after kubeletPoll.
func (k Kubelet) awaitChange(ctx context.Context) {
	w, err := inotify.New()
	if err == nil {
		defer w.Close()
		_, err = w.Add(k.Dir, inotify.Create|inotify.MovedTo|inotify.DeleteSelf|inotify.MoveSelf|inotify.OnlyDir)
	}
	if err == nil {
		_, err = w.Read(ctx, time.Now().Add(kubeletPoll), nil)
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		_ = pause(ctx, kubeletPoll)
	}
}
