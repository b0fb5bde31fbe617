// Package features is the one list of what a test can need and the project's own
// test machines or checkouts may lack. A test that needs a feature calls Need; it is
// left out only where the feature's probe reports that it is absent. In CI a kernel
// feature that turns out to be present is a failure (see the test): its entry has
// to be removed.
package features

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/tree"
)

// Feature is one thing that a kernel, the rights of this process or the checkout may
// lack.
type Feature struct {
	Name   string
	Reason string // why it is absent
	Proved string // where else what depends on it is proved
	// OfCheckout features depend on how the source was fetched: the entry stays
	// where one is present.
	OfCheckout bool
	// Present looks at this machine.
	Present func() (bool, error)
}

// OnlineExt4Growth is EXT4_IOC_RESIZE_FS, which asks for CAP_SYS_RESOURCE.
const OnlineExt4Growth = "ext4-online-growth"

// History is the repository's history back to PreviousRelease.
const History = "history"

// PreviousRelease is the commit that stands for the release before this one: the
// upgrade test (test/csi) builds it. It moves with each release.
const PreviousRelease = "ff40bafc41452a8b2e5d9d45fcd4f1c1b878abaf"

// All returns the list.
func All() []Feature {
	return []Feature{{
		Name:    OnlineExt4Growth,
		Reason:  "the test machines run without CAP_SYS_RESOURCE, which ext4 demands to grow while mounted",
		Proved:  "the error and the growth at the next stage are proved here; the online growth in a guest (test/vm/node)",
		Present: hasSysResource,
	}, {
		Name:       History,
		Reason:     "a source archive or a shallow clone has no commit " + PreviousRelease,
		Proved:     "the upgrade from that commit, and the way back, are proved in any full clone",
		OfCheckout: true,
		Present:    hasPreviousRelease,
	}}
}

// Need leaves the test out if the named feature is listed and absent here.
func Need(t testing.TB, name string) {
	t.Helper()
	for _, f := range All() {
		if f.Name != name {
			continue
		}
		present, err := f.Present()
		if err != nil {
			t.Fatalf("probe of feature %s: %v", name, err)
		}
		if !present {
			t.Skipf("left out: feature %s is absent: %s; %s", f.Name, f.Reason, f.Proved)
		}
		return
	}
	t.Fatalf("%q is not in the list of test/features", name)
}

func hasSysResource() (bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return set&(1<<unix.CAP_SYS_RESOURCE) != 0, err
		}
	}
	return false, nil
}

// hasPreviousRelease reports whether git has the commit. It is absent too where git is
// not installed.
func hasPreviousRelease() (bool, error) {
	root, err := tree.Root()
	if err != nil {
		return false, err
	}
	return tree.Git(root, "cat-file", "-e", PreviousRelease+"^{commit}").Run() == nil, nil
}
