package csi_test

import (
	"context"
	"fmt"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func (c *client) create(name string) {
	q := ask(name, stormCapability(name))
	c.call("CreateVolume", []string{name}, nil, func(ctx context.Context) error {
		answer, err := csi.NewControllerClient(c.conn).CreateVolume(ctx, q)
		if err == nil {
			c.mu.Lock()
			c.volumes[name] = answer.GetVolume()
			c.mu.Unlock()
		}
		return err
	})
}

func (c *client) remove(d *disk) {
	c.call("DeleteVolume", []string{d.id, d.name}, []codes.Code{codes.FailedPrecondition}, func(ctx context.Context) error {
		_, err := csi.NewControllerClient(c.conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: d.id})
		return err
	})
}

var gone = []codes.Code{codes.NotFound, codes.FailedPrecondition}

func (c *client) stage(d *disk) {
	c.call("NodeStageVolume", []string{d.id}, gone, func(ctx context.Context) error {
		_, err := csi.NewNodeClient(c.conn).NodeStageVolume(ctx, d.stageRequest())
		return err
	})
}

func (c *client) publish(d *disk) {
	c.call("NodePublishVolume", []string{d.id, d.target}, gone, func(ctx context.Context) error {
		_, err := csi.NewNodeClient(c.conn).NodePublishVolume(ctx, d.publishRequest())
		return err
	})
}

func (c *client) unpublish(d *disk) {
	c.call("NodeUnpublishVolume", []string{d.id, d.target}, nil, func(ctx context.Context) error {
		_, err := csi.NewNodeClient(c.conn).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: d.target})
		return err
	})
}

func (c *client) unstage(d *disk) {
	c.call("NodeUnstageVolume", []string{d.id}, []codes.Code{codes.FailedPrecondition}, func(ctx context.Context) error {
		_, err := csi.NewNodeClient(c.conn).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: d.id, StagingTargetPath: d.staging})
		return err
	})
}

// snapshot creates, restores or deletes a snapshot.
func (c *client) snapshot(d *disk) {
	name := fmt.Sprint("snap-", c.rand.IntN(3), "-of-", d.name)
	c.mu.Lock()
	id := c.snapshots[name]
	c.mu.Unlock()
	controller := csi.NewControllerClient(c.conn)
	switch c.rand.IntN(4) {
	case 0:
		c.call("DeleteSnapshot", []string{id, name}, nil, func(ctx context.Context) error {
			_, err := controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: "x" + id})
			if id != "" {
				_, err = controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
			}
			return err
		})
	case 1:
		c.restore(d, id)
	default:
		// A snapshot of an earlier volume of that name differs.
		c.call("CreateSnapshot", []string{d.id, name}, []codes.Code{codes.NotFound, codes.AlreadyExists}, func(ctx context.Context) error {
			answer, err := controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: d.id})
			if err == nil {
				c.mu.Lock()
				c.snapshots[name] = answer.GetSnapshot().GetSnapshotId()
				c.mu.Unlock()
			}
			return err
		})
	}
}

// restore creates a volume from a snapshot, or from its source.
func (c *client) restore(d *disk, snapshot string) {
	source := fromVolume(d.id)
	if snapshot != "" {
		source = fromSnapshot(snapshot)
	}
	name := fmt.Sprint("restored-", c.rand.IntN(3), "-of-", d.name)
	q := ask(name, d.capability)
	q.VolumeContentSource = source
	c.call("CreateVolume (restore)", []string{name, d.id, snapshot}, []codes.Code{codes.NotFound, codes.AlreadyExists}, func(ctx context.Context) error {
		answer, err := csi.NewControllerClient(c.conn).CreateVolume(ctx, q)
		if err == nil {
			_, err = csi.NewControllerClient(c.conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: answer.GetVolume().GetVolumeId()})
		}
		return err
	})
}

// group creates or deletes a group snapshot of two volumes.
func (c *client) group(d *disk) {
	c.mu.Lock()
	other, known := c.volumes["shared-0"], c.groups[d.name]
	c.mu.Unlock()
	groups := csi.NewGroupControllerClient(c.conn)
	if known != nil {
		var ids []string
		for _, s := range known.GetSnapshots() {
			ids = append(ids, s.GetSnapshotId())
		}
		c.call("DeleteVolumeGroupSnapshot", []string{known.GetGroupSnapshotId(), d.name}, nil, func(ctx context.Context) error {
			_, err := groups.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: known.GetGroupSnapshotId(), SnapshotIds: ids})
			return err
		})
		c.mu.Lock()
		delete(c.groups, d.name)
		c.mu.Unlock()
		return
	}
	if other == nil || other.GetVolumeId() == d.id {
		return
	}
	q := &csi.CreateVolumeGroupSnapshotRequest{
		Name: "group-of-" + d.name, SourceVolumeIds: []string{d.id, other.GetVolumeId()}, Parameters: map[string]string{"consistency": "member"}}
	c.call("CreateVolumeGroupSnapshot", append(q.SourceVolumeIds, q.Name), []codes.Code{codes.NotFound, codes.AlreadyExists}, func(ctx context.Context) error {
		answer, err := groups.CreateVolumeGroupSnapshot(ctx, q)
		if err == nil {
			c.mu.Lock()
			c.groups[d.name] = answer.GetGroupSnapshot()
			c.mu.Unlock()
		}
		return err
	})
}

// look makes calls that read, or change little.
func (c *client) look(d *disk, n int) {
	controller, node := csi.NewControllerClient(c.conn), csi.NewNodeClient(c.conn)
	if n%2 == 0 {
		c.call("ControllerModifyVolume", []string{d.id}, []codes.Code{codes.NotFound}, func(ctx context.Context) error {
			_, err := controller.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
				VolumeId: d.id, MutableParameters: map[string]string{"readAheadKiB": fmt.Sprint(128 * (1 + c.rand.IntN(3)))}})
			return err
		})
		return
	}
	c.call("NodeGetVolumeStats", []string{d.id}, []codes.Code{codes.NotFound}, func(ctx context.Context) error {
		_, err := node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: d.id, VolumePath: d.staging})
		return err
	})
	c.call("ListVolumes", nil, nil, func(ctx context.Context) error {
		_, err := controller.ListVolumes(ctx, &csi.ListVolumesRequest{})
		return err
	})
	c.call("NodeGetVolumeHealth", []string{d.id}, []codes.Code{codes.NotFound}, func(ctx context.Context) error {
		_, err := node.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: d.id})
		return err
	})
}
