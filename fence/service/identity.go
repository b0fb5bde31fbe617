package service

import (
	"context"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// GetIdentity returns name and version.
func (s *Server) GetIdentity(context.Context, *identity.GetIdentityRequest) (*identity.GetIdentityResponse, error) {
	return &identity.GetIdentityResponse{Name: s.config.Name, VendorVersion: s.config.Version}, nil
}

// GetCapabilities follows the specification's table for controllers and nodes.
func (s *Server) GetCapabilities(context.Context, *identity.GetCapabilitiesRequest) (*identity.GetCapabilitiesResponse, error) {
	out := &identity.GetCapabilitiesResponse{}
	if s.config.Offer.Fence {
		out.Capabilities = append(out.Capabilities,
			serviceCapability(identity.Capability_Service_CONTROLLER_SERVICE), fenceCapability(identity.Capability_NetworkFence_NETWORK_FENCE))
	}
	if s.config.Offer.Clients {
		out.Capabilities = append(out.Capabilities,
			serviceCapability(identity.Capability_Service_NODE_SERVICE), fenceCapability(identity.Capability_NetworkFence_GET_CLIENTS_TO_FENCE))
	}
	return out, nil
}

// Probe reports whether RPCs are served. Fences not in force and unreachable
// peers are for /readyz and metrics: a failed probe causes a restart, which
// would not repair them.
func (s *Server) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func serviceCapability(t identity.Capability_Service_Type) *identity.Capability {
	return &identity.Capability{Type: &identity.Capability_Service_{Service: &identity.Capability_Service{Type: t}}}
}

func fenceCapability(t identity.Capability_NetworkFence_Type) *identity.Capability {
	return &identity.Capability{Type: &identity.Capability_NetworkFence_{NetworkFence: &identity.Capability_NetworkFence{Type: t}}}
}
