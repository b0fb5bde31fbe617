package client

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Usage counts what a volume holds, in bytes or inodes.
type Usage struct {
	Unit      string `json:"unit"` // BYTES or INODES
	Total     int64  `json:"total"`
	Used      int64  `json:"used"`
	Available int64  `json:"available"`
}

// Stats tells how full an attached volume is.
func (d *Driver) Stats(ctx context.Context, ref string) ([]Usage, error) {
	if err := d.needNode("tell how full a volume is", csi.NodeServiceCapability_RPC_GET_VOLUME_STATS); err != nil {
		return nil, err
	}
	record, err := d.usableVolume(ctx, ref)
	if err != nil {
		return nil, err
	}
	path, staging := record.published()
	if path == "" {
		return nil, errs.Errorf(errs.Precondition, "volume %s is not attached, so its usage is not known; attach it first", record.Name)
	}
	answer, err := call(ctx, d, "NodeGetVolumeStats", d.node.NodeGetVolumeStats, &csi.NodeGetVolumeStatsRequest{
		VolumeId: record.ID, VolumePath: path, StagingTargetPath: staging,
	})
	if err != nil {
		return nil, err
	}
	var out []Usage
	for _, u := range answer.GetUsage() {
		out = append(out, Usage{Unit: u.GetUnit().String(), Total: u.GetTotal(), Used: u.GetUsed(), Available: u.GetAvailable()})
	}
	return out, nil
}

// published is where a volume is published on this machine, if it is.
func (r volumeRecord) published() (path, staging string) {
	if r.Attachment == nil {
		return "", ""
	}
	for _, t := range r.Attachment.Targets {
		if t.Published {
			return t.Path, r.Attachment.Staging
		}
	}
	return "", r.Attachment.Staging
}

// Health tells what is wrong with a volume, as controller and node see it;
// nothing is good news. Unsupported: the driver never tells.
func (d *Driver) Health(ctx context.Context, ref string) ([]volume.Condition, error) {
	onController := d.offers.controller[csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH]
	onNode := d.offers.node[csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH]
	if !onController && !onNode {
		return nil, d.lacks("tell the health of a volume", csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH)
	}
	record, err := d.usableVolume(ctx, ref)
	if err != nil {
		return nil, err
	}
	var out []volume.Condition
	if onController {
		answer, err := call(ctx, d, "ControllerGetVolumeHealth", d.controller.ControllerGetVolumeHealth,
			&csi.ControllerGetVolumeHealthRequest{VolumeId: record.ID, Secrets: d.config.Secrets})
		if err != nil {
			return nil, err
		}
		out = conditions(answer.GetVolumeHealth())
	}
	path, staging := record.published()
	if !onNode || path == "" && staging == "" {
		return out, nil
	}
	answer, err := call(ctx, d, "NodeGetVolumeHealth", d.node.NodeGetVolumeHealth, &csi.NodeGetVolumeHealthRequest{
		VolumeId: record.ID, VolumePublishPath: path, StagingTargetPath: staging,
	})
	if err != nil && codeOf(err) != codes.NotFound {
		return nil, err
	}
	return distinct(append(out, conditions(answer.GetVolumeHealth())...)), nil
}

func conditions(h *csi.VolumeHealth) []volume.Condition {
	var out []volume.Condition
	for _, e := range h.GetHealthStatuses() {
		out = append(out, volume.Condition{Severity: volume.Severity(e.GetStatus().String()), Reason: e.GetReason(), Message: e.GetMessage()})
	}
	return distinct(out)
}

// distinct leaves each condition in once: controller and node may see the same.
func distinct(all []volume.Condition) []volume.Condition {
	slices.SortStableFunc(all, func(a, b volume.Condition) int {
		return strings.Compare(string(a.Severity)+a.Reason, string(b.Severity)+b.Reason)
	})
	return slices.CompactFunc(all, func(a, b volume.Condition) bool { return a.Severity == b.Severity && a.Reason == b.Reason })
}

// StorageHealth tells what is wrong with the storage behind all volumes, as
// this node sees it.
func (d *Driver) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	if err := d.needNode("tell the health of its storage", csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH); err != nil {
		return nil, err
	}
	answer, err := call(ctx, d, "NodeGetStorageHealth", d.node.NodeGetStorageHealth, &csi.NodeGetStorageHealthRequest{Secrets: d.config.Secrets})
	if err != nil {
		return nil, err
	}
	var out []volume.Condition
	for _, b := range answer.GetBackendHealth() {
		out = append(out, volume.Condition{Severity: volume.Severity(b.GetStatus().String()), Reason: b.GetReason(), Message: b.GetMessage()})
	}
	return out, nil
}

// Capacity tells what is left for volumes made with these parameters, here.
func (d *Driver) Capacity(ctx context.Context, capability Capability, parameters map[string]string) (volume.Capacity, error) {
	if err := d.needController("tell its capacity", csi.ControllerServiceCapability_RPC_GET_CAPACITY); err != nil {
		return volume.Capacity{}, err
	}
	if err := d.needCapability(capability); err != nil {
		return volume.Capacity{}, err
	}
	request := &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{capability.message()}, Parameters: parameters}
	if here := d.here(); here != nil {
		request.AccessibleTopology = here.GetPreferred()[0]
	}
	answer, err := call(ctx, d, "GetCapacity", d.controller.GetCapacity, request)
	if err != nil {
		return volume.Capacity{}, err
	}
	return volume.Capacity{
		Available: answer.GetAvailableCapacity(), Maximum: answer.GetMaximumVolumeSize().GetValue(), Minimum: answer.GetMinimumVolumeSize().GetValue(),
	}, nil
}
