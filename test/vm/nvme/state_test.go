package nvme

import (
	"fmt"
	"path"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
)

// testLostState: the driver's state was deleted while volumes are in use. Their
// mounts and controllers stay, also beside an unused volume of the subsystem, and calls that would hide a mount fail, until the
// volumes are unpublished and unstaged.
func (r *rig) testLostState() {
	block, ext4, unused := r.volume("lost-block", "", 32*mib), r.volume("lost-ext4", "ext4", 32*mib), r.volume("lost-unused", "", 32*mib)
	again := r.volume("lost-again", "ext4", 32*mib)
	block.attach()
	ext4.attach()
	again.attach()
	again.write("staged again")
	s := r.subsystem("lost-shared", []string{hostNQN}, r.medium("lost-shared-1", 32*mib), r.medium("lost-shared-2", 32*mib))
	used, idle := r.claim("lost-used", "ext4", locator(s, s.UUID)), r.claim("lost-idle", "", locator(s, s.More[0].UUID))
	used.attach()
	testkit.Must(r, unused.stage(), idle.stage())
	used.write("kept beside an unused volume")
	ext4.write("kept")
	block.writer("-count", fmt.Sprint(blocks))
	before := len(r.controllers())
	r.Stop()
	r.Run("rm", "-r", nodeservice.State)
	r.Start()

	if now := len(r.controllers()); now != before-len(paths) {
		r.Errorf("%d controllers after the start, before %d; those of the unused volume are to be removed", now, before)
	}
	ext4.wantText("kept")
	used.wantText("kept beside an unused volume")
	used.write("written after it")
	block.writer("-check", fmt.Sprint(blocks))
	if err := ext4.unstage(); status.Code(err) != codes.FailedPrecondition {
		r.Errorf("unstage of a published volume without a record: %v", err)
	}
	ext4.wantText("kept")
	again.attach() // as the kubelet does after its own restart
	again.wantText("staged again")
	if mounts := r.Run("grep", "-c", path.Join(nodeservice.Volumes, again.ID)+"/", "/proc/mounts"); mounts != "2" {
		r.Errorf("a volume that was staged and published again has %s mounts, want 2", mounts)
	}
	for _, c := range []*claim{block, ext4, unused, again} {
		c.detach()
		c.delete()
	}
	idle.detach()
	used.wantText("written after it")
	used.detach()
	r.wantNothing()
	r.target.Delete(s.NQN)
	r.Run("rm", s.Device, s.More[0].Device)
}
