package device_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/test/testkit"
)

// A kubelet whose backlog is full accepts no connection, and is not dead.
func TestClearSparesABusyKubelet(t *testing.T) {
	dir := t.TempDir()
	kubelet, plugin := filepath.Join(dir, device.KubeletSocket), filepath.Join(dir, "gpu.sock")
	fd := testkit.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	testkit.Must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: kubelet}), unix.Listen(fd, 0), unix.Mknod(plugin, unix.S_IFSOCK|0o600, 0))
	c := testkit.Value(net.Dial("unix", kubelet))(t)
	t.Cleanup(func() { _ = c.Close() })
	if err := device.NewRegistration(dir, begin(t)).Clear(t.Context()); !errors.Is(err, unixsock.ErrLive) {
		t.Errorf("Clear: %v, want %v", err, unixsock.ErrLive)
	}
	for _, socket := range []string{kubelet, plugin} {
		if _, err := os.Lstat(socket); err != nil {
			t.Errorf("a socket of the kubelet was removed: %v", err)
		}
	}
}
