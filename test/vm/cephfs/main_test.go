// Package cephfs tests node/cephfs in guests, whose kernels have CephFS, with a
// Ceph cluster of the host.
package cephfs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/image"
)

const (
	fileSystem = "files"
	group      = "tests" // of all subvolumes
)

// cluster is shared by all tests.
var cluster *cephtest.Cluster

func TestMain(m *testing.M) {
	os.Exit(cephnet.Main(m, cephnet.Suite{
		Guests: []vm.Spec{spec(0), spec(1)}, Build: build, Options: cephtest.Options{FS: fileSystem},
		Ready: func(c *cephtest.Cluster) error {
			cluster = c
			return nil
		},
	}))
}

func build(ctx context.Context, dir string) error {
	if err := testkit.BuildTo(ctx, filepath.Join(dir, "mounter"), "./test/vm/dpu/mounter"); err != nil {
		return err
	}
	return testkit.BuildTo(ctx, filepath.Join(dir, "client"), "./test/vm/cephfs/client", "-tags", "crashpoints")
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
		Modules: []string{"ceph"}, Extra: []string{"authenc", "cts"}, Devices: cephnet.Devices(n),
	}
}
