package request

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// NodeStage asks to make a volume ready on this node.
type NodeStage struct {
	Volume     volume.ID
	Staging    string // an existing directory: absolute, clean
	Capability Capability
	// Locator says how the volume is reached; nil when the contexts hold none.
	Locator        access.Access
	PublishContext map[string]string
}

// NodeStageVolume checks a NodeStageVolumeRequest.
func NodeStageVolume(r *csi.NodeStageVolumeRequest) (NodeStage, error) {
	if err := firstError(
		checkID("volume_id", r.GetVolumeId()),
		checkPath("staging_target_path", r.GetStagingTargetPath()),
		checkMap("publish_context", r.GetPublishContext()),
		checkMap("volume_context", r.GetVolumeContext()),
	); err != nil {
		return NodeStage{}, err
	}
	capability, err := parseCapability("volume_capability", r.GetVolumeCapability())
	if err != nil {
		return NodeStage{}, err
	}
	locator, err := parseLocator(r.GetVolumeContext(), r.GetPublishContext())
	if err != nil {
		return NodeStage{}, err
	}
	return NodeStage{
		Volume: volume.ID(r.GetVolumeId()), Staging: r.GetStagingTargetPath(), Capability: capability,
		Locator: locator, PublishContext: ownKeys(r.GetPublishContext()),
	}, nil
}

// parseLocator reads how a volume is reached out of its contexts.
func parseLocator(volumeContext, publishContext map[string]string) (access.Access, error) {
	a, err := access.Decode(volumeContext, publishContext)
	switch {
	case errors.Is(err, access.ErrNone):
		return nil, nil
	case err != nil:
		return nil, errs.Errorf(errs.Invalid, "volume_context: %w", err)
	}
	return a, nil
}

// NodePublish asks to put a volume where a workload uses it.
type NodePublish struct {
	Volume  volume.ID
	Staging string // empty for an ephemeral volume
	Target  string // absolute, clean; made by the plugin
	// Capability is as it was staged, save for the access mode.
	Capability     Capability
	Locator        access.Access
	PublishContext map[string]string
	// ReadOnly is set by the request, by the access mode, or by a grant that
	// is for reading only.
	ReadOnly bool
	// Ephemeral is set when the volume is to be made by this call and lives as
	// long as the publish.
	Ephemeral *Ephemeral
}

// Ephemeral describes a volume that a workload declares inline.
type Ephemeral struct {
	Size       volume.SizeRange // empty: the engine's default
	FSType     string           // empty: the engine's choice
	Parameters map[string]string
}

// NodePublishVolume checks a NodePublishVolumeRequest. Precondition: a volume
// that is not ephemeral needs a staging path.
func NodePublishVolume(r *csi.NodePublishVolumeRequest) (NodePublish, error) {
	if err := firstError(
		checkID("volume_id", r.GetVolumeId()),
		checkPath("target_path", r.GetTargetPath()),
		checkOptionalPath("staging_target_path", r.GetStagingTargetPath()),
		checkMap("publish_context", r.GetPublishContext()),
		checkMap("volume_context", r.GetVolumeContext()),
	); err != nil {
		return NodePublish{}, err
	}
	capability, err := parseCapability("volume_capability", r.GetVolumeCapability())
	if err != nil {
		return NodePublish{}, err
	}
	p := NodePublish{
		Volume: volume.ID(r.GetVolumeId()), Staging: r.GetStagingTargetPath(), Target: r.GetTargetPath(), Capability: capability,
		PublishContext: ownKeys(r.GetPublishContext()), ReadOnly: r.GetReadonly() || capability.ReadOnly() || IsReadOnlyGrant(r.GetPublishContext()),
	}
	if p.Target == p.Staging || strings.HasPrefix(p.Staging, p.Target+"/") {
		return NodePublish{}, invalidf("target_path %s would hide staging_target_path %s", errs.Quote(p.Target), errs.Quote(p.Staging))
	}
	if p.Ephemeral, err = parseEphemeral(r.GetVolumeContext(), capability); err != nil {
		return NodePublish{}, err
	}
	if p.Ephemeral != nil {
		p.Staging = ""
		return p, nil
	}
	if p.Staging == "" {
		return NodePublish{}, errs.Errorf(errs.Precondition, "staging_target_path is missing: this plugin stages volumes first (STAGE_UNSTAGE_VOLUME)")
	}
	p.Locator, err = parseLocator(r.GetVolumeContext(), r.GetPublishContext())
	return p, err
}

// parseEphemeral reads an inline volume out of the volume context; nil when
// the context does not declare one.
func parseEphemeral(volumeContext map[string]string, c Capability) (*Ephemeral, error) {
	switch v := volumeContext[keyEphemeral]; v {
	case "", "false":
		return nil, nil
	case "true":
	default:
		return nil, invalidf("volume_context[%s] is %s; true or false is needed", keyEphemeral, errs.Quote(v))
	}
	if c.Block {
		return nil, invalidf("an inline ephemeral volume cannot be a block volume; use access type mount")
	}
	context := maps.Clone(volumeContext)
	fsType, err := takeFSType("volume_context", context, c.FSType)
	if err != nil {
		return nil, err
	}
	e := &Ephemeral{FSType: fsType}
	if size, ok := context[keySize]; ok {
		if e.Size.Required, err = parseQuantity("volume_context["+keySize+"]", size); err != nil {
			return nil, err
		}
		delete(context, keySize)
	}
	e.Parameters = ownKeys(context)
	// An engine that refuses these could not say what was meant: they are not its own.
	for _, key := range slices.Sorted(maps.Keys(e.Parameters)) {
		for _, meant := range []string{keySize, keyShortFSType} {
			if strings.EqualFold(key, meant) {
				return nil, invalidf("volume_context key %s is not known; did you mean %q?", errs.Quote(key), meant)
			}
		}
	}
	return e, nil
}

// NodeUnstage asks to undo a stage.
type NodeUnstage struct {
	Volume  volume.ID
	Staging string // see CheckPaths
}

// NodeUnstageVolume checks a NodeUnstageVolumeRequest except for the form of
// its path.
func NodeUnstageVolume(r *csi.NodeUnstageVolumeRequest) (NodeUnstage, error) {
	u := NodeUnstage{Volume: volume.ID(r.GetVolumeId()), Staging: r.GetStagingTargetPath()}
	return u, firstError(checkID("volume_id", r.GetVolumeId()), checkPathLimits("staging_target_path", u.Staging))
}

// CheckPaths refuses a path that is not absolute and clean. It is a step of
// its own because an unknown volume is to be answered first; nothing may touch
// a path before it.
func (u NodeUnstage) CheckPaths() error { return checkPath("staging_target_path", u.Staging) }

// NodeUnpublish asks to undo a publish.
type NodeUnpublish struct {
	Volume volume.ID
	Target string // see CheckPaths
}

// NodeUnpublishVolume checks a NodeUnpublishVolumeRequest except for the form
// of its path.
func NodeUnpublishVolume(r *csi.NodeUnpublishVolumeRequest) (NodeUnpublish, error) {
	u := NodeUnpublish{Volume: volume.ID(r.GetVolumeId()), Target: r.GetTargetPath()}
	return u, firstError(checkID("volume_id", r.GetVolumeId()), checkPathLimits("target_path", u.Target))
}

// CheckPaths refuses a path that is not absolute and clean, as for NodeUnstage.
func (u NodeUnpublish) CheckPaths() error { return checkPath("target_path", u.Target) }

// NodeStats asks how full a volume is.
type NodeStats struct {
	Volume volume.ID
	// Path and Staging (empty when absent) are only to be compared with what
	// is on record: a path where the volume is not is NotFound, whatever its
	// form.
	Path, Staging string
}

// NodeGetVolumeStats checks a NodeGetVolumeStatsRequest.
func NodeGetVolumeStats(r *csi.NodeGetVolumeStatsRequest) (NodeStats, error) {
	s := NodeStats{Volume: volume.ID(r.GetVolumeId()), Path: r.GetVolumePath(), Staging: r.GetStagingTargetPath()}
	return s, firstError(
		checkID("volume_id", r.GetVolumeId()),
		checkPathLimits("volume_path", s.Path),
		checkString("staging_target_path", s.Staging, MaxPath),
	)
}

// NodeExpand asks to make a grown volume usable at its size.
type NodeExpand struct {
	Volume volume.ID
	// Path and Staging (empty when absent) are only to be compared with what
	// is on record, as for NodeStats.
	Path, Staging string
	Size          volume.SizeRange // empty: as large as the volume is
	Capability    *Capability      // nil when absent
}

// NodeExpandVolume checks a NodeExpandVolumeRequest.
func NodeExpandVolume(r *csi.NodeExpandVolumeRequest) (NodeExpand, error) {
	e := NodeExpand{Volume: volume.ID(r.GetVolumeId()), Path: r.GetVolumePath(), Staging: r.GetStagingTargetPath()}
	if err := firstError(
		checkID("volume_id", r.GetVolumeId()),
		checkPathLimits("volume_path", e.Path),
		checkString("staging_target_path", e.Staging, MaxPath),
	); err != nil {
		return NodeExpand{}, err
	}
	var err error
	if e.Size, err = parseRange("capacity_range", r.GetCapacityRange()); err != nil {
		return NodeExpand{}, err
	}
	e.Capability, err = parseOptionalCapability("volume_capability", r.GetVolumeCapability())
	return e, err
}

// NodeHealth asks what this node knows to be wrong with a volume, which need
// not be staged here.
type NodeHealth struct {
	Volume volume.ID
	// Target and Staging are empty when absent, and only to be compared with
	// what is on record.
	Target, Staging string
}

// NodeGetVolumeHealth checks a NodeGetVolumeHealthRequest.
func NodeGetVolumeHealth(r *csi.NodeGetVolumeHealthRequest) (NodeHealth, error) {
	h := NodeHealth{Volume: volume.ID(r.GetVolumeId()), Target: r.GetVolumePublishPath(), Staging: r.GetStagingTargetPath()}
	return h, firstError(
		checkID("volume_id", r.GetVolumeId()),
		checkString("volume_publish_path", h.Target, MaxPath),
		checkString("staging_target_path", h.Staging, MaxPath),
	)
}
