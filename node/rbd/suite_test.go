package rbd_test

import (
	"flag"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/internal/linux/krbd/krbdtest"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/nodetest"
	"github.com/cleatproject/cleat/node/rbd"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// site is given by test/vm/ceph, which runs these tests in a guest.
var site = flag.String("site", "", "file with a Ceph cluster (JSON) for the suite, instead of a double of the kernel")

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const (
	driver  = "rbd.test"
	cluster = "east"
	pool    = "images"
)

func TestSuite(t *testing.T) {
	if *site != "" {
		c := testkit.Value(cephtest.ReadSite(*site))(t)
		nodetest.Run(t, func(t *testing.T) nodetest.Rig { return siteRig(t, c) })
		return
	}
	nodetest.Run(t, doubleRig)
}

// newAttacher returns an attacher as another process of a driver has it, whose
// images have names with a prefix.
func newAttacher(t *testing.T, c rbd.Config, prefix string) *rbd.Attacher {
	c.Driver, c.VolumeID = driver+"/"+prefix, func(d krbd.Device) volume.ID { return volume.ID(strings.TrimPrefix(d.Image, prefix)) }
	a := rbd.New(c)
	t.Cleanup(func() { testkit.Must(t, a.Close(testkit.Context(t))) })
	return a
}

func doubleRig(t *testing.T) nodetest.Rig {
	m := krbdtest.New(t)
	dir := t.TempDir()
	return nodetest.Rig{
		New:    func() node.Attacher { return newAttacher(t, configOf(m, dir), "") },
		Unseen: true,
		Create: func(id volume.ID, size int64) access.Access {
			name := string(id)
			return image(name, m.Create(pool+"/"+name, size))
		},
		Delete: func(id volume.ID) { m.Delete(pool + "/" + string(id)) },
		Grow:   func(id volume.ID, size int64) { m.Grow(pool+"/"+string(id), size) },
		Fence:  func(id volume.ID) { m.Fence(pool + "/" + string(id)) },
	}
}

func configOf(m *krbdtest.Machine, dir string) rbd.Config {
	return rbd.Config{
		Dir: dir, Kernel: m.Kernel(),
		Clusters: func() (cephconf.Clusters, error) {
			return cephconf.Clusters{{ID: cluster, Monitors: []string{krbdtest.Monitor}}}, nil
		},
		Credentials: func() (cephconf.Credentials, error) {
			return cephconf.Credentials{User: krbdtest.User, Key: krbdtest.Secret}, nil
		},
	}
}

func image(name, id string) access.RBD {
	return access.RBD{Ceph: access.Ceph{ClusterID: cluster}, Pool: pool, Image: name, ImageID: id}
}

// rig has the images of one test: the names of all tests are in one pool.
func siteRig(t *testing.T, c cephtest.Site) nodetest.Rig {
	dir := t.TempDir()
	prefix := c.Ask(t, "prefix", "-", 0)
	return nodetest.Rig{
		New: func() node.Attacher {
			return newAttacher(t, rbd.Config{Dir: dir, Credentials: func() (cephconf.Credentials, error) {
				return cephconf.Credentials{User: c.User, Key: c.Key}, nil
			}}, prefix)
		},
		Unseen: true,
		Create: func(id volume.ID, size int64) access.Access {
			name := prefix + string(id)
			return access.RBD{Ceph: access.Ceph{Monitors: c.Monitors}, Pool: c.Pool, Image: name, ImageID: c.Ask(t, "create", name, size)}
		},
		Delete: func(id volume.ID) { c.Ask(t, "delete", prefix+string(id), 0) },
		Grow:   func(id volume.ID, size int64) { c.Ask(t, "grow", prefix+string(id), size) },
		Fence: func(id volume.ID) {
			for _, d := range testkit.Value(krbd.Host().List())(t) {
				if d.Image == prefix+string(id) {
					c.Ask(t, "fence", d.Instance, 0)
				}
			}
		},
	}
}
