package crash

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// A pool removal that is killed at any step is completed by a repeat.
func TestPoolRemoveKilled(t *testing.T) {
	t.Parallel()
	cleat := testkit.Build(t, testkit.Cleat, "-tags", "crashpoints")
	points, err := workload.RemovePoints(testkit.Root(t))
	if err != nil || len(points) < 8 {
		t.Fatalf("crash points of the removal: %v, %v", points, err)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			t.Cleanup(func() { driver.Sweep(t, dir) })
			c := local.Config{Pool: filepath.Join(dir, "pool"), Image: mkfs.MinSize(mkfs.XFS), StateDir: filepath.Join(dir, "state")}
			fill(t, c)
			remove := exec.CommandContext(t.Context(), cleat, "pool", "remove", "--delete-volumes", "--pool", c.Pool, "--state-dir", c.StateDir)
			log := filepath.Join(t.TempDir(), "hit")
			remove.Env = append(os.Environ(), "CLEAT_CRASHPOINT="+point+"=1", "CLEAT_CRASHPOINT_LOG="+log)
			out, err := remove.CombinedOutput()
			if hit, _ := os.ReadFile(log); err == nil || strings.TrimSpace(string(hit)) != point {
				t.Fatalf("the removal did not reach the crash point: %v\n%s", err, out)
			}
			for range 2 {
				repeat := exec.CommandContext(t.Context(), cleat, remove.Args[1:]...)
				if out, err := repeat.CombinedOutput(); err != nil {
					t.Fatalf("a repeat: %v\n%s", err, out)
				}
			}
			driver.CheckNothingLeft(t, dir)
			if left, err := filepath.Glob(filepath.Join(dir, "*", "*")); err != nil || len(left) > 0 {
				t.Errorf("these files are left: %v, %v", left, err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "state" {
				t.Errorf("these files are left: %v, %v", left, err)
			}
		})
	}
}

// fill creates a pool with two volumes in an image, and unmounts it.
func fill(t *testing.T, c local.Config) {
	t.Helper()
	e := testkit.Value(local.Open(t.Context(), c))(t)
	for _, name := range []string{"a", "b"} {
		if _, err := e.Create(t.Context(), volume.CreateRequest{Name: name, Content: volume.Raw, Size: volume.SizeRange{Required: 1 << 20}}); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	testkit.Must(t, local.UnmountImage(t.Context(), c))
}
