//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/ceph/go-ceph/cephfs"
	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

const (
	mib      = 1 << 20
	testPool = "volumes"
	testFS   = "files"
)

// shared is the cluster of all tests that do not disturb it.
var shared struct {
	*cephtest.Cluster
	credentials cephconf.Credentials
	ofFS        cephconf.Credentials
	client      *rados.Conn       // another client than the engine
	files       *cephfs.MountInfo // its mount of the whole file system
	namespaces  atomic.Int64
}

func TestMain(m *testing.M) {
	enginetest.Child(runChild)
	code, isInside := testkit.RerunInNetNS()
	if isInside {
		code = run(m)
	}
	os.Exit(code)
}

// clusterAddress is of the cluster and the engines (TEST-NET-2 of RFC 5737).
var clusterAddress = netip.MustParseAddr("198.51.100.1")

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", clusterAddress.String(), "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fail(fmt.Errorf("ip %q: %w: %s", args, err, out))
		}
	}
	if shared.Cluster, err = cephtest.Run(dir, cephtest.Options{Addr: clusterAddress, FS: testFS}); err != nil {
		return fail(err)
	}
	defer shared.Stop()
	if err := prepare(); err != nil {
		return fail(err)
	}
	code := m.Run()
	if err := errors.Join(shared.files.Unmount(), shared.files.Release()); code == 0 && err != nil {
		code = fail(err)
	}
	shared.client.Shutdown()
	shared.Stop()
	if err := goleak.Find(); code == 0 && err != nil {
		code = fail(err)
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, shared.Logs())
	}
	return code
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// prepare creates the pool, a user with the capabilities that the documents
// name, and a client that the engine knows nothing of.
func prepare() (err error) {
	if err := shared.CreatePool(testPool); err != nil {
		return err
	}
	if err := shared.ShortenWaits(); err != nil {
		return err
	}
	if shared.credentials, err = controllerUser(shared.Cluster, testPool); err != nil {
		return err
	}
	if shared.ofFS, err = fsUser(shared.Cluster); err != nil {
		return err
	}
	if shared.client, err = dial(shared.Cluster); err != nil {
		return err
	}
	shared.files, err = mountAll("/")
	return err
}

func controllerUser(c *cephtest.Cluster, pool string) (cephconf.Credentials, error) {
	key, err := c.User("controller", "mon", "profile rbd", "mgr", "profile rbd pool="+pool, "osd", "profile rbd pool="+pool)
	return cephconf.Credentials{User: "controller", Key: key}, err
}

func dial(c *cephtest.Cluster) (*rados.Conn, error) {
	client, err := rados.NewConnWithUser("admin")
	if err != nil {
		return nil, err
	}
	for option, value := range map[string]string{"mon_host": c.Monitors()[0], "key": c.AdminKey(), "rbd_cache": "false"} {
		if err := client.SetConfigOption(option, value); err != nil {
			return nil, err
		}
	}
	return client, client.Connect()
}

// testConfig returns a configuration with an empty namespace.
func testConfig(t testing.TB) Config {
	t.Helper()
	namespace := fmt.Sprintf("trial-%d", shared.namespaces.Add(1))
	io := ioctx(t, "")
	testkit.Must(t, rbd.NamespaceCreate(io, namespace))
	return Config{
		Cluster:     cephconf.Cluster{ID: "test", Monitors: []string{"v2:" + shared.Monitors()[0]}, RBD: cephconf.RBD{RadosNamespace: namespace}},
		Credentials: shared.credentials, Pools: []string{testPool}, Logger: testkit.NewLog(t).Logger(),
	}
}

// ioctx returns a namespace of the pool, for the client that is not the engine.
func ioctx(t testing.TB, namespace string) *rados.IOContext {
	t.Helper()
	io := testkit.Value(shared.client.OpenIOContext(testPool))(t)
	t.Cleanup(io.Destroy)
	io.SetNamespace(namespace)
	return io
}

func open(t testing.TB, c Config) *Engine {
	t.Helper()
	e := testkit.Value(Open(testkit.Context(t), c))(t)
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func closeEngine(t testing.TB, e *Engine) {
	t.Helper()
	testkit.Must(t, e.Close(testkit.Context(t)))
}

func create(t testing.TB, e *Engine, name string, source volume.Source) volume.Volume {
	t.Helper()
	return testkit.Value(e.Create(testkit.Context(t), request(name, source)))(t)
}

func request(name string, source volume.Source) volume.CreateRequest {
	return volume.CreateRequest{Name: name, Size: volume.SizeRange{Required: 16 * mib}, Content: volume.Raw, Source: source}
}

func takeSnap(t testing.TB, e *Engine, name string, source volume.ID) volume.Snapshot {
	t.Helper()
	return testkit.Value(e.CreateSnapshot(testkit.Context(t), volume.SnapshotRequest{Name: name, Source: source}))(t)
}

func wantKind(t testing.TB, err error, what string, kind errs.Kind) {
	t.Helper()
	if err == nil || errs.KindOf(err) != kind {
		t.Errorf("%s: %v (%s), want %s", what, err, errs.KindOf(err), kind)
	} else {
		t.Logf("%s: %v", what, err)
	}
}

// device is a volume as another client opens it.
type device struct{ *rbd.Image }

func (d device) Size() (int64, error) {
	size, err := d.GetSize()
	return int64(size), err
}

func (d device) Sync() error { return d.Flush() }

func openVolume(t testing.TB, v volume.Volume) device {
	t.Helper()
	l := v.Locator.(access.RBD)
	return device{testkit.Value(rbd.OpenImage(ioctx(t, l.Namespace), l.Image, rbd.NoSnapshot))(t)}
}

func TestConformance(t *testing.T) {
	configs := map[*Engine]Config{}
	start := func(t *testing.T, c Config) volume.Backend {
		e := open(t, c)
		configs[e] = c
		return e.Backend()
	}
	enginetest.Run(t, enginetest.Harness{
		New: func(t *testing.T) volume.Backend { return start(t, testConfig(t)) },
		Open: func(t *testing.T, _ volume.Backend, v volume.Volume) enginetest.Device {
			return openVolume(t, v)
		},
		OpenSnapshot: func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt {
			id, _ := parseSnapshotID(s.ID)
			io := ioctx(t, configs[b.Engine.(*Engine)].Cluster.RBD.RadosNamespace)
			i := testkit.Value(rbd.OpenImageByIdReadOnly(io, id.image, rbd.NoSnapshot))(t)
			testkit.Must(t, i.SetSnapByID(id.snap))
			t.Cleanup(func() { testkit.Must(t, i.Close()) })
			return i
		},
		Hold: func(t *testing.T, _ volume.Backend, v volume.Volume) func() {
			d := openVolume(t, v)
			return func() { testkit.Must(t, d.Close()) }
		},
		Reopen: func(t *testing.T, b volume.Backend) volume.Backend {
			e := b.Engine.(*Engine)
			testkit.Must(t, e.Close(context.WithoutCancel(t.Context())))
			return start(t, configs[e])
		},
		FSTypes: []string{"ext4", "xfs"}, // of btrfs there are no copies
	})
}
