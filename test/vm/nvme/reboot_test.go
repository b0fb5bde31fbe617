package nvme

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
)

// reboot is a rig whose driver's state and volumes are on disks.
type reboot struct {
	*rig
	t      *testing.T
	disks  []*disk.Disk
	served []nvmetcp.Subsystem
}

// TestReboot: the node loses power with volumes in use. The driver starts with
// its old records, and the volumes are staged again, or unstaged.
func TestReboot(t *testing.T) {
	for _, source := range soak.Pick(1, []image.Source{image.Backports, image.Stable}) {
		t.Run(string(source), func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			b := newReboot(t, source)
			b.test()
			fmt.Printf("REPORT: nvme %s: a power loss of the node took %.0f s\n", source, time.Since(begun).Seconds())
		})
	}
}

func newReboot(t *testing.T, source image.Source) *reboot {
	b := &reboot{t: t, rig: &rig{source: source}}
	for i, size := range []int64{64 * mib, 64 * mib, 64 * mib} {
		d := testkit.Value(disk.Open(disk.Spec{Path: filepath.Join(t.TempDir(), fmt.Sprint(i)), Size: size, Survival: disk.SurviveNone}))(t)
		t.Cleanup(func() { testkit.Must(t, d.Close()) })
		b.disks = append(b.disks, d)
	}
	for i, name := range []string{"kept", "returned"} {
		b.served = append(b.served, nvmetcp.Subsystem{
			NQN: subsystemNQN(name), Device: fmt.Sprintf("/dev/vd%c", 'b'+i), UUID: uuid.NewString(), Hosts: []string{hostNQN},
		})
	}
	return b
}

// boot boots the guest, with its target and without the node service.
func (b *reboot) boot() {
	b.t.Helper()
	var all []vm.Disk
	for _, d := range b.disks {
		testkit.Must(b.t, d.PowerOn())
		all = append(all, d)
	}
	b.rig = bootRig(b.t, b.source, all...)
	for _, s := range b.served {
		b.target.Add(s)
	}
	b.Run("mkdir", "-p", nodeservice.System)
}

// claims are the volumes; the first is kept, the second unstaged.
func (b *reboot) claims() (kept, returned *claim) {
	of := func(name string, s nvmetcp.Subsystem) *claim { return b.claim(name, "ext4", locator(s, s.UUID)) }
	return of("kept", b.served[0]), of("returned", b.served[1])
}

func (b *reboot) test() {
	b.boot()
	b.Run("mkfs.ext4", "-q", "/dev/vda")
	b.Run("mount", "-t", "ext4", "/dev/vda", nodeservice.System)
	b.Run("mkdir", nodeservice.Volumes)
	b.Start()
	kept, returned := b.claims()
	kept.attach()
	kept.write("before the power loss")
	returned.attach()
	returned.write("returned")
	if got := len(b.records()); got != 2 {
		b.Fatalf("%d records of two volumes", got)
	}
	b.LosePower()

	b.boot()
	b.Run("mount", "-t", "ext4", "/dev/vda", nodeservice.System)
	if got := len(b.records()); got != 2 {
		b.Errorf("%d records after the power loss, want those of two volumes", got)
	}
	b.Start()
	b.Await("the end of the old records", func() bool { return len(b.records()) == 0 })
	kept, returned = b.claims()
	for _, c := range []*claim{kept, returned} {
		c.wantGone("after the power loss")
	}
	testkit.Must(b, returned.unpublish(), returned.unstage())
	returned.wantGone("after the unstage of a volume that was staged before the power loss")
	kept.attach()
	kept.wantText("before the power loss")
	if h := kept.health(); len(h) > 0 {
		b.Errorf("health after the stage that follows the power loss: %v", h)
	}
	kept.write("after it")
	kept.detach()
	kept.attach()
	kept.wantText("after it")
	kept.detach()
	returned.attach()
	returned.wantText("returned")
	returned.detach()
	b.wantNothing()
	for _, s := range b.served {
		if out, err := b.Try("e2fsck", "-f", "-n", s.Device); err != nil {
			b.Errorf("the file system of %s: %v\n%s", s.NQN, err, out)
		}
	}
	b.Stop()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	testkit.Must(b, b.Conn.Close(), b.Guest.Shutdown(ctx))
}

// records are the files of attached volumes.
func (b *reboot) records() []string {
	b.Helper()
	return strings.Fields(b.Run("sh", "-c", `ls "$0"/nvme/*.json 2>/dev/null || true`, nodeservice.State))
}
