package csi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestVolumeLifecycle takes volumes of every kind through their life cycle on a pool with
// reflinks.
func TestVolumeLifecycle(t *testing.T) {
	t.Parallel()
	r := newRig(t, reflinkPool...)
	for _, fsType := range soak.Pick(1, []string{"ext4", "xfs", "btrfs"}) {
		r.sub(t, fsType, func(r *rig) { filesystemLife(r, fsType) })
	}
	r.sub(t, "block", blockLife)
	r.sub(t, "modes", everyMode)
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

// healthy checks that no health call reports an abnormal condition. A pool in the
// machine's own file system can be nearly full.
func (d *disk) healthy() {
	d.Helper()
	all := slices.DeleteFunc(d.conditions(), func(c string) bool { return strings.HasSuffix(c, " PoolNearlyFull") })
	if len(all) > 0 {
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
	for _, c := range soak.Pick(1, []*csi.VolumeCapability{block(), mounted("ext4")}) {
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
