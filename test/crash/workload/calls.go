package workload

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
)

const mib = 1 << 20

// NodeID is the node id to start the driver with.
const NodeID = "crash-node"

// kinds are the volumes that workers create. XFS, with 64 MiB of log, is too
// much for a pool that has to copy it: it is last and used only with reflinks.
var kinds = []disk{
	{block: true, size: 8 * mib}, {block: true, size: 8 * mib}, {fsType: "ext4", size: 16 * mib},
	{fsType: "ext4", size: 16 * mib}, {fsType: "btrfs", size: 256 * mib}, {fsType: "xfs", size: 304 * mib},
}

func (w *worker) controller() csi.ControllerClient { return csi.NewControllerClient(w.conn) }
func (w *worker) node() csi.NodeClient             { return csi.NewNodeClient(w.conn) }

func (w *worker) create() error {
	possible := kinds
	if !w.reflink {
		possible = kinds[:len(kinds)-1]
	}
	d := possible[w.rand.IntN(len(possible))]
	d.name, d.data = w.name("vol"), contents{}
	if !d.block && w.rand.IntN(2) == 0 {
		d.group = "4711"
	}
	return w.createDisk(&d, nil, nil)
}

// createDisk creates a volume, from source if not nil; recopy is that of
// pendingCall.
func (w *worker) createDisk(d *disk, source *csi.VolumeContentSource, recopy func()) error {
	parameters := map[string]string{}
	if w.rand.IntN(4) == 0 && d.size <= 16*mib {
		parameters["provisioning"] = "thick"
		d.thick = true
	}
	req := &csi.CreateVolumeRequest{
		Name: d.name, CapacityRange: &csi.CapacityRange{RequiredBytes: d.size},
		VolumeCapabilities: []*csi.VolumeCapability{d.capability()}, Parameters: parameters, VolumeContentSource: source,
	}
	var answer *csi.CreateVolumeResponse
	return w.call(&pendingCall{what: "CreateVolume " + d.name, newVolumes: 1, recopy: recopy}, "CreateVolume", func(ctx context.Context) (err error) {
		answer, err = w.controller().CreateVolume(ctx, req)
		return err
	}, func() {
		v := answer.GetVolume()
		d.id, d.size, d.context = v.GetVolumeId(), v.GetCapacityBytes(), v.GetVolumeContext()
		w.disks = append(w.disks, d)
	})
}

func (w *worker) restore() error {
	p := w.snapshots[w.rand.IntN(len(w.snapshots))]
	d := &disk{name: w.name("restored"), block: p.block, fsType: p.fsType, size: p.size, data: p.data.copied()}
	if w.rand.IntN(3) == 0 {
		d.size += 4 * mib
	}
	return w.createDisk(d, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: p.id}}}, nil)
}

func (w *worker) clone() error {
	s := w.some(func(d *disk) bool { return w.canCopy(d) })
	if s == nil {
		return nil
	}
	d := &disk{name: w.name("clone"), block: s.block, fsType: s.fsType, size: s.size, data: s.data.copied()}
	return w.createDisk(d, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.id}}}, func() { d.data = s.data.copied() })
}

func (w *worker) remove(d *disk) error {
	return w.call(&pendingCall{what: "DeleteVolume " + d.name, goneVolume: d.id}, "DeleteVolume", func(ctx context.Context) error {
		_, err := w.controller().DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: d.id})
		return err
	}, func() { w.disks = without(w.disks, d) })
}

func (w *worker) grant(d *disk) error {
	var answer *csi.ControllerPublishVolumeResponse
	return w.call(&pendingCall{what: "ControllerPublishVolume " + d.name, granting: d.id}, "ControllerPublishVolume", func(ctx context.Context) (err error) {
		answer, err = w.controller().ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: d.id, NodeId: NodeID, VolumeCapability: d.capability(), VolumeContext: d.context})
		return err
	}, func() { d.granted, d.grant = true, answer.GetPublishContext() })
}

func (w *worker) revoke(d *disk) error {
	return w.call(&pendingCall{what: "ControllerUnpublishVolume " + d.name, granting: d.id}, "ControllerUnpublishVolume", func(ctx context.Context) error {
		_, err := w.controller().ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: d.id, NodeId: NodeID})
		return err
	}, func() { d.granted, d.grant = false, nil })
}

func (w *worker) stage(d *disk) error {
	return w.call(&pendingCall{what: "NodeStageVolume " + d.name, staging: d.id, undo: func() error { return w.unstage(d) }}, "NodeStageVolume", func(ctx context.Context) error {
		if err := w.machine.MakeDir(ctx, w.staging(d)); err != nil {
			return err
		}
		_, err := w.node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: d.id, StagingTargetPath: w.staging(d), VolumeCapability: d.capability(), VolumeContext: d.context, PublishContext: d.grant})
		return err
	}, func() { d.staged, d.reach, d.lostStage = true, d.size, false })
}

func (w *worker) unstage(d *disk) error {
	return w.call(&pendingCall{what: "NodeUnstageVolume " + d.name, staging: d.id}, "NodeUnstageVolume", func(ctx context.Context) error {
		_, err := w.node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: d.id, StagingTargetPath: w.staging(d)})
		return err
	}, func() {
		d.staged, d.lostStage = false, false
		d.data.synced()                                          // the file system is written back before the device is released
		_ = w.machine.Remove(context.Background(), w.staging(d)) // a leftover directory does no harm
	})
}

func (w *worker) publish(d *disk) error {
	readOnly := w.rand.IntN(4) == 0
	return w.call(&pendingCall{what: "NodePublishVolume " + d.name, publishing: d.id, mounted: true, undo: func() error { return w.unpublish(d) }}, "NodePublishVolume", func(ctx context.Context) error {
		if err := w.machine.MakeDir(ctx, w.dir); err != nil {
			return err
		}
		_, err := w.node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: d.id, StagingTargetPath: w.staging(d), TargetPath: w.target(d), VolumeCapability: d.capability(),
			VolumeContext: d.context, PublishContext: d.grant, Readonly: readOnly})
		return err
	}, func() { d.published, d.readOnly, d.lostPublish = true, readOnly, false })
}

func (w *worker) unpublish(d *disk) error {
	return w.call(&pendingCall{what: "NodeUnpublishVolume " + d.name, publishing: d.id}, "NodeUnpublishVolume", func(ctx context.Context) error {
		_, err := w.node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: w.target(d)})
		return err
	}, func() { d.published, d.lostPublish = false, false })
}

// publishInline publishes an ephemeral volume, as the kubelet does for an
// inline volume of a pod.
func (w *worker) publishInline() error {
	d := &disk{name: w.name("inline"), fsType: "ext4", size: 8 * mib, data: contents{}}
	d.id = "csi-" + d.name
	d.context = map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": fmt.Sprint(d.size)}
	return w.publishInlineDisk(d)
}

// publishInlineDisk publishes an ephemeral volume, for the first time or after
// a reboot, which it survives with its pod.
func (w *worker) publishInlineDisk(d *disk) error {
	undo := func() error { return w.unpublishInlineDisk(d) }
	return w.call(&pendingCall{what: "NodePublishVolume " + d.name, ephemeral: true, publishing: d.id, undo: undo}, "NodePublishVolume (inline)", func(ctx context.Context) error {
		if err := w.machine.MakeDir(ctx, w.dir); err != nil {
			return err
		}
		_, err := w.node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: d.id, TargetPath: w.target(d), VolumeCapability: d.capability(), VolumeContext: d.context})
		return err
	}, func() {
		d.published, d.lostPublish = true, false
		if !slices.Contains(w.inline, d) {
			w.inline = append(w.inline, d)
		}
	})
}

func (w *worker) unpublishInline() error {
	d := w.inline[0]
	if d.published {
		if err := w.write(d); err != nil {
			return err
		}
	}
	return w.unpublishInlineDisk(d)
}

func (w *worker) unpublishInlineDisk(d *disk) error {
	return w.call(&pendingCall{what: "NodeUnpublishVolume " + d.name, ephemeral: true, publishing: d.id}, "NodeUnpublishVolume (inline)", func(ctx context.Context) error {
		_, err := w.node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: w.target(d)})
		return err
	}, func() { w.inline = without(w.inline, d) })
}

func (w *worker) expand(d *disk) error {
	if d.size > 512*mib {
		return nil
	}
	size := d.size + 4*mib
	var answer *csi.ControllerExpandVolumeResponse
	return w.call(&pendingCall{what: "ControllerExpandVolume " + d.name}, "ControllerExpandVolume", func(ctx context.Context) (err error) {
		answer, err = w.controller().ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: d.id, CapacityRange: &csi.CapacityRange{RequiredBytes: size}})
		return err
	}, func() { d.size = answer.GetCapacityBytes() })
}

func (w *worker) expandNode(d *disk) error {
	if d.fsType == "ext4" { // growing online needs CAP_SYS_RESOURCE; it grows at the next stage
		return nil
	}
	size := d.size
	if w.rand.IntN(2) == 0 && size < 512*mib {
		size += 4 * mib // the node has the engine in its process grow the volume
	}
	var answer *csi.NodeExpandVolumeResponse
	return w.call(&pendingCall{what: "NodeExpandVolume " + d.name, mounted: true}, "NodeExpandVolume", func(ctx context.Context) (err error) {
		answer, err = w.node().NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: d.id, VolumePath: w.target(d), StagingTargetPath: w.staging(d),
			CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: d.capability()})
		return err
	}, func() { d.size, d.reach = answer.GetCapacityBytes(), answer.GetCapacityBytes() })
}

// readAhead, in KiB, differs from every kernel default.
const readAhead = 72

func (w *worker) modify(d *disk) error {
	changes := []map[string]string{{"trimInterval": "1h"}, {"readAheadKiB": strconv.Itoa(readAhead)}, {"provisioning": "thin"}}
	if d.size <= 16*mib {
		changes = append(changes, map[string]string{"provisioning": "thick"})
	}
	change := changes[w.rand.IntN(len(changes))]
	return w.call(&pendingCall{what: fmt.Sprintf("ControllerModifyVolume %s %v", d.name, change), modifying: d.id}, "ControllerModifyVolume", func(ctx context.Context) error {
		_, err := w.controller().ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: d.id, MutableParameters: change})
		return err
	}, func() {
		switch {
		case change["provisioning"] != "":
			d.thick = change["provisioning"] == "thick"
		case change["readAheadKiB"] != "":
			d.readAhead = readAhead
		}
	})
}

// canCopy reports whether the pool can snapshot the volume in its present
// state.
func (w *worker) canCopy(d *disk) bool { return w.reflink || !d.staged }

func (w *worker) snapshot(d *disk) error {
	if !w.canCopy(d) {
		return nil
	}
	p := d.newSnapshotState(w.name("snap"))
	return w.call(&pendingCall{what: "CreateSnapshot " + p.name, newSnapshots: 1, recopy: func() { p.data = d.data.copied() }}, "CreateSnapshot", func(ctx context.Context) error {
		// A copying pool is ready later; the point in time is that of the call.
		return untilReady(ctx, func() (bool, error) {
			answer, err := w.controller().CreateSnapshot(ctx, &csi.CreateSnapshotRequest{SourceVolumeId: d.id, Name: p.name})
			p.id, p.size = answer.GetSnapshot().GetSnapshotId(), answer.GetSnapshot().GetSizeBytes()
			return answer.GetSnapshot().GetReadyToUse(), err
		})
	}, func() { w.snapshots = append(w.snapshots, p) })
}

func (w *worker) deleteSnapshot(p *snapshotState) error {
	return w.call(&pendingCall{what: "DeleteSnapshot " + p.name, goneSnapshots: []string{p.id}}, "DeleteSnapshot", func(ctx context.Context) error {
		_, err := w.controller().DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: p.id})
		return err
	}, func() { w.snapshots = without(w.snapshots, p) })
}

func (w *worker) group() error {
	a := &groupState{name: w.name("group")}
	var sources []string
	var disks []*disk
	for _, d := range w.disks {
		if !w.canCopy(d) || len(sources) == 3 {
			continue
		}
		sources, disks = append(sources, d.id), append(disks, d)
		a.snapshots = append(a.snapshots, d.newSnapshotState(a.name))
	}
	if len(sources) < 2 {
		return nil
	}
	req := &csi.CreateVolumeGroupSnapshotRequest{Name: a.name, SourceVolumeIds: sources, Parameters: map[string]string{"consistency": "member"}}
	var answer *csi.CreateVolumeGroupSnapshotResponse
	recopy := func() {
		for i, d := range disks {
			a.snapshots[i].data = d.data.copied()
		}
	}
	return w.call(&pendingCall{what: "CreateVolumeGroupSnapshot " + a.name, newSnapshots: len(sources), recopy: recopy}, "CreateVolumeGroupSnapshot", func(ctx context.Context) error {
		return untilReady(ctx, func() (ready bool, err error) {
			answer, err = csi.NewGroupControllerClient(w.conn).CreateVolumeGroupSnapshot(ctx, req)
			return answer.GetGroupSnapshot().GetReadyToUse(), err
		})
	}, func() {
		a.id = answer.GetGroupSnapshot().GetGroupSnapshotId()
		for _, p := range a.snapshots {
			i := slices.IndexFunc(answer.GetGroupSnapshot().GetSnapshots(), func(s *csi.Snapshot) bool { return s.GetSourceVolumeId() == p.source })
			s := answer.GetGroupSnapshot().GetSnapshots()[i]
			p.id, p.size, p.group = s.GetSnapshotId(), s.GetSizeBytes(), a.id
		}
		w.groups = append(w.groups, a)
		w.snapshots = append(w.snapshots, a.snapshots...)
	})
}

func (w *worker) deleteGroup() error {
	a := w.groups[0]
	var ids []string
	for _, p := range a.snapshots {
		ids = append(ids, p.id)
	}
	return w.call(&pendingCall{what: "DeleteVolumeGroupSnapshot " + a.name, goneSnapshots: ids}, "DeleteVolumeGroupSnapshot", func(ctx context.Context) error {
		_, err := csi.NewGroupControllerClient(w.conn).DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: a.id, SnapshotIds: ids})
		return err
	}, func() {
		w.groups = without(w.groups, a)
		w.snapshots = slices.DeleteFunc(w.snapshots, func(p *snapshotState) bool { return p.group == a.id })
	})
}

func without[T comparable](list []T, gone T) []T {
	return slices.DeleteFunc(list, func(t T) bool { return t == gone })
}

// untilReady retries as an orchestrator does.
func untilReady(ctx context.Context, ask func() (ready bool, err error)) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ready, err := ask(); err != nil || ready {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
