package nvme

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
	"github.com/cleatproject/cleat/volume/access"
)

// testNeighbours: volumes share a subsystem, and other programs use NVMe.
func (r *rig) testNeighbours() {
	r.sharedSubsystem()
	r.otherPrograms()
}

// sharedSubsystem: two volumes are namespaces of one subsystem. Each works
// without the other, and the last one removes the controllers.
func (r *rig) sharedSubsystem() {
	s := r.subsystem("shared", []string{hostNQN}, r.medium("shared-1", 32*mib), r.medium("shared-2", 32*mib))
	byUUID := r.claim("by-uuid", "ext4", locator(s, s.UUID))
	byNumber := r.claim("by-number", "ext4", access.NVMe{Transport: "tcp", Paths: paths, NQN: s.NQN, NSID: 2})
	byUUID.attach()
	byNumber.attach()
	byUUID.write("uuid")
	byNumber.write("number")
	controllers := r.controllers()
	if len(controllers) != len(paths) {
		r.Errorf("two volumes of a subsystem with %d paths have the controllers %v", len(paths), controllers)
	}
	for _, c := range []struct{ leaves, stays *claim }{{byUUID, byNumber}, {byNumber, byUUID}} {
		c.leaves.detach()
		if now := r.controllers(); !slices.Equal(now, controllers) {
			r.Errorf("controllers after %s was unstaged beside another volume: %v, before %v", c.leaves.ID, now, controllers)
		}
		c.stays.write(c.stays.ID)
		c.stays.wantText(c.stays.ID)
		c.leaves.attach()
	}
	byUUID.wantText("by-uuid")
	byNumber.wantText("by-number")
	byUUID.detach()
	byNumber.detach()
	r.wantNothing()

	unnamed := r.claim("unnamed", "ext4", access.NVMe{Transport: "tcp", Paths: paths, NQN: s.NQN})
	r.wantRefused(unnamed, codes.FailedPrecondition, "2 namespaces", "nsId 1, uuid "+quote(s.UUID), "nsId 2, uuid "+quote(s.More[0].UUID))
	if r.source == image.Stable { // it waits for the kernel's scan
		missing := r.claim("missing", "ext4", access.NVMe{Transport: "tcp", Paths: paths, NQN: s.NQN, NSID: 3})
		r.wantRefused(missing, codes.NotFound, "nsId 1, uuid "+quote(s.UUID), "nsId 2, uuid "+quote(s.More[0].UUID))
	}
	r.target.Delete(s.NQN)
	r.Run("rm", s.Device, s.More[0].Device)
}

func quote(s string) string { return `"` + s + `"` }

// otherPrograms: controllers of another program stay, those of this driver
// without a volume are removed at its start, and a subsystem of another program
// is not used.
func (r *rig) otherPrograms() {
	other := nvmetcp.HostOf("5b6a1f52-0d3c-4c53-8f6e-00000000000b")
	ours := r.volume("ours", "ext4", 32*mib)
	theirs := r.subsystem("theirs", []string{other.NQN, hostNQN}, r.medium("theirs", 32*mib))
	r.target.Admit(subsystemNQN("ours"), other.NQN)

	controller := r.connect(theirs.NQN, other)
	disk := "/dev/" + nvmetcp.AwaitDisk(r.Kernel, theirs.UUID)
	r.Run("writer", "-count", "5", disk)
	ours.attach()
	ours.write("ours")
	r.Stop()
	r.Start()
	ours.wantText("ours")
	ours.detach()
	same := r.claim("same-subsystem", "", locator(theirs, theirs.UUID))
	r.wantRefused(same, codes.FailedPrecondition, controller.Name, other.NQN, "another program")
	r.Run("writer", "-check", "5", disk)
	if state := controller.Attribute("state"); state != "live" {
		r.Errorf("the other program's controller is %s", state)
	}

	lost := r.connect(subsystemNQN("ours"), nvmetcp.HostOf(access.HostID(hostNQN)))
	r.Stop()
	r.Start()
	if all := r.controllers(); !slices.Equal(all, []string{controller.Name}) {
		r.Errorf("controllers after the start of the driver: %v; want %s, and not %s", all, controller.Name, lost.Name)
	}
	r.Run("writer", "-check", "5", disk)
	controller.Disconnect()
	ours.delete()
	r.delete("theirs")
}

func (r *rig) connect(nqn string, host nvmetcp.Host) *nvmetcp.Controller {
	return testkit.Value(nvmetcp.Connect(r.Kernel, nvmetcp.Connection{Target: paths[0], Subsystem: nqn, Host: host}))(r)
}

// wantRefused: a stage fails with a code and words.
func (r *rig) wantRefused(c *claim, code codes.Code, words ...string) {
	r.Helper()
	err := c.stage()
	if status.Code(err) != code {
		r.Errorf("stage of %s: %v, want code %v", c.ID, err, code)
	}
	r.wantError(err, words...)
}
