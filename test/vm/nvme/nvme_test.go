package nvme

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

// built is the directory of the programs for guests.
var built string

func TestMain(m *testing.M) {
	kernelcall.Main()
	os.Exit(testkit.RunMain(m, func(dir string) error {
		built = dir
		return build(context.Background())
	}))
}

func programs(names ...string) (all []string) {
	for _, name := range names {
		all = append(all, filepath.Join(built, name))
	}
	return all
}

// build builds static programs; cleat has crash points, as has that of the build before.
func build(ctx context.Context) error {
	return errors.Join(
		testkit.BuildTo(ctx, filepath.Join(built, "suite"), testkit.Suite),
		testkit.BuildTo(ctx, filepath.Join(built, "cleat"), testkit.Cleat, "-tags", "crashpoints"),
		features.BuildPreviousRemoteTo(ctx, filepath.Join(built, previous), "crashpoints"),
		testkit.BuildTo(ctx, filepath.Join(built, "writer"), "./test/vm/pair/writer"),
	)
}

func lifetime() time.Duration {
	if soak.Enabled {
		return 95 * time.Minute
	}
	return 20 * time.Minute
}

// TestNVMe tests each kernel: 6.1 ignores DH-HMAC-CHAP, and 6.12 removes a
// controller that the target refuses.
func TestNVMe(t *testing.T) {
	for _, source := range []image.Source{image.Stable, image.Backports} {
		t.Run(string(source), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, source)
			r.tests(t, all()...)
			r.Stop()
			r.target.Remove()
			var args []string
			switch {
			case soak.Enabled:
				args = []string{"-outage=10m"}
			case source == image.Backports: // what it does otherwise than 6.1
				args = []string{"-test.run=^(TestPathLoss|TestFlushUncertain|TestTargetRefuses)$"}
			}
			t.Run("attacher", func(t *testing.T) { vm.GoTest(t, r.Guest, "./node/nvme", args...) })
		})
	}
}

// subtest runs in the guests with a kernel, or in all: also in make soak.
type subtest struct {
	name   string
	run    func(*rig)
	kernel image.Source
}

func all() []subtest {
	all := []subtest{
		{"neighbours", (*rig).testNeighbours, image.Stable},
		{"keys", (*rig).testKeys, ""},
		{"tls", (*rig).testTLS, ""},
		{"paths", (*rig).testPaths, image.Backports},
		{"modes", (*rig).testModes, image.Stable},
		{"lost state", (*rig).testLostState, image.Stable},
		{"upgrade of spdk", (*rig).testUpgradeOfSPDK, image.Backports},
		{"kills", (*rig).testKills, image.Backports},
		{"sabotage", (*rig).testSabotage, image.Backports},
		{"sanity", (*rig).testSanity, image.Stable},
	}
	if soak.Enabled { // the attacher is that of spdk
		all = append(all, subtest{"upgrade of none", (*rig).testUpgradeOfNone, ""})
	}
	return all
}

func (r *rig) tests(t *testing.T, all ...subtest) {
	for _, s := range all {
		if s.kernel != "" && s.kernel != r.source && !soak.Enabled {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			begun := time.Now()
			sub := r.in(t)
			s.run(sub)
			sub.wantNothing()
			fmt.Printf("REPORT: nvme %s: %s took %.0f s\n", r.source, s.name, time.Since(begun).Seconds())
		})
	}
}
