package rbd

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// killCase is a call of the node service that is killed at points, after other
// calls.
type killCase struct {
	volume string
	points []string
	before []func(*claim, int) error
	call   func(*claim, int) error
}

func killCases() []killCase {
	type calls = []func(*claim, int) error
	stage, publish := (*claim).stage, (*claim).publish
	unpublish, unstage := (*claim).unpublish, (*claim).unstage
	fresh, staged, published := calls{unpublish, unstage}, calls{stage, unpublish}, calls{stage, publish}
	return []killCase{
		{"ext4", []string{"stage.recorded", "stage.attached", "mount.grown-offline", "mount.created", "mount.group-given", "mount.shown"}, fresh, stage},
		{"xfs", []string{"mount.grown"}, fresh, stage},
		{"ext4", []string{"publish.recorded", "publish.target-made", "publish.bound"}, staged, publish},
		{"ext4", []string{"expand.resized", "expand.filesystem-grown"}, append(published, func(c *claim, _ int) error { return c.grow(16 * mib) }), (*claim).expand},
		{"ext4", []string{"unpublish.unmounted", "unpublish.target-removed", "unpublish.recorded"}, published, unpublish},
		{"ext4", []string{"unstage.unmounted", "unstage.detached", "unstage.recorded"}, staged, unstage},
		{"block", []string{"publish.read-only-set"}, staged, publish},
		{"block", []string{"unpublish.writable"}, published, unpublish},
	}
}

// notOfRBD are points of engines that are on the node themselves.
func notOfRBD(point string) bool {
	return strings.Contains(point, ".inline-") || slices.Contains([]string{"publish.attached", "unpublish.detached", "expand.volume-grown"}, point)
}

// TestCrashPoints holds the list of kills to the code.
func TestCrashPoints(t *testing.T) {
	var listed []string
	for _, c := range killCases() {
		listed = append(listed, c.points...)
	}
	slices.Sort(listed)
	var named []string
	for _, dir := range []string{"node", "node/rbd", "internal/linux/krbd", "csi"} {
		named = append(named, slices.DeleteFunc(testkit.CrashPoints(t, dir), notOfRBD)...)
	}
	slices.Sort(named)
	if diff := cmp.Diff(slices.Compact(named), slices.Compact(listed)); diff != "" {
		t.Errorf("crash points of the code (-) and of the kills (+):\n%s", diff)
	}
}

// testKills kills the node service at every point. The next process continues:
// no data is lost, and nothing is left of a volume after it is unstaged.
func (r *rig) testKills() {
	const n, blocks = 0, 20
	all := map[string]*claim{"ext4": r.claim("kills-ext4", "ext4", 64*mib), "xfs": r.claim("kills-xfs", "xfs", 320*mib), "block": r.claim("kills-block", "", 64*mib)}
	all["ext4"].capability.GetMount().VolumeMountGroup = "1234"
	for name, c := range all {
		c.attach(n)
		if name == "block" {
			r.run(n, "-count", fmt.Sprint(blocks), c.target())
		} else {
			r.nodes[n].Run("sh", "-c", `echo kept > "$0"/file && sync`, c.target())
		}
		testkit.Must(r, c.unpublish(n), c.unstage(n))
	}
	all["block"].readOnly = true
	for _, k := range killCases() {
		for _, point := range k.points {
			r.kill(n, all[k.volume], k, point)
		}
	}
	all["block"].readOnly = false
	for name, c := range all {
		c.attach(n)
		if name == "block" {
			r.check(n, c.target(), 1, blocks)
		} else if text := r.nodes[n].Read(c.target() + "/file"); text != "kept" {
			r.Errorf("the file of %s has %q", name, text)
		}
		c.detach(n)
		c.delete()
	}
	r.wantNothing(n)
}

// kill makes a call that kills the node service at a point, and starts the next
// process.
func (r *rig) kill(n int, c *claim, k killCase, point string) {
	for _, call := range k.before {
		testkit.Must(r, call(c, n))
	}
	p := r.plugins[n]
	testkit.Must(r, p.process.Kill(r.Context()))
	r.startPlugin(n, "CLEAT_CRASHPOINT="+point+"=1")
	err := k.call(c, n)
	if err == nil {
		r.Fatalf("%s was not reached", point)
	}
	r.awaitEnd(n)
	if exit, ok := errors.AsType[*vm.ExitError](p.process.Err()); !ok || exit.Signal != syscall.SIGKILL {
		r.Fatalf("at %s: the call returned %v, the process %v", point, err, p.process.Err())
	}
	r.startPlugin(n)
	// A stage that is not complete is rolled back, one that is being undone is
	// undone.
	if strings.HasPrefix(point, "unstage.") || strings.HasPrefix(point, "stage.") || point == "mount.created" {
		r.wantNothing(n)
	}
}
