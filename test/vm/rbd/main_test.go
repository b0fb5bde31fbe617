// Package rbd tests node/rbd in guests, whose kernel has RBD, with a Ceph
// cluster of the host.
package rbd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/test/tree"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/image"
)

const (
	pool    = "images"  // of tests of node/rbd
	volumes = "volumes" // pool of the controller
)

// cluster is shared by all tests.
var cluster *cephtest.Cluster

func TestMain(m *testing.M) {
	kernelcall.Main()
	os.Exit(cephnet.Main(m, cephnet.Suite{Guests: []vm.Spec{spec(0), spec(1)}, Build: build, Ready: func(c *cephtest.Cluster) error {
		cluster = c
		return errors.Join(cluster.CreatePool(pool), cluster.CreatePool(volumes))
	}}))
}

// build builds the programs: cleat for nodes as a static binary with crash
// points, controller the one with Ceph's libraries.
func build(ctx context.Context, dir string) error {
	sanity := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "suite"), ".")
	root, err := tree.Root()
	if err != nil {
		return err
	}
	sanity.Dir = filepath.Join(root, "test", "sanity", "suite")
	sanity.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := sanity.CombinedOutput(); err != nil {
		return fmt.Errorf("go build in test/sanity/suite: %w\n%s", err, out)
	}
	return errors.Join(
		testkit.BuildTo(ctx, filepath.Join(dir, "cleat"), testkit.Cleat, "-tags", "crashpoints"),
		testkit.BuildTo(ctx, filepath.Join(dir, "controller"), testkit.Cleat, "-tags", "ceph,pacific"),
		testkit.BuildTo(ctx, filepath.Join(dir, "client"), "./test/vm/rbd/client"),
		testkit.BuildTo(ctx, filepath.Join(dir, "writer"), "./test/vm/pair/writer"),
	)
}

// spec describes guest n. Guest 0 has Linux 6.1, guest 1 that of Debian testing,
// which loads the extra modules for keys of type aes256k.
func spec(n int) vm.Spec {
	return vm.Spec{
		Name: fmt.Sprintf("node%d", n), Kernel: []image.Source{image.Stable, image.Testing}[n],
		Modules: []string{"rbd", "ext4", "xfs"}, Extra: []string{"authenc", "cts"}, Tools: image.Filesystems(),
		Devices: cephnet.Devices(n), Lifetime: lifetime,
	}
}
