package mkfs_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
)

// sabotages are builds without one guarantee of a growth, the test that must
// show it, and the symptom.
func sabotages() []sabotage {
	const file = "internal/linux/mkfs/grow_log.go"
	return []sabotage{
		{"the log is not flushed before the marker", "TestGrowthSurvivesPowerLoss", "does not fit the file system", workload.Replacement{
			File: file, Old: "if err := dev.Sync(); err != nil {\n\t\treturn fmt.Errorf(\"flush the log", New: "if err := error(nil); err != nil {\n\t\treturn fmt.Errorf(\"flush the log",
		}},
		{"the marker is not flushed before the changes", "TestGrowthSurvivesPowerLoss", "e2fsck", workload.Replacement{
			File: file, Old: "if err := dev.Sync(); err != nil {\n\t\treturn fmt.Errorf(\"flush the first", New: "if err := error(nil); err != nil {\n\t\treturn fmt.Errorf(\"flush the first",
		}},
		{"the marker is removed before the changes are flushed", "TestGrowthSurvivesPowerLoss", "e2fsck", workload.Replacement{
			File: file, Old: "if err := dev.Sync(); err != nil {\n\t\treturn fmt.Errorf(\"flush the grown", New: "if err := error(nil); err != nil {\n\t\treturn fmt.Errorf(\"flush the grown",
		}},
		{"the log has no old content", "TestFailedWritesOfAGrowthAreUndone", "the superblock has changed", workload.Replacement{
			File: file, Old: "readPage(dev, item[8:], at)", New: "readPage(g.image, item[8:], at)",
		}},
		{"a log of before other changes is applied", "TestStaleLogIsNotApplied", "does not repair automatically", workload.Replacement{
			File: file, Old: "if err := checkStale(dev, log[:extSuperSize], first[extSuperOffset:][:extSuperSize]); err != nil {", New: "if err := error(nil); err != nil {",
		}},
		{"an undo reads the page cache", "TestUndoReadsTheDisk", "e2fsck", workload.Replacement{
			File: file, Old: "unix.FADV_DONTNEED)", New: "unix.FADV_NORMAL)",
		}},
	}
}

type sabotage struct {
	name, test, symptom string
	left                workload.Replacement
}

// The tests must fail for each of these builds; otherwise they prove nothing.
func TestSabotageTurnsRed(t *testing.T) {
	for _, s := range soak.Pick(1, sabotages()) {
		t.Run(s.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-run=^"+s.test+"$", workload.Overlay(t, s.left), ".")
			out, err := cmd.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("this build passed %s", s.test)
			case !strings.Contains(string(out), "--- FAIL: "+s.test) || !strings.Contains(string(out), s.symptom):
				t.Errorf("failed, but not with %q: %v: %s", s.symptom, err, out)
			default:
				t.Logf("failed, as expected: %s", s.symptom)
			}
		})
	}
}
