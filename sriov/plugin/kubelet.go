package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/internal/rpcdial"
)

// KubeletSocket is the file name of the kubelet's registration socket.
const KubeletSocket = "kubelet.sock"

// registerTimeout: the kubelet calls back before it answers; its own timeout is
// 10 s.
const registerTimeout = 15 * time.Second

// Kubelet registers by a Register call. Dir is the kubelet's device plugin
// directory, also for the resources' sockets.
type Kubelet struct{ Dir string }

// Register implements Registrar.
func (k Kubelet) Register(ctx context.Context, r Registration) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	path := filepath.Join(k.Dir, KubeletSocket)
	conn, err := rpcdial.Connect(ctx, path)
	if err != nil {
		if dial, ok := errors.AsType[*net.OpError](err); ok {
			err = dial.Err // without the path
		}
		return fmt.Errorf("connect to the kubelet at %s: %w", path, err)
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

// Forget does nothing: the end of the connection is sufficient.
func (Kubelet) Forget(context.Context, string) error { return nil }

// kubeletPoll is the polling interval while the directory cannot be watched.
const kubeletPoll = 2 * time.Second

// Restarts calls started each time the kubelet creates its socket: a new
// kubelet knows no plugin and has removed their sockets. It blocks until ctx
// ends.
func (k Kubelet) Restarts(ctx context.Context, started func()) error {
	const changes = inotify.Create | inotify.MovedTo | inotify.DeleteSelf | inotify.MoveSelf | inotify.OnlyDir
	last, _ := k.identity()
	for ctx.Err() == nil {
		now, exists := k.identity()
		if exists && now != last {
			started()
			last = now
		}
		// Errors only mean polling.
		_ = awaitChange(ctx, k.Dir, changes, kubeletPoll, kubeletPoll, func() bool {
			now, exists := k.identity()
			return exists && now != last
		})
	}
	return nil
}

// identity identifies the kubelet's socket.
func (k Kubelet) identity() (identity, bool) {
	var st unix.Stat_t
	err := unix.Lstat(filepath.Join(k.Dir, KubeletSocket), &st)
	return identity{st.Ino, st.Ctim}, err == nil
}

type identity struct {
	inode   uint64
	created unix.Timespec
}
