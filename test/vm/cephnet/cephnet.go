// Package cephnet runs the tests of a package with a Ceph cluster, in a network
// namespace of their own. Guests are on a bridge there: each has an address of
// its own, by which the cluster knows its clients.
package cephnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

const (
	inside = "CLEAT_TEST_CEPH_NETWORK" // set in the network namespace: the directory of the programs
	bridge = "guests"
)

// Suite is what TestMain prepares.
type Suite struct {
	Guests []vm.Spec // downloaded before the network is gone
	// Build builds programs into a directory.
	Build   func(ctx context.Context, dir string) error
	Options cephtest.Options
	// Ready is called with the running cluster.
	Ready func(*cephtest.Cluster) error
}

// Main runs the tests, and returns the exit code.
func Main(m *testing.M, s Suite) int {
	if os.Getenv(inside) == "" {
		return s.rerun()
	}
	return testkit.RunMain(m, func(dir string) error {
		for _, args := range [][]string{
			{"link", "set", "lo", "up"}, {"link", "add", bridge, "type", "bridge"},
			{"address", "add", netip.PrefixFrom(HostAddress, 24).String(), "dev", bridge}, {"link", "set", bridge, "up"},
		} {
			if err := ip(args...); err != nil {
				return err
			}
		}
		s.Options.Addr = HostAddress
		cluster, err := cephtest.Run(dir, s.Options)
		if err != nil {
			return err
		}
		return s.Ready(cluster)
	})
}

// rerun runs this test binary again in a network namespace. Downloads and builds
// come first.
func (s Suite) rerun() int {
	dir, err := os.MkdirTemp("", "ceph-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = s.prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code, _ := testkit.RerunInNetNS(inside + "=" + dir)
	return code
}

func (s Suite) prepare(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	for _, g := range s.Guests {
		if err := vm.Prepare(ctx, g, func(format string, args ...any) { fmt.Printf(format+"\n", args...) }); err != nil {
			return err
		}
	}
	return s.Build(ctx, dir)
}

// Program returns the path of a program that Suite.Build has built.
func Program(name string) string { return filepath.Join(os.Getenv(inside), name) }

// HostAddress is the cluster's, of TEST-NET-2 (RFC 5737).
var HostAddress = netip.MustParseAddr("198.51.100.1")

// GuestAddress returns the address of guest n.
func GuestAddress(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(11 + n)})
}

// Devices returns the QEMU arguments of guest n for its network.
func Devices(n int) []string { return tap(n).Args() }

func tap(n int) vm.Tap { return vm.Tap{Interface: fmt.Sprintf("guest%d", n), N: n} }

// Connect gives a booted guest its address.
func Connect(k *kernel.Kernel, n int) {
	k.Helper()
	testkit.Must(k, ip("link", "set", tap(n).Interface, "master", bridge, "up"))
	for _, name := range k.Names("/sys/class/net") {
		if k.Read(path.Join("/sys/class/net", name, "address")) == tap(n).MAC() {
			k.Run("ip", "address", "add", netip.PrefixFrom(GuestAddress(n), 24).String(), "dev", name)
			k.Run("ip", "link", "set", name, "up")
		}
	}
	k.Run("ping", "-c", "1", "-W", "10", HostAddress.String())
}

// Disconnect takes a guest off the network, or returns it. The guest does not
// notice.
func Disconnect(k *kernel.Kernel, n int, off bool) {
	k.Helper()
	state := "up"
	if off {
		state = "down"
	}
	testkit.Must(k, ip("link", "set", tap(n).Interface, state))
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %q: %w: %s", args, err, out)
	}
	return nil
}
