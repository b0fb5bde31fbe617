// Package cephfs tests node/cephfs in guests, whose kernels have CephFS, with a
// Ceph cluster of the host.
package cephfs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

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

// spec describes guest n. Guest 0 has Linux 6.1, guest 1 Linux 6.12.
func spec(n int) vm.Spec {
	return vm.Spec{
		Name: fmt.Sprintf("node%d", n), Kernel: []image.Source{image.Stable, image.Testing}[n],
		Modules: []string{"ceph"}, Devices: cephnet.Devices(n),
	}
}
