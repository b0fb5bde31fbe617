package node

import (
	"context"
	"maps"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
)

// NodeGetCapabilities tells which calls are served.
func (s *Server) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	return &spec.NodeGetCapabilitiesResponse{Capabilities: s.config.Announced.NodeCapabilities()}, nil
}

// NodeGetInfo tells which node this is and where.
func (s *Server) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	r := &spec.NodeGetInfoResponse{NodeId: s.config.NodeID, MaxVolumesPerNode: s.config.MaxVolumes}
	if segments := s.config.Announced.Segments; len(segments) > 0 {
		r.AccessibleTopology = &spec.Topology{Segments: maps.Clone(segments)}
	}
	return r, nil
}
