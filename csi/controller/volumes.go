package controller

import (
	"context"
	"maps"
	"slices"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// CreateVolume makes a volume, or answers with the one made for an equal
// request.
func (s *Server) CreateVolume(ctx context.Context, r *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	req, err := request.CreateVolume(r, s.offer)
	if err != nil {
		return nil, err
	}
	if err := s.checkCreate(req); err != nil {
		return nil, err
	}
	v, err := op.Do(ctx, s.operations, op.Request{
		What: "CreateVolume", Keys: []string{volumeNameKey(req.Name)}, Fingerprint: request.Fingerprint(r),
	}, func(ctx context.Context) (volume.Volume, error) {
		return s.backend.Engine.Create(ctx, volume.CreateRequest{
			Name: req.Name, Size: req.Size, Content: req.Content, FSType: req.FSType, Source: req.Source, Parameters: req.Parameters,
		})
	})
	if err != nil {
		return nil, s.reschedule(req.Source, err)
	}
	return &spec.CreateVolumeResponse{Volume: s.volume(v)}, nil
}

// reschedule turns NotFound into Exhausted when the source can be in the pool
// of another node: with one driver per node, external-provisioner gives a claim
// back to the scheduler for RESOURCE_EXHAUSTED alone (v6.3.0,
// pkg/controller/controller.go), and keeps it on this node for ever otherwise.
func (s *Server) reschedule(source volume.Source, err error) error {
	what, id := "snapshot", string(source.Snapshot)
	if source.Volume != "" {
		what, id = "volume", string(source.Volume)
	}
	if !s.perNode || errs.KindOf(err) != errs.NotFound || !volume.MayBeInAnotherPool(id, s.backend.Pool) {
		return err
	}
	return errs.Errorf(errs.Exhausted, "volume_content_source: %s %s is not in pool %s of this node %v; schedule the pod to the node that has it, by its node affinity", what, id, s.backend.Pool, s.announced.Segments)
}

// checkCreate refuses what this deployment cannot make, before any work.
func (s *Server) checkCreate(req request.NewVolume) error {
	switch {
	case req.Source.Snapshot != "" && s.backend.Snapshots == nil:
		return errs.Errorf(errs.Invalid, "volume_content_source: this plugin has no snapshots")
	case req.Source.Volume != "" && !s.backend.Clones:
		return errs.Errorf(errs.Invalid, "volume_content_source: this plugin cannot clone volumes; take a snapshot and restore it")
	}
	for _, key := range req.Mutable {
		if !slices.Contains(s.backend.Mutable, key) {
			return s.notMutable(key)
		}
	}
	if !req.Accessibility.Admits(s.announced.Segments) {
		return errs.Errorf(errs.Exhausted, "volumes of this driver are on %s, which no requisite topology of accessibility_requirements includes", describe(s.announced.Segments))
	}
	return nil
}

func (s *Server) notMutable(key string) error {
	hint := "mutable are " + strings.Join(s.backend.Mutable, ", ")
	if word := errs.Nearest(key, s.backend.Mutable); word != "" {
		hint = "did you mean " + word + "?"
	}
	return errs.Errorf(errs.Invalid, "mutable_parameters: %q is not a parameter that can be changed; %s", key, hint)
}

// describe writes segments of a topology as key=value.
func describe(segments map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		all = append(all, key+"="+segments[key])
	}
	return strings.Join(all, ", ")
}

// volume says in the contract's words what a volume is.
func (s *Server) volume(v volume.Volume) *spec.Volume {
	properties := access.Encode(v.Locator)
	properties[access.KeyName] = v.Name
	return &spec.Volume{
		VolumeId: string(v.ID), CapacityBytes: v.Size, VolumeContext: properties,
		ContentSource: contentSource(v.Source), AccessibleTopology: s.announced.AccessibleTopology(),
	}
}

func contentSource(source volume.Source) *spec.VolumeContentSource {
	switch {
	case source.Snapshot != "":
		return &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Snapshot{
			Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: string(source.Snapshot)},
		}}
	case source.Volume != "":
		return &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{
			Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: string(source.Volume)},
		}}
	}
	return nil
}

// DeleteVolume removes a volume that nobody uses. It also waits for, and
// cancels, a pending request for a volume of the same name.
func (s *Server) DeleteVolume(ctx context.Context, r *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	id, err := request.DeleteVolume(r)
	if err != nil {
		return nil, err
	}
	// A deletion that is refused anyway must not cancel what others do.
	if err := s.checkUnpublished(ctx, id); err != nil {
		return nil, err
	}
	v, err := s.backend.Engine.Get(ctx, id)
	switch {
	case errs.KindOf(err) == errs.NotFound:
		v = volume.Volume{}
	case err != nil:
		return nil, err
	}
	keys := []string{volumeKey(id), grantKey(id)}
	if v.Name != "" {
		keys = append(keys, volumeNameKey(v.Name))
	}
	_, err = op.Do(ctx, s.operations, op.Request{
		What: "DeleteVolume", Keys: keys, Fingerprint: request.Fingerprint(r), Negates: true,
	}, func(ctx context.Context) (struct{}, error) {
		if err := s.checkUnpublished(ctx, id); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, s.backend.Engine.Delete(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	return &spec.DeleteVolumeResponse{}, nil
}

// ControllerGetVolume answers what is known of a volume.
func (s *Server) ControllerGetVolume(ctx context.Context, r *spec.ControllerGetVolumeRequest) (*spec.ControllerGetVolumeResponse, error) {
	id, err := request.ControllerGetVolume(r)
	if err != nil {
		return nil, err
	}
	v, err := s.backend.Engine.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	nodes, err := s.publishedNodes(ctx, id)
	if err != nil {
		return nil, err
	}
	return &spec.ControllerGetVolumeResponse{
		Volume: s.volume(v), Status: &spec.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: nodes},
	}, nil
}

// ControllerExpandVolume grows a volume; the node then makes the new size
// usable, for a block volume too, whose device has to learn it.
func (s *Server) ControllerExpandVolume(ctx context.Context, r *spec.ControllerExpandVolumeRequest) (*spec.ControllerExpandVolumeResponse, error) {
	if err := s.announced.RequireController("ControllerExpandVolume", spec.ControllerServiceCapability_RPC_EXPAND_VOLUME); err != nil {
		return nil, err
	}
	req, err := request.ControllerExpandVolume(r)
	if err != nil {
		return nil, err
	}
	v, err := op.Do(ctx, s.operations, op.Request{
		What: "ControllerExpandVolume", Keys: []string{volumeKey(req.Volume)}, Fingerprint: request.Fingerprint(r),
	}, func(ctx context.Context) (volume.Volume, error) {
		v, err := s.backend.Engine.Get(ctx, req.Volume)
		if err != nil {
			return v, err
		}
		if req.Capability != nil {
			if err := checkUsable(v, *req.Capability); err != nil {
				return v, err
			}
		}
		v, err = s.backend.Engine.Expand(ctx, req.Volume, req.Size)
		return v, csi.Refused(err, errs.OutOfRange)
	})
	if err != nil {
		return nil, err
	}
	return &spec.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
}

// checkUsable refuses a capability that this volume was not made for.
func checkUsable(v volume.Volume, c request.Capability) error {
	switch {
	case c.Block:
		return nil
	case v.Content == volume.Raw:
		return errs.Errorf(errs.Invalid, "volume %s is a block volume and has no file system to mount; use access type block", v.ID)
	case c.FSType != "" && c.FSType != v.FSType:
		return errs.Errorf(errs.Invalid, "volume %s has file system %s, not %s", v.ID, v.FSType, c.FSType)
	}
	return nil
}

// ControllerModifyVolume changes mutable parameters. Invalid: nothing was
// changed.
func (s *Server) ControllerModifyVolume(ctx context.Context, r *spec.ControllerModifyVolumeRequest) (*spec.ControllerModifyVolumeResponse, error) {
	if err := s.announced.RequireController("ControllerModifyVolume", spec.ControllerServiceCapability_RPC_MODIFY_VOLUME); err != nil {
		return nil, err
	}
	req, err := request.ControllerModifyVolume(r)
	if err != nil {
		return nil, err
	}
	_, err = op.Do(ctx, s.operations, op.Request{
		What: "ControllerModifyVolume", Keys: []string{volumeKey(req.Volume)}, Fingerprint: request.Fingerprint(r),
	}, func(ctx context.Context) (volume.Volume, error) {
		v, err := s.backend.Modifier.Modify(ctx, req.Volume, req.Parameters)
		return v, csi.Refused(err, errs.Precondition)
	})
	if err != nil {
		return nil, err
	}
	return &spec.ControllerModifyVolumeResponse{}, nil
}
