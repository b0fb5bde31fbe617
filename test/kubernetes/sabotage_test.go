package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/deploy/image"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// sabotage replaces a piece of the driver's source in the image of
// TestSabotagedDriver: the driver unstages volumes when it is stopped.
var sabotage = []struct{ old, new string }{
	{"	\"path/filepath\"\n", "	\"errors\"\n	\"path/filepath\"\n	\"syscall\"\n"},
	{"	d.OnClose(func(context.Context) error { return manager.Close() })\n", `	d.OnClose(func(context.Context) error {
		staged, err := filepath.Glob("/var/lib/kubelet/plugins/kubernetes.io/csi/" + d.driverName + "/*/globalmount")
		errs := []error{manager.Close(), err}
		for _, at := range staged {
			errs = append(errs, syscall.Unmount(at, syscall.MNT_DETACH))
		}
		return errors.Join(errs...)
	})
`},
}

// sabotagedImage writes the image below dir; the source tree is not changed.
func sabotagedImage(ctx context.Context, dir string) error {
	file, err := filepath.Abs("../../driver/serve.go")
	if err != nil {
		return err
	}
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(source)
	for _, s := range sabotage {
		if n := strings.Count(text, s.old); n != 1 {
			return fmt.Errorf("%s contains %q %d times, want once: update the sabotage", file, s.old, n)
		}
		text = strings.Replace(text, s.old, s.new, 1)
	}
	replaced, overlay, binary := filepath.Join(dir, "sabotaged.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sabotaged", "cleat")
	description, err := json.Marshal(map[string]map[string]string{"Replace": {file: replaced}})
	if err != nil {
		return err
	}
	for path, content := range map[string][]byte{replaced: []byte(text), overlay: description} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-overlay", overlay, "-o", binary, "github.com/cleatproject/cleat/cmd/cleat")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the sabotaged driver: %w: %s", err, out)
	}
	return image.Build(ctx, image.Options{Output: filepath.Join(dir, "sabotaged.tar"), Reference: "cleat.local/cleat:sabotaged", Binary: binary})
}

// The checks of TestDisruption detect a driver whose rollout unmounts volumes,
// even though the writer continues. In CI the test unmounts them itself, which
// needs no image and no release; in make soak the driver is sabotaged.
func TestSabotagedDriver(t *testing.T) {
	release := "single"
	if soak.Enabled {
		release = sabotagedRelease(t)
	}
	w := newWorkload(newSpace(t))
	w.settleTime = 2 * time.Second
	w.add(w.load(release, "ext4"))
	unmount := w.unmountStaged
	if soak.Enabled {
		unmount = w.rollOutSabotaged
	}
	err := w.undisturbed(unmount)
	if err == nil || !strings.Contains(err.Error(), "globalmount") || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("the unmount of staged volumes was not detected, got: %v", err)
	}
}

// unmountStaged unmounts the staged volumes of the release single.
func (w *workload) unmountStaged() {
	w.Helper()
	for _, e := range testkit.Value(mount.Table(w.Context()))(w) {
		if strings.Contains(e.Target, "/kubernetes.io/csi/"+singleDriver+"/") && strings.HasSuffix(e.Target, "/globalmount") {
			if err := unix.Unmount(e.Target, unix.MNT_DETACH); !errors.Is(err, unix.EINVAL) { // it went with another entry, by propagation
				testkit.Must(w, err)
			}
		}
	}
}

// sabotagedRelease installs a release of the sabotaged image and returns its name.
func sabotagedRelease(t *testing.T) string {
	t.Helper()
	broken := release{name: "broken", values: `
image: {tag: sabotaged}
csi:
  driverName: broken.cleat.dev
  pool: {image: 512MiB, overprovisionRatio: 10}
  storageClasses:
  - {name: broken-xfs, fsType: xfs}
  - {name: broken-ext4, fsType: ext4}
`}
	testkit.Must(t, testCluster.Import(t.Context(), filepath.Join(testCluster.Dir, "sabotaged.tar")))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := broken.uninstall(ctx, testCluster); err != nil {
			t.Error(err)
		}
	})
	testkit.Must(t, broken.install(t.Context(), testCluster))
	return broken.name
}

func (w *workload) rollOutSabotaged() {
	w.Helper()
	w.inSystem("rollout", "restart", "daemonset/broken-cleat-csi-node")
	w.inSystem("rollout", "status", "daemonset/broken-cleat-csi-node", "--timeout=150s")
}
