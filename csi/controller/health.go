package controller

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// ControllerGetVolumeHealth tells what the backend knows to be wrong with a
// volume.
func (s *Server) ControllerGetVolumeHealth(ctx context.Context, r *spec.ControllerGetVolumeHealthRequest) (*spec.ControllerGetVolumeHealthResponse, error) {
	if err := s.announced.RequireController("ControllerGetVolumeHealth", spec.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH); err != nil {
		return nil, err
	}
	id, err := request.ControllerGetVolumeHealth(r)
	if err != nil {
		return nil, err
	}
	conditions, err := s.backend.Health.VolumeHealth(ctx, id)
	if err != nil {
		return nil, err
	}
	return &spec.ControllerGetVolumeHealthResponse{VolumeHealth: csi.VolumeHealth(id, conditions)}, nil
}

// ControllerListVolumeHealth lists the volumes with which something is wrong,
// and no others.
func (s *Server) ControllerListVolumeHealth(ctx context.Context, r *spec.ControllerListVolumeHealthRequest) (*spec.ControllerListVolumeHealthResponse, error) {
	if err := s.announced.RequireController("ControllerListVolumeHealth", spec.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH); err != nil {
		return nil, err
	}
	page, err := request.ControllerListVolumeHealth(r)
	if err != nil {
		return nil, err
	}
	entries, token, err := pageOf(ctx, request.ListOfHealth, page, s.readVolumes, s.listHealth, volumeID)
	if err != nil {
		return nil, err
	}
	return &spec.ControllerListVolumeHealthResponse{Entries: entries, NextToken: token}, nil
}

func (s *Server) listHealth(ctx context.Context, v volume.Volume) (*spec.VolumeHealth, bool, error) {
	if v.Ephemeral {
		return nil, false, nil
	}
	conditions, err := s.backend.Health.VolumeHealth(ctx, v.ID)
	switch {
	case errs.KindOf(err) == errs.NotFound: // deleted since it was listed
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	return csi.VolumeHealth(v.ID, conditions), len(conditions) > 0, nil
}
