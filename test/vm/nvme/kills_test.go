package nvme

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
)

// killCase is a call of the node service that is killed at points, after other
// calls.
type killCase struct {
	volume string
	points []string // NAME, or NAME=N for the Nth time
	before []func(*claim) error
	call   func(*claim) error
	// The next process undoes the call, so that its repetition reaches the next
	// point.
	undone bool
}

// killCases has each point once.
func killCases() []killCase {
	type calls = []func(*claim) error
	stage, publish := (*claim).stage, (*claim).publish
	unpublish, unstage := (*claim).unpublish, (*claim).unstage
	grow := func(c *claim) error { return c.grow(16 * mib) }
	return []killCase{
		{"ext4", []string{
			"stage.recorded", "nvme.recorded", "nvme.path-connected", "nvme.path-connected=2", "nvme.connected", "stage.attached",
			"mount.grown-offline", "mount.created", "mount.group-given", "mount.shown",
		}, nil, stage, true},
		{"xfs", []string{"mount.grown"}, nil, stage, true},
		{"ext4", []string{"mount.growth-marked", "mount.growth-written"}, calls{grow}, stage, true},
		{"ext4", []string{"publish.recorded", "publish.target-made", "publish.bound"}, calls{stage}, publish, true},
		{"ext4", []string{"expand.resized", "expand.filesystem-grown"}, calls{stage, publish, grow}, (*claim).expand, true},
		{"ext4", []string{"unpublish.unmounted", "unpublish.target-removed", "unpublish.recorded"}, calls{stage, publish}, unpublish, false},
		{"ext4", []string{
			"unstage.unmounted", "nvme.flushed", "nvme.deleted", "nvme.deleted=2", "nvme.disconnected", "unstage.detached", "unstage.recorded",
		}, calls{stage}, unstage, false},
		{"block", []string{"stage.attached"}, nil, stage, false},
		{"block", []string{"publish.read-only-set"}, calls{stage}, publish, true},
		{"block", []string{"unpublish.writable"}, calls{stage, publish}, unpublish, false},
		{"block", []string{"nvme.deleted"}, calls{stage}, unstage, false},
		{"blank", []string{"stage.formatting/made", "stage.formatting/marked", "stage.formatting/copied", "stage.formatting/complete"}, calls{(*claim).blank}, stage, true},
	}
}

// moreKillCases are points again, for block volumes.
func moreKillCases() []killCase {
	type calls = []func(*claim) error
	return []killCase{
		{"block", []string{"stage.recorded", "nvme.recorded", "nvme.path-connected", "nvme.path-connected=2", "nvme.connected"}, nil, (*claim).stage, true},
		{"block", []string{"publish.recorded", "publish.target-made", "publish.bound"}, calls{(*claim).stage}, (*claim).publish, true},
		{"block", []string{"unpublish.unmounted", "unpublish.target-removed", "unpublish.recorded"}, calls{(*claim).stage, (*claim).publish}, (*claim).unpublish, false},
		{"block", []string{"nvme.flushed", "nvme.deleted=2", "nvme.disconnected", "unstage.detached", "unstage.recorded"}, calls{(*claim).stage}, (*claim).unstage, false},
	}
}

// notOfNVMe are points of engines that are on the node themselves.
func notOfNVMe(point string) bool {
	return strings.Contains(point, ".inline-") || slices.Contains([]string{"publish.attached", "unpublish.detached", "expand.volume-grown"}, point)
}

// TestCrashPoints holds the list of kills to the code.
func TestCrashPoints(t *testing.T) {
	var listed []string
	for _, c := range killCases() {
		for _, p := range c.points {
			name, _, _ := strings.Cut(p, "=")
			listed = append(listed, name)
		}
	}
	slices.Sort(listed)
	listed = slices.Compact(listed)
	var named []string
	for _, dir := range []string{"node", "node/nvme", "internal/linux/nvme", "internal/linux/mkfs", "csi"} {
		named = append(named, slices.DeleteFunc(testkit.CrashPoints(t, dir), notOfNVMe)...)
	}
	slices.Sort(named)
	if diff := cmp.Diff(slices.Compact(named), listed); diff != "" {
		t.Errorf("crash points of the code (-) and of the kills (+):\n%s", diff)
	}
}

const blocks = 20 // of the writer

// volumeHost is the host NQN of a volume with its own.
var volumeHost = nvmetcp.HostOf("5b6a1f52-0d3c-4c53-8f6e-00000000000d").NQN

// testKills kills the node service at every point. The next process continues:
// no data is lost, and nothing is left of a volume after it is unstaged.
func (r *rig) testKills() {
	all := map[string]*claim{
		"ext4": r.volume("kills-ext4", "ext4", 64*mib), "xfs": r.volume("kills-xfs", "xfs", 320*mib),
		"block": r.volume("kills-block", "", 64*mib), "blank": r.volume("kills-blank", "ext4", 16*mib),
	}
	all["ext4"].capability.GetMount().VolumeMountGroup = "1234"
	all["ext4"].connectAs(volumeHost) // only its record identifies its connections
	for name, c := range all {
		c.attach()
		if name == "block" {
			c.writer("-count", fmt.Sprint(blocks))
		} else {
			c.write("kept")
		}
		c.detach()
	}
	all["block"].readOnly = true
	cases := killCases()
	if soak.Enabled {
		cases = append(cases, moreKillCases()...)
	}
	kills := 0
	for _, k := range cases {
		all[k.volume].kills(k)
		kills += len(k.points)
	}
	all["block"].readOnly = false
	for name, c := range all {
		c.attach()
		switch name {
		case "block":
			c.writer("-check", fmt.Sprint(blocks))
		case "blank":
			c.write("kept")
		default:
			c.wantText("kept")
		}
		c.detach()
		c.delete()
	}
	fmt.Printf("REPORT: nvme %s: %d kills of the node service\n", r.source, kills)
}

// blank empties the volume.
func (c *claim) blank() error {
	_, err := c.Try("sh", "-c", `size=$(stat -c %s "$0") && truncate -s 0 "$0" && truncate -s $size "$0"`, c.medium())
	return err
}

// isRemoved reports whether the next process removes everything: a stage that is
// not complete, or that is being undone. A block volume is staged while its
// device exists. One whose disk is gone waits for the repeated call.
func isRemoved(volume, point string) bool {
	name, _, _ := strings.Cut(point, "=")
	switch {
	case volume == "block" && slices.Contains([]string{"stage.attached", "nvme.flushed", "nvme.deleted"}, name), point == "nvme.deleted=2", point == "nvme.disconnected":
		return false
	}
	return name == "mount.created" || slices.ContainsFunc([]string{"unstage.", "stage.", "nvme."}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// kills makes a call that kills the node service at each point, starts the next
// process and repeats the call.
func (c *claim) kills(k killCase) {
	for i, point := range k.points {
		if i == 0 || !k.undone {
			for _, call := range k.before {
				testkit.Must(c, call(c))
			}
			testkit.Must(c, c.plugin.process.Kill(c.Context()))
			c.startPlugin(crash(point))
		}
		c.kill(k.call, point)
		var next []string
		if k.undone && i < len(k.points)-1 {
			next = []string{crash(k.points[i+1])}
		}
		c.startPlugin(next...)
		if isRemoved(k.volume, point) {
			c.wantGone("after the kill at " + point)
		}
		if next != nil {
			continue // the next kill repeats the call
		}
		if err := k.call(c); err != nil {
			c.Errorf("the call killed at %s, repeated: %v", point, err)
		}
		c.detach()
		c.wantGone("after the call killed at " + point + " was repeated, and the volume unstaged")
	}
}

// crash is the environment of a process that ends at a point.
func crash(point string) string {
	if !strings.Contains(point, "=") {
		point += "=1"
	}
	return "CLEAT_CRASHPOINT=" + point
}

// kill makes a call that ends the process.
func (c *claim) kill(call func(*claim) error, point string) {
	err := call(c)
	if err == nil {
		c.Fatalf("%s was not reached", point)
	}
	c.awaitEnd()
	if exit, ok := errors.AsType[*vm.ExitError](c.plugin.process.Err()); !ok || exit.Signal != syscall.SIGKILL {
		c.Fatalf("at %s: the call returned %v, the process %v", point, err, c.plugin.process.Err())
	}
}
