//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ceph/go-ceph/cephfs"

	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// fsUser creates a user with the capabilities that the documents name.
func fsUser(c *cephtest.Cluster) (cephconf.Credentials, error) {
	key, err := c.User("fscontroller", "mon", `allow r, allow command "osd blocklist"`, "mgr", "allow rw",
		"osd", "allow *", "mds", "allow *")
	return cephconf.Credentials{User: "fscontroller", Key: key}, err
}

// fsConfig returns a configuration with an empty subvolume group.
func fsConfig(t testing.TB) FSConfig {
	t.Helper()
	group := fmt.Sprintf("trial-%d", shared.namespaces.Add(1))
	return FSConfig{
		Cluster:     cephconf.Cluster{ID: "test", Monitors: []string{"v2:" + shared.Monitors()[0]}, CephFS: cephconf.CephFS{SubvolumeGroup: group}},
		Credentials: shared.ofFS, Interval: 100 * time.Millisecond, Logger: testkit.NewLog(t).Logger(),
	}
}

func openFS(t testing.TB, c FSConfig) *FS {
	t.Helper()
	e := testkit.Value(OpenFS(testkit.Context(t), c))(t)
	t.Cleanup(func() { closeFS(t, e) })
	return e
}

func closeFS(t testing.TB, e *FS) {
	t.Helper()
	testkit.Must(t, e.Close(testkit.Context(t)))
}

func fsRequest(name string, source volume.Source) volume.CreateRequest {
	return volume.CreateRequest{Name: name, Size: volume.SizeRange{Required: 16 * mib}, Content: volume.Filesystem, Source: source}
}

// makeFS creates a volume and waits until it is filled.
func makeFS(t testing.TB, e *FS, req volume.CreateRequest) volume.Volume {
	t.Helper()
	v := testkit.Value(e.Create(testkit.Context(t), req))(t)
	testkit.Eventually(t, "the volume is filled", func() bool {
		v = testkit.Value(e.Get(testkit.Context(t), v.ID))(t)
		return !v.Progress.Running()
	})
	return v
}

// mountAll mounts a directory of the file system as another client than the
// engine.
func mountAll(path string) (*cephfs.MountInfo, error) {
	m, err := cephfs.CreateFromRados(shared.client)
	if err != nil {
		return nil, err
	}
	if err = m.SelectFilesystem(testFS); err == nil {
		err = m.MountWithRoot(path)
	}
	if err != nil {
		return nil, errors.Join(err, m.Release())
	}
	return m, nil
}

// mountFS mounts a volume until the end of the test, or until end is called.
func mountFS(t testing.TB, v volume.Volume) (end func()) {
	t.Helper()
	m := testkit.Value(mountAll(pathOf(v)))(t)
	end = sync.OnceFunc(func() { testkit.Must(t, m.Unmount(), m.Release()) })
	t.Cleanup(end)
	return end
}

func pathOf(v volume.Volume) string { return v.Locator.(access.CephFS).Path }

// content is a volume as the suite sees it: a file that reads as zeros where
// nothing was written, and has the size of the quota.
type content struct {
	dir string
	f   *cephfs.File
}

func openContent(t testing.TB, v volume.Volume) content {
	t.Helper()
	flags := os.O_RDWR | os.O_CREATE
	if v.ReadOnly {
		flags = os.O_RDONLY
	}
	return content{pathOf(v), testkit.Value(shared.files.Open(path.Join(pathOf(v), "content"), flags, 0o644))(t)}
}

func (c content) ReadAt(p []byte, offset int64) (int, error) {
	for n := 0; n < len(p); {
		read, err := c.f.ReadAt(p[n:], offset+int64(n))
		if err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		if read == 0 {
			clear(p[n:])
			break
		}
		n += read
	}
	return len(p), nil
}

func (c content) WriteAt(p []byte, offset int64) (int, error) { return c.f.WriteAt(p, offset) }
func (c content) Size() (int64, error)                        { return number(shared.files, c.dir, "ceph.quota.max_bytes") }
func (c content) Sync() error                                 { return c.f.Fsync(cephfs.SyncAll) }

func (c content) Close() error { return c.f.Close() }

func TestFSSuite(t *testing.T) {
	t.Parallel()
	configs := map[*FS]FSConfig{}
	start := func(t *testing.T, c FSConfig) volume.Backend {
		e := testkit.Value(OpenFS(t.Context(), c))(t)
		configs[e] = c
		t.Cleanup(func() { testkit.Must(t, e.Close(context.WithoutCancel(t.Context()))) })
		return e.Backend()
	}
	enginetest.Run(t, enginetest.Harness{
		New:     func(t *testing.T) volume.Backend { return start(t, fsConfig(t)) },
		Content: volume.Filesystem,
		Size:    4 * mib, // copies have as many bytes
		Open: func(t *testing.T, _ volume.Backend, v volume.Volume) enginetest.Device {
			return openContent(t, v)
		},
		Hold: func(t *testing.T, _ volume.Backend, v volume.Volume) func() {
			return mountFS(t, v)
		},
		Reopen: func(t *testing.T, b volume.Backend) volume.Backend {
			e := b.Engine.(*FS)
			testkit.Must(t, e.Close(context.WithoutCancel(t.Context())))
			return start(t, configs[e])
		},
		FSTypes: []string{FSType},
	})
}

// write writes a file of a volume.
func writeFile(t testing.TB, v volume.Volume, name, text string) {
	t.Helper()
	f := testkit.Value(shared.files.Open(path.Join(pathOf(v), name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644))(t)
	testkit.Value(f.WriteAt([]byte(text), 0))(t)
	testkit.Must(t, f.Fsync(cephfs.SyncAll), f.Close())
}

// wantFile checks a file of a volume; an empty text means that it does not exist.
func wantFile(t testing.TB, v volume.Volume, name, want string) {
	t.Helper()
	f, err := shared.files.Open(path.Join(pathOf(v), name), os.O_RDONLY, 0)
	if want == "" {
		if !is(err, syscall.ENOENT) {
			t.Errorf("%s: %v, want none", name, err)
		}
		return
	}
	testkit.Must(t, err)
	defer f.Close()
	have := make([]byte, len(want)+1)
	n, err := f.ReadAt(have, 0)
	if err != nil && !errors.Is(err, io.EOF) || string(have[:n]) != want {
		t.Errorf("%s has %q (%v), want %q", name, have[:n], err, want)
	}
}
