package nvme

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
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

// killCases has the points of NVMe, and those at which the next process needs the
// attacher. All others are those of test/crash.
func killCases() []killCase {
	type calls = []func(*claim) error
	stage, unstage := (*claim).stage, (*claim).unstage
	grow := func(c *claim) error { return c.grow(16 * mib) }
	return []killCase{
		{"ext4", []string{
			"stage.recorded", "nvme.recorded", "nvme.path-connected", "nvme.path-connected=2", "nvme.connected", "stage.attached", "mount.created",
		}, nil, stage, true},
		{"ext4", []string{"expand.resized"}, calls{stage, (*claim).publish, grow}, (*claim).expand, true},
		{"ext4", []string{
			"unstage.unmounted", "nvme.flushed", "nvme.deleted", "nvme.deleted=2", "nvme.disconnected", "unstage.detached", "unstage.recorded",
		}, calls{stage}, unstage, false},
		{"block", []string{"stage.attached"}, nil, stage, false},
		{"block", []string{"nvme.deleted"}, calls{stage}, unstage, false},
		{"blank", []string{"stage.formatting/made", "stage.formatting/marked", "stage.formatting/copied", "stage.formatting/complete"}, calls{(*claim).blank}, stage, true},
	}
}

// moreKillCases are points again, for block volumes.
func moreKillCases() []killCase {
	return []killCase{
		{"block", []string{"stage.recorded", "nvme.recorded", "nvme.path-connected", "nvme.path-connected=2", "nvme.connected"}, nil, (*claim).stage, true},
		{"block", []string{"nvme.flushed", "nvme.deleted=2", "nvme.disconnected", "unstage.detached", "unstage.recorded"}, []func(*claim) error{(*claim).stage}, (*claim).unstage, false},
	}
}

// TestCrashPoints: the kills have all points of NVMe and of formatting.
func TestCrashPoints(t *testing.T) {
	var listed []string
	for _, c := range killCases() {
		listed = append(listed, c.points...)
	}
	for _, dir := range []string{"node/nvme", "internal/linux/nvme", "internal/linux/mkfs"} {
		for _, point := range testkit.CrashPoints(t, dir) {
			if !slices.Contains(listed, point) && !strings.HasPrefix(point, "mount.") { // of test/crash
				t.Errorf("no call is killed at %s of %s", point, dir)
			}
		}
	}
}

const blocks = 20 // of the writer

// volumeHost is the host NQN of a volume with its own.
var volumeHost = nvmetcp.HostOf("5b6a1f52-0d3c-4c53-8f6e-00000000000d").NQN

// testKills kills the node service. The next process continues:
// no data is lost, and nothing is left of a volume after it is unstaged.
func (r *rig) testKills() {
	all := map[string]*claim{
		"ext4":  r.volume("kills-ext4", "ext4", 64*mib),
		"block": r.volume("kills-block", "", 64*mib), "blank": r.volume("kills-blank", "ext4", 16*mib),
	}
	all["ext4"].Capability.GetMount().VolumeMountGroup = "1234"
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
	all["block"].ReadOnly = true
	cases := killCases()
	if soak.Enabled {
		cases = append(cases, moreKillCases()...)
	}
	kills := 0
	for _, k := range cases {
		all[k.volume].kills(k)
		kills += len(k.points)
	}
	all["block"].ReadOnly = false
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
			testkit.Must(c, c.Process.Kill(c.Context()))
			c.Start(crash(point))
		}
		c.WantKilled(point, func() error { return k.call(c) })
		var next []string
		if k.undone && i < len(k.points)-1 {
			next = []string{crash(k.points[i+1])}
		}
		c.Start(next...)
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
