package client

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
)

// AttachRequest asks for a volume at a path of this machine.
type AttachRequest struct {
	Volume string // name or id
	// Target is where the directory or, for a block volume, the device file
	// appears: an absolute path that does not exist, or an empty directory.
	Target   string
	ReadOnly bool
	// Capability is how to use it; nil is as it was made for, a mounted
	// directory for a volume that others made.
	Capability *Capability
}

// attachment is what must be remembered while a volume is in use here. It is
// written before the driver is asked, so that a detach finds all there may be.
type attachment struct {
	Node           string            `json:"node,omitempty"`
	Capability     Capability        `json:"capability"`
	ReadOnly       bool              `json:"readOnly,omitempty"`   // as told at controller publish
	Controller     bool              `json:"controller,omitempty"` // controller publish was begun
	PublishContext map[string]string `json:"publishContext,omitempty"`
	Staging        string            `json:"staging,omitempty"`
	Targets        []target          `json:"targets"`
}

func (a *attachment) places() string {
	var paths []string
	for _, t := range a.Targets {
		paths = append(paths, t.Path)
	}
	if len(paths) == 0 {
		return "no target (a detach was cut off: detach again)"
	}
	return strings.Join(paths, ", ")
}

func (a *attachment) find(path string) int {
	return slices.IndexFunc(a.Targets, func(t target) bool { return t.Path == path })
}

// Attach makes a volume appear at a path: controller publish, stage and
// publish, as far as the driver has them. A repeat continues, and mounts again
// what a restart of the machine took away.
func (d *Driver) Attach(ctx context.Context, req AttachRequest) (Volume, error) {
	var out Volume
	err := d.alone(ctx, req.Volume, func(record volumeRecord) error {
		record, isNew, err := d.planAttach(record, req)
		if err != nil {
			return err
		}
		if err := d.volumes().put(ctx, record); err != nil {
			return err
		}
		if err := d.publish(ctx, &record, req.Target); err != nil {
			if isNew && isFinal(err) {
				d.undoAttach(ctx, record, req.Target)
			}
			return err
		}
		out = record.public()
		return nil
	})
	return out, err
}

// planAttach adds the target to the record; isNew: it was not there before.
func (d *Driver) planAttach(record volumeRecord, req AttachRequest) (_ volumeRecord, isNew bool, err error) {
	if err := record.usable(); err != nil {
		return record, false, err
	}
	capability := record.Capability
	if req.Capability != nil {
		capability = *req.Capability
	}
	if err := d.needCapability(capability); err != nil {
		return record, false, err
	}
	a := record.Attachment
	if a == nil {
		a = &attachment{Node: d.info.Node, Capability: capability, ReadOnly: req.ReadOnly}
		if d.offers.controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
			if a.Node == "" {
				return record, false, errs.Errorf(errs.Unsupported, "driver %s needs the id of this node to publish a volume, and does not answer NodeGetInfo with one; give the socket of its node service with --node-endpoint", d.info.Name)
			}
			a.Controller = true
		}
		if d.offers.node[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
			a.Staging = d.memory.staging(record.Driver, record.ID)
		}
	} else {
		copied := *a
		a = &copied
		a.Targets = slices.Clone(a.Targets)
	}
	if req.Capability != nil && !a.Capability.equal(capability) {
		return record, false, errs.Errorf(errs.Precondition, "volume %s is attached at %s in another way (%+v); detach it first", record.Name, a.places(), a.Capability)
	}
	if i := a.find(req.Target); i >= 0 {
		if a.Targets[i].ReadOnly != req.ReadOnly {
			return record, false, errs.Errorf(errs.Exists, "volume %s is attached at %s already, with read-only %v; detach it first", record.Name, req.Target, !req.ReadOnly)
		}
		record.Attachment = a
		return record, false, nil
	}
	t, err := newTarget(req.Target, a.Capability.Block, req.ReadOnly)
	if err != nil {
		return record, false, err
	}
	a.Targets = append(a.Targets, t)
	record.Attachment = a
	return record, true, nil
}

// publish walks the steps for one target; all of them may be repeated.
func (d *Driver) publish(ctx context.Context, record *volumeRecord, path string) error {
	a := record.Attachment
	if a.Controller {
		if err := d.controllerPublish(ctx, record); err != nil {
			return err
		}
	}
	if a.Staging != "" {
		if err := os.MkdirAll(a.Staging, 0o750); err != nil {
			return fmt.Errorf("staging directory: %w", err)
		}
		_, err := call(ctx, d, "NodeStageVolume", d.node.NodeStageVolume, &csi.NodeStageVolumeRequest{
			VolumeId: record.ID, PublishContext: a.PublishContext, StagingTargetPath: a.Staging,
			VolumeCapability: a.Capability.message(), Secrets: d.config.Secrets, VolumeContext: record.Context,
		})
		if err != nil {
			return err
		}
	}
	i := a.find(path)
	if err := a.Targets[i].prepare(); err != nil {
		return err
	}
	_, err := call(ctx, d, "NodePublishVolume", d.node.NodePublishVolume, &csi.NodePublishVolumeRequest{
		VolumeId: record.ID, PublishContext: a.PublishContext, StagingTargetPath: a.Staging, TargetPath: path,
		VolumeCapability: a.Capability.message(), Readonly: a.Targets[i].ReadOnly, Secrets: d.config.Secrets, VolumeContext: record.Context,
	})
	if err != nil {
		return err
	}
	a.Targets[i].Published = true
	if record.Grow > 0 {
		if err := d.nodeExpand(ctx, record, record.Grow, 0); err != nil {
			d.config.Notice(fmt.Sprintf("volume %s is attached, but has not grown yet: %v", record.Name, err))
		}
	}
	return d.volumes().keep(ctx, *record)
}

// controllerPublish asks with the arguments of the first time, whatever the
// target at hand: the volume is published to the node once.
func (d *Driver) controllerPublish(ctx context.Context, record *volumeRecord) error {
	a := record.Attachment
	readOnly := a.ReadOnly && d.offers.controller[csi.ControllerServiceCapability_RPC_PUBLISH_READONLY]
	answer, err := call(ctx, d, "ControllerPublishVolume", d.controller.ControllerPublishVolume, &csi.ControllerPublishVolumeRequest{
		VolumeId: record.ID, NodeId: a.Node, VolumeCapability: a.Capability.message(), Readonly: readOnly,
		Secrets: d.config.Secrets, VolumeContext: record.Context,
	})
	if err != nil {
		return err
	}
	a.PublishContext = answer.GetPublishContext()
	return d.volumes().keep(ctx, *record)
}

// undoAttach takes back what a refused attach began. What cannot be taken back
// now stays in the memory, for a detach.
func (d *Driver) undoAttach(ctx context.Context, record volumeRecord, path string) {
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := d.unpublish(short, &record, []string{path}); err != nil {
		d.config.Notice(fmt.Sprintf("volume %s: the attach could not be taken back wholly, detach it: %v", record.Name, err))
	}
}
