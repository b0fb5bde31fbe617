// Package features is the one list of kernel features that the project's own
// test machines lack. A test that needs one calls Need; it is left out only
// where the feature's probe says that it is absent. In CI a feature that turns
// out to be present is a failure (see the test): then its entry has to go.
package features

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Feature is one thing that a kernel, or what it grants us, may lack.
type Feature struct {
	Name   string
	Reason string // why the test machines lack it
	Proved string // where else what depends on it is proved
	// Present looks at this machine.
	Present func() (bool, error)
}

// OnlineExt4Growth is EXT4_IOC_RESIZE_FS, which asks for CAP_SYS_RESOURCE.
const OnlineExt4Growth = "ext4-online-growth"

// All returns the list.
func All() []Feature {
	return []Feature{{
		Name:    OnlineExt4Growth,
		Reason:  "the test machines run without CAP_SYS_RESOURCE, which ext4 demands to grow while mounted",
		Proved:  "the error and the growth at the next stage are proved here; the online growth in a guest (test/vm/node)",
		Present: hasSysResource,
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
			t.Fatalf("probe of kernel feature %s: %v", name, err)
		}
		if !present {
			t.Skipf("left out: kernel feature %s is absent: %s; %s", f.Name, f.Reason, f.Proved)
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
