package client

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Health returns the conditions that controller and node report. Unsupported:
// neither reports the health of this volume, as the node of one that is detached.
func (d *Driver) Health(ctx context.Context, ref string) ([]volume.Condition, error) {
	onController, onNode := d.announced[csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH], d.announced[csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH]
	if !onController && !onNode && (d.announced[controllerVolumeCondition] || d.announced[nodeVolumeCondition]) {
		return d.volumeCondition(ctx, ref)
	}
	if !onNode {
		if err := d.need("report the health of a volume", csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH); err != nil {
			return nil, err
		}
	}
	n, err := usable(d.findVolume(ctx, ref))
	if err != nil {
		return nil, err
	}
	var found []*csi.VolumeHealth_VolumeHealthEntry
	if onController {
		answer, err := d.controller.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: n.ID, Secrets: d.config.Secrets})
		if err != nil {
			return nil, err
		}
		found = answer.GetVolumeHealth().GetHealthStatuses()
	}
	reported := onController
	if path, staging := n.attachment.published(); onNode && (path != "" || staging != "") {
		answer, err := d.node.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: n.ID, VolumePublishPath: path, StagingTargetPath: staging})
		if err != nil && codeOf(err) != codes.NotFound {
			return nil, err
		}
		reported = reported || err == nil
		found = append(found, answer.GetVolumeHealth().GetHealthStatuses()...)
	}
	if !reported {
		return nil, d.notReported(n)
	}
	return conditions(found), nil
}

// conditions are the entries, each once: controller and node can report the
// same.
func conditions(entries []*csi.VolumeHealth_VolumeHealthEntry) (out []volume.Condition) {
	for _, e := range entries {
		out = append(out, volume.Condition{Severity: volume.Severity(e.GetStatus().String()), Reason: e.GetReason(), Message: e.GetMessage()})
	}
	slices.SortStableFunc(out, func(a, b volume.Condition) int {
		return strings.Compare(string(a.Severity)+a.Reason, string(b.Severity)+b.Reason)
	})
	return slices.CompactFunc(out, func(a, b volume.Condition) bool { return a.Severity == b.Severity && a.Reason == b.Reason })
}

// StorageHealth returns the conditions of the storage that this node reports.
func (d *Driver) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	if err := d.need("report the health of its storage", csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH); err != nil {
		return nil, err
	}
	answer, err := d.node.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{Secrets: d.config.Secrets})
	if err != nil {
		return nil, err
	}
	var out []volume.Condition
	for _, b := range answer.GetBackendHealth() {
		out = append(out, volume.Condition{Severity: volume.Severity(b.GetStatus().String()), Reason: b.GetReason(), Message: b.GetMessage()})
	}
	return out, nil
}

// The capabilities of drivers before CSI 1.13, whose numbers are now reserved, and
// the field of their VolumeCondition, which is the same in both answers.
const (
	controllerVolumeCondition csi.ControllerServiceCapability_RPC_Type = 11
	nodeVolumeCondition       csi.NodeServiceCapability_RPC_Type       = 4
	volumeConditionField                                               = 2
)

// ReasonAbnormal is for the VolumeCondition of drivers before CSI 1.13, which has
// a message alone.
const ReasonAbnormal = "Abnormal"

// volumeCondition returns what a driver before CSI 1.13 reports.
func (d *Driver) volumeCondition(ctx context.Context, ref string) ([]volume.Condition, error) {
	n, err := usable(d.findVolume(ctx, ref))
	if err != nil {
		return nil, err
	}
	var found []volume.Condition
	reported := false
	if d.announced[controllerVolumeCondition] && d.announced[csi.ControllerServiceCapability_RPC_GET_VOLUME] {
		answer, err := d.controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: n.ID})
		if err != nil {
			return nil, err
		}
		reported = appendCondition(&found, answer.GetStatus()) || reported
	}
	if path, staging := n.attachment.published(); path != "" && d.announced[nodeVolumeCondition] && d.announced[csi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		answer, err := d.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: n.ID, VolumePath: path, StagingTargetPath: staging})
		if err != nil {
			return nil, err
		}
		reported = appendCondition(&found, answer) || reported
	}
	if !reported {
		return nil, d.notReported(n)
	}
	return slices.Compact(found), nil
}

func (d *Driver) notReported(n *volumeRecord) error {
	return errs.Errorf(errs.Unsupported, "driver %s reports no condition of volume %s; some do so only for an attached volume", d.info.Name, n.Name)
}

// appendCondition reads a VolumeCondition {bool abnormal = 1; string message = 2},
// which a message of CSI 1.13 has as an unknown field. False: it has no such field.
func appendCondition(to *[]volume.Condition, answer proto.Message) bool {
	condition, ok := field(answer.ProtoReflect().GetUnknown(), volumeConditionField)
	if !ok {
		return false
	}
	message, isAbnormal := "", false
	for len(condition) > 0 {
		number, kind, n := protowire.ConsumeTag(condition)
		if n < 0 {
			return false
		}
		value := condition[n:]
		if n = protowire.ConsumeFieldValue(number, kind, value); n < 0 {
			return false
		}
		switch {
		case number == 1 && kind == protowire.VarintType:
			abnormal, _ := protowire.ConsumeVarint(value)
			isAbnormal = abnormal != 0
		case number == 2 && kind == protowire.BytesType:
			text, _ := protowire.ConsumeBytes(value)
			message = string(text)
		}
		condition = value[n:]
	}
	if isAbnormal {
		*to = append(*to, volume.Condition{Severity: volume.Degraded, Reason: ReasonAbnormal, Message: cmp.Or(message, "the driver gives no reason")})
	}
	return true
}

// field returns the last value of a message's field of bytes.
func field(message []byte, wanted protowire.Number) (found []byte, ok bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		value := message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, value); n < 0 {
			return nil, false
		}
		if number == wanted && kind == protowire.BytesType {
			found, _ = protowire.ConsumeBytes(value)
			ok = true
		}
		message = value[n:]
	}
	return found, ok
}
