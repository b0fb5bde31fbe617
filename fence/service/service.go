// Package service serves CSI-Addons: Identity and FenceController, as the
// specification's texts say them. What a call means is done by package enforce.
package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/volume"
)

// Enforcer carries out what is asked; see package enforce.
type Enforcer interface {
	Fence(ctx context.Context, ask plan.Ask) error
	Unfence(ctx context.Context, ask plan.Ask) error
	List(ctx context.Context, owner *volume.FenceOwner) ([]netip.Prefix, error)
	Ending(ctx context.Context) ([]volume.Session, error)
}

// Offer says which calls a process serves.
type Offer struct {
	// Fence: it reaches every enforcer, so it fences, unfences and lists.
	Fence bool
	// Clients: it is on a node, and tells who that is to the storage.
	Clients bool
	// Why says, where Fence is not offered, what to change.
	Why string
}

// Config says what a Server serves.
type Config struct {
	Name, Version string // GetIdentity
	Offer         Offer
	Enforcer      Enforcer // with Offer.Fence
	// Client returns who this node is to the storage, with Offer.Clients.
	Client func(ctx context.Context) (volume.Client, error)
	// Authenticate checks the secrets of a call; nil: none are wanted.
	Authenticate func(secrets map[string]string) error
}

// Server is both services. Its errors are kinds of package volume.
type Server struct {
	identity.UnimplementedIdentityServer
	fence.UnimplementedFenceControllerServer
	config Config
}

// New makes a Server.
func New(c Config) (*Server, error) {
	switch {
	case c.Name == "":
		return nil, errors.New("the server of fences needs a name for GetIdentity")
	case c.Offer.Fence && c.Enforcer == nil, c.Offer.Clients && c.Client == nil:
		return nil, errors.New("the server of fences offers what it does not have")
	}
	return &Server{config: c}, nil
}

// Register adds both services to a server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	identity.RegisterIdentityServer(r, s)
	fence.RegisterFenceControllerServer(r, s)
}

func (s *Server) requireFence(call string) error {
	if s.config.Offer.Fence {
		return nil
	}
	return errs.Errorf(errs.Unsupported, "%s is not served here: %s", call, s.config.Offer.Why)
}

func (s *Server) authenticate(secrets map[string]string) error {
	if s.config.Authenticate == nil {
		return nil
	}
	return s.config.Authenticate(secrets)
}

// FenceClusterNetwork cuts blocks of addresses off from the storage.
func (s *Server) FenceClusterNetwork(ctx context.Context, r *fence.FenceClusterNetworkRequest) (*fence.FenceClusterNetworkResponse, error) {
	if err := s.requireFence("FenceClusterNetwork"); err != nil {
		return nil, err
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	ask, err := request.Fence(r)
	if err != nil {
		return nil, err
	}
	if err := s.config.Enforcer.Fence(ctx, ask); err != nil {
		return nil, err
	}
	return &fence.FenceClusterNetworkResponse{}, nil
}

// UnfenceClusterNetwork lets blocks in again that the same parameters fenced.
func (s *Server) UnfenceClusterNetwork(ctx context.Context, r *fence.UnfenceClusterNetworkRequest) (*fence.UnfenceClusterNetworkResponse, error) {
	if err := s.requireFence("UnfenceClusterNetwork"); err != nil {
		return nil, err
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	ask, err := request.Unfence(r)
	if err != nil {
		return nil, err
	}
	if err := s.config.Enforcer.Unfence(ctx, ask); err != nil {
		return nil, err
	}
	return &fence.UnfenceClusterNetworkResponse{}, nil
}

// ListClusterFence lists what is fenced and holds now: what these parameters
// fenced, or everything when there are none.
func (s *Server) ListClusterFence(ctx context.Context, r *fence.ListClusterFenceRequest) (*fence.ListClusterFenceResponse, error) {
	if err := s.requireFence("ListClusterFence"); err != nil {
		return nil, err
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	owner, err := request.List(r)
	if err != nil {
		return nil, err
	}
	blocks, err := s.config.Enforcer.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	if err := s.sendEnding(ctx); err != nil {
		return nil, err
	}
	return &fence.ListClusterFenceResponse{Cidrs: cidrs(blocks)}, nil
}

// sendEnding puts the sessions that fences wait for into the header of the
// answer, as the contract has no field for them: cleat fence list shows them.
func (s *Server) sendEnding(ctx context.Context) error {
	const most = 20 // a client takes 16 KiB of headers
	sessions, err := s.config.Enforcer.Ending(ctx)
	if err != nil || len(sessions) == 0 {
		return err
	}
	header := metadata.MD{}
	for _, one := range sessions[:min(len(sessions), most)] {
		header.Append(request.EndingHeader, fmt.Sprintf("a session from %s to %s has not ended: open in %s", one.Client, one.Server, one.Holder))
	}
	return grpc.SetHeader(ctx, header)
}

// GetFenceClients tells who this node is to the storage.
func (s *Server) GetFenceClients(ctx context.Context, r *fence.GetFenceClientsRequest) (*fence.GetFenceClientsResponse, error) {
	if !s.config.Offer.Clients {
		return nil, errs.Errorf(errs.Unsupported, "GetFenceClients is not served here: only a process with the node service knows a client")
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	if err := request.Clients(r); err != nil {
		return nil, err
	}
	c, err := s.config.Client(ctx)
	if err != nil {
		return nil, err
	}
	if c.Node == "" || len(c.Addrs) == 0 {
		return nil, errs.Errorf(errs.Precondition, "node %q has no address by which the storage could know it; name one with --node-address", c.Node)
	}
	blocks := make([]netip.Prefix, len(c.Addrs))
	for i, a := range c.Addrs {
		blocks[i] = netip.PrefixFrom(a, a.BitLen())
	}
	return &fence.GetFenceClientsResponse{Clients: []*fence.ClientDetails{{Id: c.Node, Addresses: cidrs(blocks)}}}, nil
}

func cidrs(blocks []netip.Prefix) []*fence.CIDR {
	out := make([]*fence.CIDR, len(blocks))
	for i, b := range blocks {
		out[i] = &fence.CIDR{Cidr: b.String()}
	}
	return out
}
