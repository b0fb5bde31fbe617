// Package ceph tests node/rbd and node/cephfs in guests, whose kernels have RBD
// and CephFS, with a Ceph cluster of the host.
package ceph

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/image"
)

const (
	pool       = "images"  // of tests of node/rbd
	volumes    = "volumes" // pool of the controller
	fileSystem = "files"
	group      = "tests" // of all subvolumes
)

// cluster is shared by all tests.
var cluster *cephtest.Cluster

func TestMain(m *testing.M) {
	kernelcall.Main()
	os.Exit(cephnet.Main(m, cephnet.Suite{
		Guests: []vm.Spec{spec(0), spec(1)}, Build: build, Options: cephtest.Options{FS: fileSystem},
		Ready: func(c *cephtest.Cluster) error {
			cluster = c
			return errors.Join(cluster.CreatePool(pool), cluster.CreatePool(volumes))
		},
	}))
}

// build builds the programs: cleat for nodes as a static binary with crash
// points, also of the build before, controller the one with Ceph's libraries.
func build(ctx context.Context, dir string) error {
	to := func(name, pkg string, flags ...string) error {
		return testkit.BuildTo(ctx, filepath.Join(dir, name), pkg, flags...)
	}
	var before error
	if soak.Enabled {
		before = features.BuildPreviousRemoteTo(ctx, filepath.Join(dir, previous), "crashpoints")
	}
	return errors.Join(
		before, to("cleat", testkit.Cleat, "-tags", "crashpoints"), to("controller", testkit.Cleat, "-tags", "ceph,pacific"), to("suite", testkit.Suite),
		to("rbdclient", "./test/vm/ceph/rbdclient"), to("fsclient", "./test/vm/ceph/fsclient", "-tags", "crashpoints"),
		to("mounter", "./test/vm/dpu/mounter"), to("writer", "./test/vm/pair/writer"),
	)
}

// inGuests are the programs of guests.
func inGuests() []string {
	return []string{"cleat", "suite", "rbdclient", "fsclient", "mounter", "writer"}
}

// spec describes guest n. Guest 0 has Linux 6.1, in make soak 6.12. Guest 1 has
// that of Debian testing, which loads the extra modules for keys of type aes256k.
func spec(n int) vm.Spec {
	kernels := []image.Source{image.Stable, image.Testing}
	if soak.Enabled {
		kernels[0] = image.Backports
	}
	return vm.Spec{
		Name: fmt.Sprintf("node%d", n), Kernel: kernels[n],
		Modules: []string{"rbd", "ceph", "ext4", "xfs"}, Extra: []string{"authenc", "cts"}, Tools: image.Filesystems(),
		Devices: cephnet.Devices(n), Lifetime: lifetime,
	}
}
