package ceph

import (
	"slices"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// killCase is a call of the node service that is killed at points, after other
// calls.
type killCase struct {
	points []string
	before []func(*claim, int) error
	call   func(*claim, int) error
}

// killCases are the points at which the next process needs the attacher. All
// others are those of test/crash.
func killCases() []killCase {
	type calls = []func(*claim, int) error
	stage, unstage := (*claim).stage, (*claim).unstage
	grow := func(c *claim, _ int) error { return c.grow(16 * mib) }
	return []killCase{
		{[]string{"stage.recorded", "stage.attached", "mount.created"}, calls{(*claim).unpublish, unstage}, stage},
		{[]string{"expand.resized"}, calls{stage, (*claim).publish, grow}, (*claim).expand},
		{[]string{"unstage.unmounted", "unstage.detached", "unstage.recorded"}, calls{stage, (*claim).unpublish}, unstage},
	}
}

// TestCrashPoints: the kills have all points of the attachers.
func TestCrashPoints(t *testing.T) {
	var listed []string
	for _, c := range killCases() {
		listed = append(listed, c.points...)
	}
	for _, c := range fsKillCases() {
		listed = append(listed, c.points...)
	}
	for _, dir := range []string{"node/rbd", "node/cephfs", "node/cephclient", "internal/linux/krbd"} {
		for _, point := range testkit.CrashPoints(t, dir) {
			if !slices.Contains(listed, point) {
				t.Errorf("no call is killed at %s of %s", point, dir)
			}
		}
	}
}

// testKills kills the node service. The next process continues: no data is lost,
// and nothing is left of a volume after it is unstaged.
func (r *rig) testKills() {
	const n = 0
	c := r.claim("kills", "ext4", 64*mib)
	c.attach(n)
	r.nodes[n].Run("sh", "-c", `echo kept > "$0"/file && sync`, c.Target)
	for _, k := range killCases() {
		for _, point := range k.points {
			for _, call := range k.before {
				testkit.Must(r, call(c, n))
			}
			node := r.nodes[n]
			testkit.Must(r, node.Process.Kill(r.Context()))
			node.Start("CLEAT_CRASHPOINT=" + point + "=1")
			node.WantKilled(point, func() error { return k.call(c, n) })
			node.Start()
			// A stage that is not complete is rolled back, one that is being undone is
			// undone.
			if point != "expand.resized" {
				r.wantNothing(n)
			}
		}
	}
	c.attach(n)
	if text := r.nodes[n].Read(c.Target + "/file"); text != "kept" {
		r.Errorf("the file has %q", text)
	}
	c.detach(n)
	c.delete()
	r.wantNothing(n)
}
