package csi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// CreateVolume creates a volume. It is idempotent.
func (s *Controller) CreateVolume(ctx context.Context, r *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	req, err := s.createRequest(r)
	if err != nil {
		return nil, err
	}
	v, err := do(ctx, s.operations, r, []string{volumeNameKey(req.Name)}, func(ctx context.Context) (volume.Volume, error) {
		return s.backend.Engine.Create(ctx, req)
	})
	if err != nil {
		return nil, s.reschedule(req.Source, err)
	}
	return &spec.CreateVolumeResponse{Volume: s.volume(v)}, nil
}

// createRequest checks a request and translates it to what the engine takes.
// Exhausted: the volume cannot be where it is wanted.
func (s *Controller) createRequest(r *spec.CreateVolumeRequest) (req volume.CreateRequest, err error) {
	if err := cmp.Or(
		checkName("name", r.GetName()),
		checkMap("parameters", r.GetParameters()),
		checkMap("mutable_parameters", r.GetMutableParameters()),
		checkCapabilities(r.GetVolumeCapabilities()),
	); err != nil {
		return req, err
	}
	req.Name, req.ReadOnly = r.GetName(), readsOnly(r.GetVolumeCapabilities())
	if req.Content, req.FSType, err = s.deployment.contentOf(r.GetVolumeCapabilities()); err != nil {
		return req, err
	}
	if req.Size, err = parseRange("capacity_range", r.GetCapacityRange()); err != nil {
		return req, err
	}
	if req.Source, err = s.parseSource(r.GetVolumeContentSource()); err != nil {
		return req, err
	}
	if req.Parameters, req.FSType, err = s.deployment.parseParameters("parameters", r.GetParameters(), req.Content, req.FSType); err != nil {
		return req, err
	}
	if err := s.checkMountOptions(r.GetVolumeCapabilities(), req.FSType); err != nil {
		return req, err
	}
	mutable := ownKeys(r.GetMutableParameters())
	if err := s.checkMutable(r, mutable); err != nil {
		return req, err
	}
	maps.Copy(req.Parameters, mutable)
	req.Topology, err = s.announced.volumePlaces(r.GetAccessibilityRequirements())
	return req, err
}

// checkMountOptions refuses options with which no pod could start. Whether a file
// system has an option is known only to the kernel that mounts it: that of this
// machine with PerNode.
func (s *Controller) checkMountOptions(capabilities []*spec.VolumeCapability, fsType string) error {
	if !s.deployment.PerNode {
		fsType = ""
	}
	for i, c := range capabilities {
		if err := mount.CheckOptions(fsType, c.GetMount().GetMountFlags()); err != nil {
			return fmt.Errorf("volume_capabilities[%d].mount.mount_flags: %w", i, err)
		}
	}
	return nil
}

func (s *Controller) parseSource(source *spec.VolumeContentSource) (volume.Source, error) {
	if source == nil {
		return volume.Source{}, nil
	}
	switch t := source.GetType().(type) {
	case *spec.VolumeContentSource_Snapshot:
		id := t.Snapshot.GetSnapshotId()
		if s.backend.Snapshots == nil {
			return volume.Source{}, invalidf("volume_content_source: this plugin has no snapshots")
		}
		return volume.Source{Snapshot: volume.SnapshotID(id)}, checkID("volume_content_source.snapshot.snapshot_id", id)
	case *spec.VolumeContentSource_Volume:
		id := t.Volume.GetVolumeId()
		if !s.backend.Clones {
			return volume.Source{}, invalidf("volume_content_source: this plugin cannot clone volumes; take a snapshot and restore it")
		}
		return volume.Source{Volume: volume.ID(id)}, checkID("volume_content_source.volume.volume_id", id)
	}
	return volume.Source{}, invalidf("volume_content_source has no type; one of snapshot and volume is needed")
}

// checkMutable checks the mutable parameters of a new volume, of which own are
// those for the engine.
func (s *Controller) checkMutable(r *spec.CreateVolumeRequest, own map[string]string) error {
	if len(r.GetMutableParameters()) > 0 && !s.announcesModify() {
		return invalidf("mutable_parameters are set, but this plugin does not announce MODIFY_VOLUME")
	}
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if slices.Contains(s.backend.Mutable, key) {
			continue
		}
		hint := "mutable are " + strings.Join(s.backend.Mutable, ", ")
		if word := errs.Nearest(key, s.backend.Mutable); word != "" {
			hint = "did you mean " + word + "?"
		}
		return invalidf("mutable_parameters: %q is not a parameter that can be changed; %s", key, hint)
	}
	return nil
}

func (s *Controller) announcesModify() bool {
	return slices.Contains(s.announced.controller, spec.ControllerServiceCapability_RPC_MODIFY_VOLUME)
}

// reschedule turns NotFound into Exhausted if the source can be in another
// node's pool: with one driver per node, external-provisioner returns a claim
// to the scheduler only for RESOURCE_EXHAUSTED (v6.4.0,
// pkg/controller/controller.go), and otherwise keeps it on this node for ever.
func (s *Controller) reschedule(source volume.Source, err error) error {
	what, id := "snapshot", string(source.Snapshot)
	if source.Volume != "" {
		what, id = "volume", string(source.Volume)
	}
	if !s.deployment.PerNode || errs.KindOf(err) != errs.NotFound || !volume.CanBeInAnotherPool(id, s.backend.Pool) {
		return err
	}
	return errs.Errorf(errs.Exhausted, "volume_content_source: %s %s is not in pool %s of this node %v; schedule the pod to the node that has it, by its node affinity", what, id, s.backend.Pool, s.announced.segments)
}

func (s *Controller) volume(v volume.Volume) *spec.Volume {
	properties := map[string]string{}
	maps.Copy(properties, v.Context)
	maps.Copy(properties, access.Encode(v.Locator))
	properties[access.KeyName] = v.Name
	if s.backend.FormatOnNode && v.Content == volume.Filesystem && v.Source.IsZero() {
		properties[access.KeyFormat] = cmp.Or(v.FSType, fsTypes[0])
	}
	out := &spec.Volume{
		VolumeId: string(v.ID), CapacityBytes: v.Size, VolumeContext: properties, AccessibleTopology: s.announced.accessibleTopology(v.Topology),
	}
	switch {
	case v.Source.Snapshot != "":
		out.ContentSource = &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Snapshot{
			Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: string(v.Source.Snapshot)},
		}}
	case v.Source.Volume != "":
		out.ContentSource = &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{
			Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: string(v.Source.Volume)},
		}}
	}
	return out
}

// DeleteVolume deletes an unused volume, and cancels a pending CreateVolume of
// the same name.
func (s *Controller) DeleteVolume(ctx context.Context, r *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	if err := checkID("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	id := volume.ID(r.GetVolumeId())
	// A refused deletion must not cancel other operations.
	if err := s.checkUnpublished(ctx, id); err != nil {
		return nil, err
	}
	keys := []string{volumeKey(id), grantKey(id)}
	v, err := s.backend.Engine.Get(ctx, id)
	switch {
	case err == nil:
		keys = append(keys, volumeNameKey(v.Name))
	case errs.KindOf(err) != errs.NotFound:
		return nil, err
	}
	return &spec.DeleteVolumeResponse{}, undo(ctx, s.operations, r, keys, nil, func(ctx context.Context) error {
		if err := s.checkUnpublished(ctx, id); err != nil {
			return err
		}
		return s.backend.Engine.Delete(ctx, id)
	})
}

// ControllerGetVolume returns a volume and the nodes that have a grant.
func (s *Controller) ControllerGetVolume(ctx context.Context, r *spec.ControllerGetVolumeRequest) (*spec.ControllerGetVolumeResponse, error) {
	if err := checkID("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := s.backend.Engine.Get(ctx, volume.ID(r.GetVolumeId()))
	if err != nil {
		return nil, err
	}
	nodes, err := s.publishedNodes(ctx, v.ID)
	if err != nil {
		return nil, err
	}
	return &spec.ControllerGetVolumeResponse{
		Volume: s.volume(v), Status: &spec.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: nodes},
	}, nil
}

// ControllerExpandVolume grows a volume. NodeExpandVolume must follow, also for
// block volumes, whose device must learn the size; a directory of a shared file
// system has no device.
func (s *Controller) ControllerExpandVolume(ctx context.Context, r *spec.ControllerExpandVolumeRequest) (*spec.ControllerExpandVolumeResponse, error) {
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_EXPAND_VOLUME),
		checkID("volume_id", r.GetVolumeId()),
	); err != nil {
		return nil, err
	}
	if r.GetCapacityRange() == nil {
		return nil, invalidf("capacity_range is missing")
	}
	size, err := parseRange("capacity_range", r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	capability, err := s.deployment.parseOptionalCapability("volume_capability", r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	id := volume.ID(r.GetVolumeId())
	v, err := do(ctx, s.operations, r, []string{volumeKey(id)}, func(ctx context.Context) (volume.Volume, error) {
		v, err := s.backend.Engine.Get(ctx, id)
		if err == nil && capability != nil {
			err = checkUsable(v, *capability)
		}
		if err != nil {
			return v, err
		}
		v, err = s.backend.Engine.Expand(ctx, id, size)
		return v, refused(err, errs.OutOfRange)
	})
	if err != nil {
		return nil, err
	}
	return &spec.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: s.deployment.SharedFS == ""}, nil
}

func checkUsable(v volume.Volume, c volume.Capability) error {
	switch {
	case v.ReadOnly && !c.ReadOnly():
		return invalidf("volume %s has the content of a snapshot and cannot be changed; use an access mode that only reads (in Kubernetes ReadOnlyMany)", v.ID)
	case c.Block:
		return nil
	case v.Content == volume.Raw:
		return invalidf("volume %s is a block volume and has no file system to mount; use access type block", v.ID)
	case c.FSType != "" && v.FSType != "" && c.FSType != v.FSType: // an adopted volume's is unknown
		return invalidf("volume %s has file system %s, not %s", v.ID, v.FSType, c.FSType)
	}
	return nil
}

// ControllerModifyVolume changes mutable parameters; keys reserved for
// Kubernetes are ignored. Invalid: nothing was changed.
func (s *Controller) ControllerModifyVolume(ctx context.Context, r *spec.ControllerModifyVolumeRequest) (*spec.ControllerModifyVolumeResponse, error) {
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_MODIFY_VOLUME),
		checkID("volume_id", r.GetVolumeId()),
		checkMap("mutable_parameters", r.GetMutableParameters()),
	); err != nil {
		return nil, err
	}
	if len(r.GetMutableParameters()) == 0 {
		return nil, invalidf("mutable_parameters is empty; at least one is needed")
	}
	id := volume.ID(r.GetVolumeId())
	return &spec.ControllerModifyVolumeResponse{}, run(ctx, s.operations, r, []string{volumeKey(id)}, func(ctx context.Context) error {
		_, err := s.backend.Modifier.Modify(ctx, id, ownKeys(r.GetMutableParameters()))
		return refused(err, errs.Precondition)
	})
}

// ValidateVolumeCapabilities confirms that a volume has all capabilities, or
// says why not. Well-formed but impossible ones are no error.
func (s *Controller) ValidateVolumeCapabilities(ctx context.Context, r *spec.ValidateVolumeCapabilitiesRequest) (*spec.ValidateVolumeCapabilitiesResponse, error) {
	if err := cmp.Or(
		checkID("volume_id", r.GetVolumeId()),
		checkMap("volume_context", r.GetVolumeContext()),
		checkMap("parameters", r.GetParameters()),
		checkMap("mutable_parameters", r.GetMutableParameters()),
		checkCapabilities(r.GetVolumeCapabilities()),
	); err != nil {
		return nil, err
	}
	v, err := s.backend.Engine.Get(ctx, volume.ID(r.GetVolumeId()))
	if err != nil {
		return nil, err
	}
	if err := s.checkConfirmed(v, r); err != nil {
		return &spec.ValidateVolumeCapabilitiesResponse{Message: clip(err.Error())}, nil
	}
	return &spec.ValidateVolumeCapabilitiesResponse{Confirmed: &spec.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(),
		Parameters: r.GetParameters(), MutableParameters: r.GetMutableParameters(),
	}}, nil
}

func (s *Controller) checkConfirmed(v volume.Volume, r *spec.ValidateVolumeCapabilitiesRequest) error {
	content, fsType, err := s.deployment.contentOf(r.GetVolumeCapabilities())
	if err != nil {
		return err
	}
	wanted, fsType, err := s.deployment.parseParameters("parameters", r.GetParameters(), content, fsType)
	if err != nil {
		return err
	}
	locator, err := parseLocator(r.GetVolumeContext(), nil)
	if err != nil {
		return err
	}
	mutable := ownKeys(r.GetMutableParameters())
	maps.Copy(wanted, mutable)
	switch {
	case locator != nil && !access.SameVolume(locator, v.Locator):
		return invalidf("volume_context does not match the volume")
	case len(mutable) > 0 && !s.announcesModify():
		return invalidf("mutable_parameters are set, but MODIFY_VOLUME is not announced")
	case v.ReadOnly && !readsOnly(r.GetVolumeCapabilities()):
		return invalidf("the volume has the content of a snapshot and cannot be changed")
	case content == volume.Filesystem && v.Content == volume.Raw:
		return invalidf("the volume is a block volume and has no file system to mount")
	case fsType != "" && v.FSType != "" && fsType != v.FSType:
		return invalidf("the volume has file system %s, not %s", v.FSType, fsType)
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		now, known := v.Attributes[key]
		switch {
		case !slices.Contains(s.backend.Parameters, key) && !known:
			return invalidf("parameter %q is not known", key)
		case known && now != wanted[key]:
			return invalidf("parameter %s of the volume is %q, not %q", key, now, wanted[key])
		}
	}
	return nil
}
