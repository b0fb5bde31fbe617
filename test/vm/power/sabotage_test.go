package power

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk"
)

// sabotages are removed flushes, the crash points that reveal them, and the
// expected errors.
func sabotages() []sabotage {
	return []sabotage{
		{
			name: "records are not synced", fsType: "xfs", reflink: true,
			left: workload.Replacement{
				File: "internal/store/store.go",
				Old:  "db.AllocSize = growth\n", New: "db.AllocSize, db.NoSync = growth, true\n",
			},
			point: "stage.recorded", symptoms: []string{"is not listed"},
		},
		{
			name: "the bytes of a copy are not synced", fsType: "ext4",
			left: workload.Replacement{
				File: "engine/local/create.go",
				Old:  "\tif err := f.Sync(); err != nil {\n\t\treturn err\n\t}\n\treturn e.pool.syncDir(incomingDir)\n",
				New:  "\treturn e.pool.syncDir(incomingDir)\n",
			},
			point: "copy.finishing", symptoms: []string{"does not hold what was written", "the volume has no file system"},
		},
		{
			name: "a file's new size is not synced", fsType: "xfs", reflink: true,
			left: workload.Replacement{
				File: "engine/local/expand.go",
				Old:  "\treturn f.Sync()\n", New: "\treturn nil\n",
			},
			point: "expand.recorded", symptoms: []string{"was truncated to", "the file of volume"},
		},
	}
}

type sabotage struct {
	name     string
	fsType   string
	reflink  bool
	left     workload.Replacement
	point    string
	symptoms []string // one of them is expected
}

// A build without one of the flushes must fail the test.
func TestSabotageTurnsRed(t *testing.T) {
	t.Parallel()
	inside := testkit.Build(t, "./test/vm/power/inside")
	for i, s := range soak.Pick(1, sabotages()) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "sabotaged", workload.BuildWith(t, s.left), inside, s.fsType, uint64(i), nil)
			m.drive.Survive(disk.SurviveNone)
			// Other workers' flushes would hide the missing one.
			st := workload.NewInstance(workload.Config{
				Name: "sabotaged", Machine: m, Dir: workersDir, Seed: uint64(i) + 1, Workers: 1, Reflink: s.reflink, Patience: time.Minute, Lean: true,
			})
			const few = 4
			for powerLosses := range few {
				hit, err := st.Round(t.Context(), s.point+"=1", 2*patience)
				t.Logf("power loss %d at %s: reached %v", powerLosses+1, s.point, hit)
				if err == nil {
					err = st.Read(t.Context())
				}
				if err == nil {
					continue
				}
				if !slices.ContainsFunc(s.symptoms, func(s string) bool { return strings.Contains(err.Error(), s) }) {
					t.Fatalf("the test failed, but not with any of %q: %v", s.symptoms, err)
				}
				t.Logf("failed after %d power losses, as expected: %v", powerLosses+1, err)
				return
			}
			t.Error("the test passed without this flush")
		})
	}
}
