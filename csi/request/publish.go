package request

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// ControllerPublish asks to grant a node the use of a volume.
type ControllerPublish struct {
	Volume     volume.ID
	Node       string
	Capability Capability
	ReadOnly   bool
	Locator    access.Access // nil when the volume context holds none
}

// ControllerPublishVolume checks a ControllerPublishVolumeRequest.
func ControllerPublishVolume(r *csi.ControllerPublishVolumeRequest) (ControllerPublish, error) {
	if err := firstError(
		checkID("volume_id", r.GetVolumeId()),
		requireString("node_id", r.GetNodeId(), MaxNodeID),
		checkMap("volume_context", r.GetVolumeContext()),
	); err != nil {
		return ControllerPublish{}, err
	}
	p := ControllerPublish{Volume: volume.ID(r.GetVolumeId()), Node: r.GetNodeId(), ReadOnly: r.GetReadonly()}
	var err error
	if p.Capability, err = parseCapability("volume_capability", r.GetVolumeCapability()); err != nil {
		return ControllerPublish{}, err
	}
	p.Locator, err = parseLocator(r.GetVolumeContext(), nil)
	return p, err
}

// ControllerUnpublish asks to take the use of a volume from a node.
type ControllerUnpublish struct {
	Volume volume.ID
	Node   string // empty: from all nodes
}

// ControllerUnpublishVolume checks a ControllerUnpublishVolumeRequest.
func ControllerUnpublishVolume(r *csi.ControllerUnpublishVolumeRequest) (ControllerUnpublish, error) {
	return ControllerUnpublish{Volume: volume.ID(r.GetVolumeId()), Node: r.GetNodeId()},
		firstError(checkID("volume_id", r.GetVolumeId()), checkString("node_id", r.GetNodeId(), MaxNodeID))
}

// Keys of the publish context that a grant writes.
const (
	keyGrantedTo       = "grantedTo"
	keyGrantedReadOnly = "grantedReadOnly"
)

// GrantContext is the publish context of a grant to a node.
func GrantContext(node string, readOnly bool) map[string]string {
	context := map[string]string{keyGrantedTo: node}
	if readOnly {
		context[keyGrantedReadOnly] = "true"
	}
	return context
}

// GrantedTo returns the node that a publish context was written for, empty
// when it carries no grant.
func GrantedTo(publishContext map[string]string) string { return publishContext[keyGrantedTo] }

// IsReadOnlyGrant reports whether a publish context carries a grant for
// reading only.
func IsReadOnlyGrant(publishContext map[string]string) bool {
	return publishContext[keyGrantedReadOnly] == "true"
}
