package controller

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// GetCapacity tells what is left. At places other than this node's that is
// nothing.
func (s *Server) GetCapacity(ctx context.Context, r *spec.GetCapacityRequest) (*spec.GetCapacityResponse, error) {
	req, err := request.GetCapacity(r, s.offer)
	if err != nil {
		return nil, err
	}
	if !req.Topology.Covers(s.announced.Segments) {
		return &spec.GetCapacityResponse{}, nil
	}
	c, err := s.backend.Engine.Capacity(ctx, req.Query)
	if req.Unspecific && errs.KindOf(err) == errs.Invalid {
		c, err = s.backend.Engine.Capacity(ctx, volume.CapacityQuery{})
	}
	if err != nil {
		return nil, err
	}
	response := &spec.GetCapacityResponse{AvailableCapacity: max(c.Available, 0)}
	if c.Maximum > 0 {
		response.MaximumVolumeSize = wrapperspb.Int64(c.Maximum)
	}
	if c.Minimum > 0 {
		response.MinimumVolumeSize = wrapperspb.Int64(c.Minimum)
	}
	return response, nil
}
