package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
)

// Detach takes a volume away from a path, or, with an empty one, from all
// paths of this machine; with the last one it is unstaged and, where the
// driver wants that, unpublished from the node. What is not attached is no
// error.
func (d *Driver) Detach(ctx context.Context, ref, path string) error {
	return d.alone(ctx, ref, func(record volumeRecord) error {
		a := record.Attachment
		if a == nil {
			return nil
		}
		paths := []string{path}
		if path == "" {
			paths = nil
			for _, t := range a.Targets {
				paths = append(paths, t.Path)
			}
		} else if a.find(path) < 0 && len(a.Targets) > 0 {
			return errs.Errorf(errs.NotFound, "volume %s is not attached at %s but at %s", record.Name, path, a.places())
		}
		return d.unpublish(ctx, &record, paths)
	})
}

// unpublish undoes publish: the targets at paths, and all else when none is
// left. Each step is written down when it is done.
func (d *Driver) unpublish(ctx context.Context, record *volumeRecord, paths []string) error {
	a := record.Attachment
	for _, path := range paths {
		i := a.find(path)
		if i < 0 {
			continue
		}
		_, err := call(ctx, d, "NodeUnpublishVolume", d.node.NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: record.ID, TargetPath: path})
		if err != nil && codeOf(err) != codes.NotFound {
			return err
		}
		if err := a.Targets[i].restore(); err != nil {
			return err
		}
		a.Targets = append(a.Targets[:i:i], a.Targets[i+1:]...)
		if err := d.volumes().keep(ctx, *record); err != nil {
			return err
		}
	}
	if len(a.Targets) > 0 {
		return nil
	}
	if err := d.unstage(ctx, record); err != nil {
		return err
	}
	// A driver that was started anew without the call holds no grant any more.
	if a.Controller && d.offers.controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		_, err := call(ctx, d, "ControllerUnpublishVolume", d.controller.ControllerUnpublishVolume,
			&csi.ControllerUnpublishVolumeRequest{VolumeId: record.ID, NodeId: a.Node, Secrets: d.config.Secrets})
		if err != nil && codeOf(err) != codes.NotFound {
			return err
		}
	}
	record.Attachment = nil
	if record.Phase == StateForeign { // nothing is left to remember
		return d.volumes().drop(ctx, *record)
	}
	return d.volumes().keep(ctx, *record)
}

func (d *Driver) unstage(ctx context.Context, record *volumeRecord) error {
	a := record.Attachment
	if a.Staging == "" {
		return nil
	}
	_, err := call(ctx, d, "NodeUnstageVolume", d.node.NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{VolumeId: record.ID, StagingTargetPath: a.Staging})
	if err != nil && codeOf(err) != codes.NotFound {
		return err
	}
	// Only the empty directory is removed: what a driver leaves behind in it,
	// or keeps mounted on it, is not the orchestrator's.
	if err := os.Remove(a.Staging); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.config.Notice(fmt.Sprintf("the staging directory of volume %s stays: %v", record.Name, err))
	}
	return nil
}

// At returns the volume that is attached at a path of this machine, as far as
// this memory knows.
func (d *Driver) At(ctx context.Context, path string) (Volume, error) {
	records, err := d.volumes().all(ctx, d.info.Name)
	if err != nil {
		return Volume{}, err
	}
	for _, r := range records {
		if r.Attachment != nil && r.Attachment.find(path) >= 0 {
			return r.public(), nil
		}
	}
	return Volume{}, errs.Errorf(errs.NotFound, "no volume of driver %s is attached at %s", d.info.Name, path)
}
