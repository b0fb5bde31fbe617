package cephfs_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/cephfs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const own = "/volumes/csi/cleat-vol-0123456789abcdef0123456789abcdef/01234567-89ab-cdef-0123-456789abcdef"

func newAttacher(t *testing.T) (*cephfs.Attacher, string) {
	dir := testkit.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	a := cephfs.New(cephfs.Config{Driver: "d", Dir: dir})
	t.Cleanup(func() { testkit.Must(t, a.Close(testkit.Context(t))) })
	return a, dir
}

func TestPaths(t *testing.T) {
	for path, want := range map[string]bool{
		own: true, own + "/x": false, own + "/.snap/s": false, own[:len(own)-1]: false,
		"/volumes/csi/csi-vol-0123456789abcdef0123456789abcdef/01234567-89ab-cdef-0123-456789abcdef":   false,
		"/volumes/a/b/cleat-vol-0123456789abcdef0123456789abcdef/01234567-89ab-cdef-0123-456789abcdef": false, "/": false,
	} {
		if got := cephfs.IsOwnSubvolume(path); got != want {
			t.Errorf("%s is a subvolume of the engine: %t, want %t", path, got, want)
		}
	}
	for path, want := range map[string][2]string{
		own: {own, ""}, own + "/.snap/_s_1": {own, ".snap/_s_1"}, "/.snap/s": {"/", ".snap/s"}, "/a/.snap": {"/a/.snap", ""},
		"/volumes/csi/v/.snap/s/u": {"/volumes/csi/v", ".snap/s/u"}, "/a.snap/b": {"/a.snap/b", ""},
	} {
		if parent, inside := cephfs.SplitSnapshot(path); parent != want[0] || inside != want[1] {
			t.Errorf("%s is split into %q and %q, want %q", path, parent, inside, want)
		}
	}
}

func FuzzSplitSnapshot(f *testing.F) {
	f.Add(own + "/.snap/s")
	f.Fuzz(func(t *testing.T, path string) {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return
		}
		parent, inside := cephfs.SplitSnapshot(path)
		if filepath.Join(parent, inside) != path || !filepath.IsAbs(parent) || strings.Contains(parent+"/", "/.snap/") && inside != "" || strings.HasPrefix(inside, "..") {
			t.Errorf("%q is split into %q and %q", path, parent, inside)
		}
	})
}

// Each part of a locator that identifies the volume changes its place, which is
// always below the driver's directory.
func TestPlace(t *testing.T) {
	a, dir := newAttacher(t)
	m := netip.MustParseAddrPort("192.0.2.1:6789")
	places := map[string]access.CephFS{}
	for _, l := range []access.CephFS{
		{Ceph: access.Ceph{ClusterID: "east"}, FS: "files", Path: own},
		{Ceph: access.Ceph{ClusterID: "west"}, FS: "files", Path: own},
		{Ceph: access.Ceph{ClusterID: "east"}, Path: own},
		{Ceph: access.Ceph{Monitors: []netip.AddrPort{m}}, Path: own},
		{Ceph: access.Ceph{ClusterID: "east"}, FS: "files", Path: own + "/.snap/s"},
	} {
		name, path := a.Place(l)
		if have, ok := places[name]; ok {
			t.Errorf("%+v and %+v are both %s", have, l, name)
		}
		places[name] = l
		if want := filepath.Join(dir, "cephfs", "d", name); path != want && path != want+"/.snap/s" {
			t.Errorf("%+v is at %s, want %s", l, path, want)
		}
		l.User, l.Key = "other", "key"
		if again, _ := a.Place(l); again != name {
			t.Errorf("with another user %+v is %s, not %s", l, again, name)
		}
	}
}

func TestIsDead(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EACCES: true, unix.EIO: true, unix.ESTALE: true, unix.ENOENT: true, unix.ETIMEDOUT: false, unix.ENODATA: false,
		errs.Errorf(errs.Unavailable, "x"): false,
	} {
		if got := cephfs.IsDead(fmt.Errorf("wrapped: %w", err)); got != want {
			t.Errorf("%v: %t, want %t", err, got, want)
		}
	}
}

// Calls for what is not mounted need neither kernel nor cluster.
func TestNotAttached(t *testing.T) {
	a, _ := newAttacher(t)
	v := node.Target{Locator: access.CephFS{Ceph: access.Ceph{ClusterID: "east"}, Path: own}}
	if info := testkit.Value(a.Inspect(t.Context(), v))(t); !info.Device.IsZero() || info.Presence != node.Present || info.Problem != nil {
		t.Errorf("Inspect: %+v", info)
	}
	if held := testkit.Value(a.Held(t.Context()))(t); len(held) > 0 {
		t.Errorf("Held: %+v", held)
	}
	testkit.Must(t, a.Detach(t.Context(), v), a.Detach(t.Context(), node.Target{Device: node.Device{Backing: strings.Repeat("0", 32)}}))
	testkit.WantError(t, "Detach of another's device", a.Detach(t.Context(), node.Target{Device: node.Device{Backing: "../../etc"}}), errs.Internal)
	testkit.WantError(t, "Attach for block use", testkit.Err(a.Attach(t.Context(), v, node.Use{Block: true})), errs.Invalid)
	testkit.WantError(t, "Attach without credentials", testkit.Err(a.Attach(t.Context(), v, node.Use{})), errs.Unauthenticated)
	v.Secrets = map[string]string{"userID": "node", "userKey": "AQBkZWFkYmVlZjAxMjM0NTY3ODlhYmNkZWY="}
	testkit.WantError(t, "Attach in an unknown cluster", testkit.Err(a.Attach(t.Context(), v, node.Use{})), errs.Precondition)
	testkit.WantError(t, "Resize", testkit.Err(a.Resize(t.Context(), v)), errs.Precondition)
	testkit.WantError(t, "SetReadOnly", a.SetReadOnly(t.Context(), v, true), errs.Unsupported)
	testkit.WantError(t, "an RBD image", a.Detach(t.Context(), node.Target{Locator: access.RBD{}}), errs.Internal)
}
