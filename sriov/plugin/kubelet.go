package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/internal/rpcdial"
)

// KubeletSocket is the file name of the kubelet's registration service in its
// directory for device plugins.
const KubeletSocket = "kubelet.sock"

// registerTimeout bounds a registration. The kubelet calls back before it
// answers; its own timeout is 10 s.
const registerTimeout = 15 * time.Second

// Kubelet registers by a Register call to the kubelet's registration service.
// Dir is the kubelet's device plugin directory, which also has the sockets of
// the resources.
type Kubelet struct{ Dir string }

// Register implements Registrar.
func (k Kubelet) Register(ctx context.Context, r Registration) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	path := filepath.Join(k.Dir, KubeletSocket)
	conn, err := rpcdial.Connect(ctx, path)
	if err != nil {
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

// Forget implements Registrar. The end of the connection is sufficient.
func (Kubelet) Forget(context.Context, string) error { return nil }

// kubeletPoll is the polling interval for the kubelet's socket while its
// directory cannot be watched or does not exist.
const kubeletPoll = 2 * time.Second

// Restarts calls started each time the kubelet creates its socket: a new
// kubelet knows no device plugin and has removed their sockets. It blocks until
// ctx ends.
func (k Kubelet) Restarts(ctx context.Context, started func()) error {
	const changes = inotify.Create | inotify.MovedTo | inotify.DeleteSelf | inotify.MoveSelf | inotify.OnlyDir
	last, _ := k.identity()
	for ctx.Err() == nil {
		now, exists := k.identity()
		if exists && now != last {
			started()
			last = now
		}
		// Errors only mean polling; the loop checks again.
		_ = awaitChange(ctx, k.Dir, changes, kubeletPoll, kubeletPoll, func() bool {
			now, exists := k.identity()
			return exists && now != last
		})
	}
	return nil
}

// identity identifies one socket of the kubelet.
func (k Kubelet) identity() (identity, bool) {
	var st unix.Stat_t
	err := unix.Lstat(filepath.Join(k.Dir, KubeletSocket), &st)
	return identity{st.Ino, st.Ctim}, err == nil
}

type identity struct {
	inode   uint64
	created unix.Timespec
}
