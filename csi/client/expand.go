package client

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Expand grows a volume: first at the controller, then, where the driver asks
// for it, on the node. A volume that must be attached for the second step and
// is not grows there when it is attached next.
func (d *Driver) Expand(ctx context.Context, ref string, size volume.SizeRange) (Volume, error) {
	onController := d.offers.controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME]
	onNode := d.offers.node[csi.NodeServiceCapability_RPC_EXPAND_VOLUME]
	if !onController && !onNode {
		return Volume{}, d.lacks("expand volumes", csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	}
	if size.Required <= 0 {
		return Volume{}, errs.Errorf(errs.Invalid, "size %d bytes is not possible; give a size above 0", size.Required)
	}
	var out Volume
	err := d.alone(ctx, ref, func(record volumeRecord) error {
		if err := record.usable(); err != nil {
			return err
		}
		if err := d.mayExpand(record, onController); err != nil {
			return err
		}
		needNode, want := onNode, size.Required
		if onController {
			answer, err := d.controllerExpand(ctx, record, size)
			if err != nil {
				return err
			}
			needNode = needNode && answer.GetNodeExpansionRequired()
			if answer.GetCapacityBytes() > 0 {
				want = answer.GetCapacityBytes()
			}
			record.Capacity = max(record.Capacity, want)
		}
		record.Grow = 0
		if needNode {
			record.Grow = want
		}
		if err := d.volumes().keep(ctx, record); err != nil { // before the node is asked: a crash must not forget the second step
			return err
		}
		if needNode && record.Attachment != nil {
			if err := d.nodeExpand(ctx, &record, want, size.Limit); err != nil {
				return err
			}
		}
		out = record.public()
		return d.volumes().keep(ctx, record)
	})
	return out, err
}

// mayExpand refuses what the driver says that it cannot do in this state.
func (d *Driver) mayExpand(record volumeRecord, onController bool) error {
	attached := record.Attachment != nil
	switch {
	case attached && d.offers.expansion[csi.PluginCapability_VolumeExpansion_OFFLINE] && !d.offers.expansion[csi.PluginCapability_VolumeExpansion_ONLINE]:
		return errs.Errorf(errs.Precondition, "driver %s expands volumes only while they are detached (VolumeExpansion OFFLINE), and %s is attached at %s; detach it first",
			d.info.Name, record.Name, record.Attachment.places())
	case !attached && !onController:
		return errs.Errorf(errs.Precondition, "driver %s expands volumes only on the node, and %s is not attached; attach it first", d.info.Name, record.Name)
	}
	return nil
}

func (d *Driver) controllerExpand(ctx context.Context, record volumeRecord, size volume.SizeRange) (*csi.ControllerExpandVolumeResponse, error) {
	capability := record.Capability
	if record.Attachment != nil {
		capability = record.Attachment.Capability
	}
	return call(ctx, d, "ControllerExpandVolume", d.controller.ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{
		VolumeId: record.ID, CapacityRange: capacityRange(size), VolumeCapability: capability.message(), Secrets: d.config.Secrets,
	})
}

// nodeExpand makes an attached volume use its size. The caller writes the
// record.
func (d *Driver) nodeExpand(ctx context.Context, record *volumeRecord, required, limit int64) error {
	a := record.Attachment
	path := a.Staging
	for _, t := range a.Targets {
		if t.Published {
			path = t.Path
		}
	}
	answer, err := call(ctx, d, "NodeExpandVolume", d.node.NodeExpandVolume, &csi.NodeExpandVolumeRequest{
		VolumeId: record.ID, VolumePath: path, StagingTargetPath: a.Staging, VolumeCapability: a.Capability.message(),
		CapacityRange: capacityRange(volume.SizeRange{Required: required, Limit: limit}), Secrets: d.config.Secrets,
	})
	if err != nil {
		return err
	}
	record.Grow = 0
	record.Capacity = max(record.Capacity, answer.GetCapacityBytes())
	return nil
}
