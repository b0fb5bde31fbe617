// Package rbd tests node/rbd in guests, whose kernel has RBD, with a Ceph
// cluster of the host.
//
// Host, cluster and guests are in a network namespace of the test: each guest
// has an address of its own there, by which the cluster knows its client.
package rbd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/test/tree"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

const (
	inside  = "CLEAT_TEST_RBD_NETWORK" // set in the network namespace: the directory of the programs
	bridge  = "guests"
	pool    = "images"  // of tests of node/rbd
	volumes = "volumes" // pool of the controller
)

// program returns the path of a program that build has built.
func program(name string) string { return filepath.Join(os.Getenv(inside), name) }

// Addresses of TEST-NET-2 (RFC 5737).
var hostAddress = netip.MustParseAddr("198.51.100.1")

func guestAddress(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(11 + n)}) }

// cluster is shared by all tests.
var cluster *cephtest.Cluster

func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(runInside())
	}
	os.Exit(testkit.RunMain(m, func(dir string) (err error) {
		for _, args := range [][]string{
			{"link", "set", "lo", "up"}, {"link", "add", bridge, "type", "bridge"},
			{"address", "add", netip.PrefixFrom(hostAddress, 24).String(), "dev", bridge}, {"link", "set", bridge, "up"},
		} {
			if err := ip(args...); err != nil {
				return err
			}
		}
		if cluster, err = cephtest.Run(dir, cephtest.Options{Addr: hostAddress}); err != nil {
			return err
		}
		return errors.Join(cluster.CreatePool(pool), cluster.CreatePool(volumes))
	}))
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %q: %w: %s", args, err, out)
	}
	return nil
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

// runInside runs this test binary again in a network namespace. Downloads and
// builds come first.
func runInside() int {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	log := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if err := vm.Prepare(ctx, spec(0), log); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "rbd-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = build(ctx, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code, _ := testkit.RerunInNetNS(inside + "=" + dir)
	return code
}

func tap(n int) vm.Tap { return vm.Tap{Interface: fmt.Sprintf("guest%d", n), N: n} }

// spec describes guest n.
func spec(n int) vm.Spec {
	return vm.Spec{
		Name: fmt.Sprintf("node%d", n), Modules: []string{"rbd", "ext4", "xfs"}, Tools: image.Filesystems(),
		Devices: tap(n).Args(), Lifetime: lifetime,
	}
}
