package service

import (
	"context"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// GetIdentity tells name and version.
func (s *Server) GetIdentity(context.Context, *identity.GetIdentityRequest) (*identity.GetIdentityResponse, error) {
	return &identity.GetIdentityResponse{Name: s.config.Name, VendorVersion: s.config.Version}, nil
}

// GetCapabilities tells what this process serves, as the table of the
// specification has it for controllers and nodes.
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

// Probe answers whether the process serves. A fence that does not hold, or a
// peer that is away, shows in /readyz and the metrics: a restart, which is what
// a failed probe leads to, would mend neither.
func (s *Server) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func serviceCapability(t identity.Capability_Service_Type) *identity.Capability {
	return &identity.Capability{Type: &identity.Capability_Service_{Service: &identity.Capability_Service{Type: t}}}
}

func fenceCapability(t identity.Capability_NetworkFence_Type) *identity.Capability {
	return &identity.Capability{Type: &identity.Capability_NetworkFence_{NetworkFence: &identity.Capability_NetworkFence{Type: t}}}
}
