package request

import (
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Offer says which optional fields of a request the plugin announced to take;
// a field that it did not announce is an invalid argument.
type Offer struct {
	Topology         bool // accessibility_requirements of volumes, accessible_topology
	SnapshotTopology bool // accessibility_requirements of snapshots
	Modify           bool // mutable_parameters
}

// NewVolume asks for a volume.
type NewVolume struct {
	Name         string
	Size         volume.SizeRange
	Capabilities []Capability
	// Content is what the volume has to be for all capabilities, Raw or
	// Filesystem; FSType is empty where the engine may choose.
	Content volume.Content
	FSType  string
	Source  volume.Source
	// Parameters are for the engine: mutable parameters over the others,
	// without what belongs to the orchestrator. Mutable are the keys that
	// came as mutable.
	Parameters    map[string]string
	Mutable       []string
	Accessibility *Accessibility
}

// CreateVolume checks a CreateVolumeRequest.
func CreateVolume(r *csi.CreateVolumeRequest, offer Offer) (NewVolume, error) {
	if err := firstError(
		checkName("name", r.GetName()),
		checkMap("parameters", r.GetParameters()),
		checkMap("mutable_parameters", r.GetMutableParameters()),
	); err != nil {
		return NewVolume{}, err
	}
	capabilities, err := readCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return NewVolume{}, err
	}
	c := NewVolume{Name: r.GetName(), Capabilities: capabilities}
	if c.Content, c.FSType, err = contentOf(capabilities); err != nil {
		return NewVolume{}, err
	}
	if c.Size, err = parseRange("capacity_range", r.GetCapacityRange()); err != nil {
		return NewVolume{}, err
	}
	if c.Source, err = parseSource(r.GetVolumeContentSource()); err != nil {
		return NewVolume{}, err
	}
	if c.Parameters, c.FSType, err = parseParameters(r.GetParameters(), c.Content, c.FSType); err != nil {
		return NewVolume{}, err
	}
	mutable, err := parseMutable(r.GetMutableParameters(), offer)
	if err != nil {
		return NewVolume{}, err
	}
	maps.Copy(c.Parameters, mutable)
	c.Mutable = slices.Sorted(maps.Keys(mutable))
	c.Accessibility, err = parseAccessibility(r.GetAccessibilityRequirements(), offer.Topology)
	return c, err
}

// parseParameters returns what the engine is to see of parameters, never nil,
// and the file system type that they and the capabilities agree on.
func parseParameters(parameters map[string]string, content volume.Content, wished string) (map[string]string, string, error) {
	own := maps.Clone(parameters)
	if own == nil {
		own = map[string]string{}
	}
	fsType, err := takeFSType("parameters", own, wished)
	if err != nil {
		return nil, "", err
	}
	if content == volume.Raw {
		// A StorageClass names a file system for all its volumes; a block
		// volume of that class has none all the same.
		fsType = ""
	}
	return ownKeys(own), fsType, nil
}

func parseMutable(m map[string]string, offer Offer) (map[string]string, error) {
	if len(m) > 0 && !offer.Modify {
		return nil, invalidf("mutable_parameters are set, but this plugin does not announce MODIFY_VOLUME")
	}
	return ownKeys(m), nil
}

func parseSource(s *csi.VolumeContentSource) (volume.Source, error) {
	if s == nil {
		return volume.Source{}, nil
	}
	switch t := s.GetType().(type) {
	case *csi.VolumeContentSource_Snapshot:
		id := t.Snapshot.GetSnapshotId()
		return volume.Source{Snapshot: volume.SnapshotID(id)}, checkID("volume_content_source.snapshot.snapshot_id", id)
	case *csi.VolumeContentSource_Volume:
		id := t.Volume.GetVolumeId()
		return volume.Source{Volume: volume.ID(id)}, checkID("volume_content_source.volume.volume_id", id)
	default:
		return volume.Source{}, invalidf("volume_content_source has no type; one of snapshot and volume is needed")
	}
}

// DeleteVolume checks a DeleteVolumeRequest.
func DeleteVolume(r *csi.DeleteVolumeRequest) (volume.ID, error) {
	return volume.ID(r.GetVolumeId()), checkID("volume_id", r.GetVolumeId())
}

// ControllerGetVolume checks a ControllerGetVolumeRequest.
func ControllerGetVolume(r *csi.ControllerGetVolumeRequest) (volume.ID, error) {
	return volume.ID(r.GetVolumeId()), checkID("volume_id", r.GetVolumeId())
}

// ControllerGetVolumeHealth checks a ControllerGetVolumeHealthRequest.
func ControllerGetVolumeHealth(r *csi.ControllerGetVolumeHealthRequest) (volume.ID, error) {
	return volume.ID(r.GetVolumeId()), checkID("volume_id", r.GetVolumeId())
}

// Validation asks whether a volume can be used in certain ways.
type Validation struct {
	Volume volume.ID
	// Unsupported is the reason why no volume of ours can have all that is
	// asked for; empty, and then the rest is set, when one can.
	Unsupported string
	Content     volume.Content
	FSType      string
	Parameters  map[string]string
	Mutable     map[string]string
	Locator     access.Access // nil when the volume context holds none
}

// ValidateVolumeCapabilities checks a ValidateVolumeCapabilitiesRequest.
// What is well-formed but cannot be had is no error, but Unsupported.
func ValidateVolumeCapabilities(r *csi.ValidateVolumeCapabilitiesRequest) (Validation, error) {
	if err := firstError(
		checkID("volume_id", r.GetVolumeId()),
		checkMap("volume_context", r.GetVolumeContext()),
		checkMap("parameters", r.GetParameters()),
		checkMap("mutable_parameters", r.GetMutableParameters()),
	); err != nil {
		return Validation{}, err
	}
	capabilities, err := readCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return Validation{}, err
	}
	v := Validation{Volume: volume.ID(r.GetVolumeId()), Mutable: ownKeys(r.GetMutableParameters())}
	v.Content, v.FSType, err = contentOf(capabilities)
	if err == nil {
		v.Parameters, v.FSType, err = parseParameters(r.GetParameters(), v.Content, v.FSType)
	}
	if err == nil {
		v.Locator, err = parseLocator(r.GetVolumeContext(), nil)
	}
	if err != nil {
		return Validation{Volume: v.Volume, Unsupported: err.Error()}, nil
	}
	return v, nil
}

// Expansion asks for a larger volume.
type Expansion struct {
	Volume     volume.ID
	Size       volume.SizeRange // never empty
	Capability *Capability      // nil when absent
}

// ControllerExpandVolume checks a ControllerExpandVolumeRequest.
func ControllerExpandVolume(r *csi.ControllerExpandVolumeRequest) (Expansion, error) {
	if err := checkID("volume_id", r.GetVolumeId()); err != nil {
		return Expansion{}, err
	}
	if r.GetCapacityRange() == nil {
		return Expansion{}, invalidf("capacity_range is missing")
	}
	e := Expansion{Volume: volume.ID(r.GetVolumeId())}
	var err error
	if e.Size, err = parseRange("capacity_range", r.GetCapacityRange()); err != nil {
		return Expansion{}, err
	}
	e.Capability, err = parseOptionalCapability("volume_capability", r.GetVolumeCapability())
	return e, err
}

// Modification asks for other values of mutable parameters.
type Modification struct {
	Volume volume.ID
	// Parameters may be empty when all that came belongs to the orchestrator.
	Parameters map[string]string
}

// ControllerModifyVolume checks a ControllerModifyVolumeRequest.
func ControllerModifyVolume(r *csi.ControllerModifyVolumeRequest) (Modification, error) {
	if err := firstError(
		checkID("volume_id", r.GetVolumeId()),
		checkMap("mutable_parameters", r.GetMutableParameters()),
	); err != nil {
		return Modification{}, err
	}
	if len(r.GetMutableParameters()) == 0 {
		return Modification{}, invalidf("mutable_parameters is empty; at least one is needed")
	}
	return Modification{Volume: volume.ID(r.GetVolumeId()), Parameters: ownKeys(r.GetMutableParameters())}, nil
}
