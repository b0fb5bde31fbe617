package cephfs_test

import (
	"flag"
	"path"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/cephfs"
	"github.com/cleatproject/cleat/node/nodetest"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// site is given by test/vm/ceph, which runs the suite in a guest: CephFS has
// no double.
var site = flag.String("site", "", "file with a Ceph cluster (JSON) for the suite")

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

func TestSuite(t *testing.T) {
	features.Need(t, features.CephFS)
	s := testkit.Value(cephtest.ReadSite(*site))(t)
	nodetest.Run(t, func(t *testing.T) nodetest.Rig { return rig(t, s) })
}

// rig has the subvolumes of one test: the names of all tests are in one group.
func rig(t *testing.T, s cephtest.Site) nodetest.Rig {
	dir := t.TempDir()
	prefix := s.Ask(t, "prefix", "-", 0)
	paths := map[volume.ID]string{}
	newAttacher := func() *cephfs.Attacher {
		a := cephfs.New(cephfs.Config{
			Driver: "cephfs.test", Dir: dir,
			Credentials: func() (cephconf.Credentials, error) { return cephconf.Credentials{User: s.User, Key: s.Key}, nil },
			VolumeID: func(l access.CephFS) volume.ID {
				return volume.ID(strings.TrimPrefix(path.Base(path.Dir(l.Path)), prefix))
			},
		})
		t.Cleanup(func() { testkit.Must(t, a.Close(testkit.Context(t))) })
		return a
	}
	locator := func(id volume.ID) access.CephFS {
		return access.CephFS{Ceph: access.Ceph{Monitors: s.Monitors}, FS: s.FS, Path: paths[id]}
	}
	return nodetest.Rig{
		New: func() node.Attacher { return newAttacher() },
		Create: func(id volume.ID, size int64) access.Access {
			paths[id] = s.Ask(t, "create", prefix+string(id), size)
			return locator(id)
		},
		Delete: func(id volume.ID) {
			s.Ask(t, "delete", prefix+string(id), 0)
			// An attached volume vanishes when its directory is in the trash.
			a := newAttacher()
			testkit.Eventually(t, "the volume has vanished", func() bool {
				info := testkit.Value(a.Inspect(t.Context(), node.Target{Locator: locator(id)}))(t)
				return info.Device.IsZero() || info.Presence == node.Lost
			})
		},
		Grow:     func(id volume.ID, size int64) { s.Ask(t, "grow", prefix+string(id), size) },
		Unseen:   true,
		Vanishes: true, Directories: true,
	}
}
