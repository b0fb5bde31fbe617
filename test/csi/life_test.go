package csi_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestVolumeLifecycle takes volumes of every kind through their life cycle on a pool with
// reflinks.
func TestVolumeLifecycle(t *testing.T) {
	t.Parallel()
	r := newRig(t, reflinkPool...)
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		r.sub(t, fsType, func(r *rig) { filesystemLife(r, fsType) })
	}
	r.sub(t, "block", blockLife)
	r.sub(t, "modes", everyMode)
	r.sub(t, "second publish", secondPublish)
	r.sub(t, "read-only publish", readOnlyPublish)
	r.sub(t, "read-only block publish", readOnlyBlock)
	r.sub(t, "mount group", mountGroup)
	r.sub(t, "mount flags", mountFlags)
	r.sub(t, "ephemeral", ephemeral)
}

func filesystemLife(r *rig, fsType string) {
	const size = 1 * mib
	d := r.create("fs-"+fsType, mounted(fsType)).attach()
	d.writeFile("a", 1, size)
	d.hasStats(true)
	d.healthy()
	d.detach()
	d.attach()
	d.holdsFile("a", 1, size)
	d.growsTo(d.size + 16*mib)
	d.writeFile("b", 2, size)
	d.detach()
	d.attach() // the file system that could not grow online has grown
	d.holdsFile("a", 1, size)
	d.holdsFile("b", 2, size)
	if total := d.stats().GetUsage()[0].GetTotal(); total < d.size*8/10 {
		d.Errorf("a volume of %d bytes has a file system of only %d", d.size, total)
	}
	d.drop()
}

// growsTo expands on the controller and then on the node.
func (d *disk) growsTo(size int64) {
	d.Helper()
	want := &csi.CapacityRange{RequiredBytes: size}
	grown := testkit.Value(d.controller().ControllerExpandVolume(d.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: d.id, CapacityRange: want}))(d)
	if grown.GetCapacityBytes() != size || !grown.GetNodeExpansionRequired() {
		d.Errorf("expanded to %v, want %d and the node to follow", grown, size)
	}
	d.size = size
	answer, err := d.node().NodeExpandVolume(d.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: d.id, VolumePath: d.target, StagingTargetPath: d.staging, CapacityRange: want, VolumeCapability: d.capability})
	if d.capability.GetMount().GetFsType() == "ext4" && err != nil { // this process can lack CAP_SYS_RESOURCE
		d.refused(err, codes.FailedPrecondition, "at the next stage")
		return
	}
	testkit.Must(d, err)
	if answer.GetCapacityBytes() != size {
		d.Errorf("the node has %d bytes, want %d", answer.GetCapacityBytes(), size)
	}
}

func (d *disk) stats() *csi.NodeGetVolumeStatsResponse {
	d.Helper()
	answer := testkit.Value(d.node().NodeGetVolumeStats(d.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: d.id, VolumePath: d.target}))(d)
	return answer
}

func (d *disk) hasStats(isMount bool) {
	d.Helper()
	answer := d.stats()
	units := map[csi.VolumeUsage_Unit]bool{}
	for _, u := range answer.GetUsage() {
		units[u.GetUnit()] = true
		if u.GetTotal() <= 0 || u.GetUsed() < 0 || u.GetAvailable() <= 0 || u.GetUsed()+u.GetAvailable() > u.GetTotal() {
			d.Errorf("usage %v", u)
		}
	}
	inodes := isMount && d.capability.GetMount().GetFsType() != "btrfs" // btrfs has no fixed number of inodes
	if !units[csi.VolumeUsage_BYTES] || units[csi.VolumeUsage_INODES] != inodes {
		d.Errorf("usage in %v", units)
	}
}

// healthy checks that no health call reports an abnormal condition.
func (d *disk) healthy() {
	d.Helper()
	if all := d.conditions(); len(all) > 0 {
		d.Errorf("conditions of a healthy volume: %v", all)
	}
}

func blockLife(r *rig) {
	d := r.create("block", block()).attach()
	info := testkit.Value(os.Stat(d.target))(r)
	if info.Mode()&os.ModeDevice == 0 {
		r.Errorf("the target is %v, not a device", info.Mode())
	}
	d.writeBlock(0, 1, 4096)
	d.writeBlock(d.size-4096, 2, 4096)
	d.hasStats(false)
	d.healthy()
	d.detach()
	d.attach()
	d.holdsBlock(0, 1, 4096)
	d.holdsBlock(4096, 0, 4096)
	d.growsTo(d.size + 8*mib)
	d.writeBlock(d.size-4096, 3, 4096)
	d.detach()
	d.attach()
	d.holdsBlock(d.size-8*mib-4096, 2, 4096)
	d.holdsBlock(d.size-4096, 3, 4096)
	d.drop()
}

// everyMode: the announced access modes work; modes that a local volume cannot
// support are refused by every call.
func everyMode(r *rig) {
	for _, c := range []*csi.VolumeCapability{mounted("ext4"), block()} {
		for _, mode := range []csi.VolumeCapability_AccessMode_Mode{writer, readerOnly, singleWriter, multiWriter} {
			d := r.create("mode", withMode(c, mode)).attach()
			err := writeAt(d.somewhere(), os.O_CREATE, 0, noise(1, 4096))
			if (err == nil) != (mode != readerOnly) {
				d.Errorf("%v, block %v: a write returned %v", mode, c.GetBlock() != nil, err)
			}
			d.drop()
		}
		d := r.create("mode", withMode(c, writer))
		for _, mode := range []csi.VolumeCapability_AccessMode_Mode{
			csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		} {
			withMode(c, mode)
			_, err := r.controller().CreateVolume(r.Context(), ask("other", c))
			r.refused(err, codes.InvalidArgument, mode.String(), "SINGLE_NODE")
			r.refused(d.stage(), codes.InvalidArgument, mode.String())
			answer, err := r.controller().ValidateVolumeCapabilities(r.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: d.id, VolumeCapabilities: []*csi.VolumeCapability{c}})
			if err != nil || answer.GetConfirmed() != nil || answer.GetMessage() == "" {
				r.Errorf("validate %v: %v, %v", mode, answer, err)
			}
		}
		testkit.Must(r, d.remove())
		withMode(c, writer)
	}
}

// somewhere returns a writable path in the volume.
func (d *disk) somewhere() string {
	if d.capability.GetBlock() != nil {
		return d.target
	}
	return filepath.Join(d.target, "somewhere")
}

// secondPublish tests the table of the specification for a second
// NodePublishVolume.
func secondPublish(r *rig) {
	for _, mode := range []csi.VolumeCapability_AccessMode_Mode{writer, singleWriter, multiWriter} {
		d := r.create("twice", withMode(mounted("ext4"), mode)).attach()
		testkit.Must(r, d.stage())
		testkit.Must(r, d.publish())
		other := d.publishRequest()
		other.Readonly = true
		_, err := r.node().NodePublishVolume(r.Context(), other)
		r.refused(err, codes.AlreadyExists, "readonly")
		restaged := d.stageRequest()
		restaged.VolumeCapability = withMode(mounted("ext4", "noatime"), mode)
		_, err = r.node().NodeStageVolume(r.Context(), restaged)
		r.refused(err, codes.AlreadyExists, "mount flags")
		second := *d
		second.target += "-2"
		if mode == multiWriter {
			testkit.Must(r, second.publish())
			d.writeFile("x", 1, 4096)
			second.holdsFile("x", 1, 4096)
			testkit.Must(r, second.unpublish())
		} else {
			r.refused(second.publish(), codes.FailedPrecondition, d.target)
		}
		r.refused(d.unstage(), codes.FailedPrecondition, d.target)
		second.staging = d.target + "-staging"
		testkit.Must(r, os.MkdirAll(second.staging, 0o750))
		r.refused(second.stage(), codes.FailedPrecondition, d.staging)
		d.drop()
	}
}

func readOnlyPublish(r *rig) {
	d := r.create("read-only", withMode(mounted("ext4"), multiWriter)).attach()
	d.writeFile("x", 1, 4096)
	reader := *d
	reader.target += "-reader"
	q := reader.publishRequest()
	q.Readonly = true
	testkit.Value(r.node().NodePublishVolume(r.Context(), q))(r)
	reader.holdsFile("x", 1, 4096)
	if err := os.WriteFile(filepath.Join(reader.target, "y"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		r.Errorf("a write through a read-only publish returned %v", err)
	}
	d.writeFile("y", 2, 4096)
	reader.holdsFile("y", 2, 4096)
	testkit.Must(r, reader.unpublish())
	d.drop()
}

func readOnlyBlock(r *rig) {
	d := r.create("read-only-block", withMode(block(), multiWriter)).attach()
	d.writeBlock(0, 1, 4096)
	second := *d
	second.target += "-2"
	q := second.publishRequest()
	q.Readonly = true
	_, err := r.node().NodePublishVolume(r.Context(), q)
	r.refused(err, codes.FailedPrecondition, "the same for all")
	testkit.Must(r, d.unpublish())
	testkit.Value(r.node().NodePublishVolume(r.Context(), q))(r)
	if err := writeAt(second.target, 0, 0, noise(2, 4096)); err == nil {
		r.Error("a write to a read-only block publish succeeded")
	}
	second.holdsBlock(0, 1, 4096)
	testkit.Must(r, second.unpublish())
	testkit.Must(r, d.publish())
	d.writeBlock(0, 3, 4096) // it is writable again
	d.drop()
}

func mountGroup(r *rig) {
	c := mounted("ext4")
	c.GetMount().VolumeMountGroup = "4321"
	d := r.create("group", c).attach()
	info, err := os.Stat(d.target)
	testkit.Must(r, err)
	if st := info.Sys().(*syscall.Stat_t); st.Gid != 4321 || info.Mode().Perm()&0o070 != 0o070 || info.Mode()&os.ModeSetgid == 0 {
		r.Errorf("group %d, mode %v", st.Gid, info.Mode())
	}
	d.writeFile("x", 1, 10)
	if info, err = os.Stat(filepath.Join(d.target, "x")); err != nil || info.Sys().(*syscall.Stat_t).Gid != 4321 {
		r.Errorf("a new file does not belong to the volume's group: %v, %v", info, err)
	}
	d.drop()
}

func mountFlags(r *rig) {
	d := r.create("flags", mounted("ext4", "noatime,nosuid", "noexec", "commit=17")).attach()
	for path, wanted := range map[string][]string{d.staging: {"noatime", "commit=17"}, d.target: {"noatime", "nosuid", "noexec"}} {
		e, ok, err := mount.At(r.Context(), path)
		testkit.Must(r, err)
		for _, flag := range wanted {
			if !ok || !slices.Contains(slices.Concat(e.Options, e.SuperOptions), flag) {
				r.Errorf("%s is not mounted with %s: %v", path, flag, e)
			}
		}
	}
	d.drop()
}

func ephemeral(r *rig) {
	d := r.disk(&csi.Volume{VolumeId: "csi-inline-1", VolumeContext: map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "p", "size": "32Mi", "provisioning": "thick",
	}}, "inline", mounted("ext4"))
	q := d.publishRequest()
	q.StagingTargetPath = ""
	for range 2 {
		testkit.Value(r.node().NodePublishVolume(r.Context(), q))(r)
		d.writeFile("x", 1, 4096)
	}
	if total := d.stats().GetUsage()[0].GetTotal(); total > 32*mib || total < 16*mib {
		r.Errorf("an inline volume of 32Mi has %d bytes", total)
	}
	list := testkit.Value(r.controller().ListVolumes(r.Context(), &csi.ListVolumesRequest{}))(r)
	if len(list.GetEntries()) != 0 {
		r.Errorf("ephemeral volumes are listed: %v", list)
	}
	testkit.Must(r, d.unpublish())
	testkit.Must(r, d.unpublish())
	files, err := os.ReadDir(filepath.Join(r.pool, "volumes"))
	if err != nil || len(files) != 0 {
		r.Errorf("left over of the inline volume: %v, %v", files, err)
	}
}
