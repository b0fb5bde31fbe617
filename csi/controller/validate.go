package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// ValidateVolumeCapabilities confirms that a volume can be used in all the
// ways asked for, or says why not.
func (s *Server) ValidateVolumeCapabilities(ctx context.Context, r *spec.ValidateVolumeCapabilitiesRequest) (*spec.ValidateVolumeCapabilitiesResponse, error) {
	req, err := request.ValidateVolumeCapabilities(r)
	if err != nil {
		return nil, err
	}
	v, err := s.backend.Engine.Get(ctx, req.Volume)
	if err != nil {
		return nil, err
	}
	if reason := s.unconfirmed(v, req); reason != "" {
		return &spec.ValidateVolumeCapabilitiesResponse{Message: csi.Clip(reason)}, nil
	}
	return &spec.ValidateVolumeCapabilitiesResponse{Confirmed: &spec.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(),
		Parameters: r.GetParameters(), MutableParameters: r.GetMutableParameters(),
	}}, nil
}

// unconfirmed returns why a volume does not do for a request, or "".
func (s *Server) unconfirmed(v volume.Volume, req request.Validation) string {
	switch {
	case req.Unsupported != "":
		return req.Unsupported
	case req.Locator != nil && !access.Equal(req.Locator, v.Locator):
		return "volume_context is not that of the volume"
	case len(req.Mutable) > 0 && !s.offer.Modify:
		return "mutable_parameters are set, but MODIFY_VOLUME is not announced"
	case req.Content == volume.Filesystem && v.Content == volume.Raw:
		return "the volume is a block volume and has no file system to mount"
	case req.FSType != "" && req.FSType != v.FSType:
		return fmt.Sprintf("the volume has file system %s, not %s", v.FSType, req.FSType)
	}
	wanted := maps.Clone(req.Parameters)
	maps.Copy(wanted, req.Mutable)
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if reason := s.differs(v, key, wanted[key]); reason != "" {
			return reason
		}
	}
	return ""
}

func (s *Server) differs(v volume.Volume, key, wanted string) string {
	now, known := v.Attributes[key]
	switch {
	case !slices.Contains(s.backend.Parameters, key) && !known:
		return fmt.Sprintf("parameter %q is not known", key)
	case known && now != wanted:
		return fmt.Sprintf("parameter %s of the volume is %q, not %q", key, now, wanted)
	}
	return ""
}
