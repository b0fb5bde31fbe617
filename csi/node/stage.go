package node

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/attach"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// NodeStageVolume makes a volume ready on this node.
func (s *Server) NodeStageVolume(ctx context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	q, err := request.NodeStageVolume(r)
	if err != nil {
		return nil, err
	}
	if err := s.checkGrant(q.Volume, q.PublishContext); err != nil {
		return nil, err
	}
	err = s.do(ctx, op.Request{
		Keys: []string{volumeKey(q.Volume)}, Fingerprint: request.Fingerprint(r), What: "NodeStageVolume",
	}, func(ctx context.Context) error {
		leave, err := s.enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
		return s.config.Machine.Stage(ctx, attach.StageRequest{
			Volume: q.Volume, Staging: q.Staging, Capability: capability(q.Capability), Locator: q.Locator,
		})
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume undoes NodeStageVolume, and cancels one that runs.
func (s *Server) NodeUnstageVolume(ctx context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	q, err := request.NodeUnstageVolume(r)
	if err != nil {
		return nil, err
	}
	unknown, err := s.checkPaths(ctx, q.Volume, q.CheckPaths)
	if err != nil {
		return nil, err
	}
	if unknown {
		return &spec.NodeUnstageVolumeResponse{}, nil
	}
	err = s.do(ctx, op.Request{
		Keys: []string{volumeKey(q.Volume)}, Fingerprint: request.Fingerprint(r), What: "NodeUnstageVolume", Negates: true,
	}, func(ctx context.Context) error {
		return s.config.Machine.Unstage(ctx, attach.UnstageRequest{Volume: q.Volume, Staging: q.Staging})
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume puts a volume where a workload uses it.
func (s *Server) NodePublishVolume(ctx context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	q, err := request.NodePublishVolume(r)
	if err != nil {
		return nil, err
	}
	if q.Ephemeral == nil { // those are made here, and nobody could grant them before
		if err := s.checkGrant(q.Volume, q.PublishContext); err != nil {
			return nil, err
		}
	}
	err = s.do(ctx, op.Request{
		Keys: []string{volumeKey(q.Volume), targetKey(q.Target)}, Fingerprint: request.Fingerprint(r), What: "NodePublishVolume",
	}, func(ctx context.Context) error {
		leave, err := s.enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
		return s.config.Machine.Publish(ctx, publish(q))
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodePublishVolumeResponse{}, nil
}

func publish(q request.NodePublish) attach.PublishRequest {
	p := attach.PublishRequest{
		Volume: q.Volume, Staging: q.Staging, Target: q.Target, Capability: capability(q.Capability),
		ReadOnly: q.ReadOnly || request.IsReadOnlyGrant(q.PublishContext),
	}
	if q.Ephemeral != nil {
		p.Ephemeral = &attach.Ephemeral{Size: q.Ephemeral.Size, FSType: q.Ephemeral.FSType, Parameters: q.Ephemeral.Parameters}
	}
	return p
}

// NodeUnpublishVolume undoes NodePublishVolume, and cancels one that runs. Its
// only key is the target: a publish of the same volume at another target is
// none of its business.
func (s *Server) NodeUnpublishVolume(ctx context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	q, err := request.NodeUnpublishVolume(r)
	if err != nil {
		return nil, err
	}
	unknown, err := s.checkPaths(ctx, q.Volume, q.CheckPaths)
	if err != nil {
		return nil, err
	}
	if unknown {
		return &spec.NodeUnpublishVolumeResponse{}, nil
	}
	err = s.do(ctx, op.Request{
		Keys: []string{targetKey(q.Target)}, Fingerprint: request.Fingerprint(r), What: "NodeUnpublishVolume", Negates: true,
	}, func(ctx context.Context) error {
		return s.config.Machine.Unpublish(ctx, attach.UnpublishRequest{Volume: q.Volume, Target: q.Target})
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// checkPaths refuses a malformed path, unless the volume is not known here:
// then there is nothing to undo, whatever the path.
func (s *Server) checkPaths(ctx context.Context, id volume.ID, check func() error) (unknown bool, err error) {
	wrong := check()
	if wrong == nil {
		return false, nil
	}
	known, err := s.config.Machine.Knows(ctx, id)
	switch {
	case err != nil:
		return false, err
	case known:
		return false, wrong
	}
	return true, nil
}
