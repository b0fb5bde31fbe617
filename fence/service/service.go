// Package service implements CSI-Addons' Identity and FenceController, and
// cleat's own Coverage; package enforce executes the calls.
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

	fencev1 "github.com/cleatproject/cleat/api/fence/v1"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/volume"
)

// Enforcer executes fence requests (package enforce).
type Enforcer interface {
	Fence(ctx context.Context, req plan.Request) error
	Unfence(ctx context.Context, req plan.Request) error
	List(ctx context.Context, owner *volume.FenceOwner) ([]netip.Prefix, error)
	Ending(ctx context.Context) ([]volume.Session, error)
	Unseen(ctx context.Context) ([]string, error)
	Coverage(ctx context.Context, blocks []netip.Prefix, onlyLocal bool) ([]volume.Coverage, error)
	RecordedClients(ctx context.Context) ([]volume.RecordedClient, error)
	Recorded(ctx context.Context, owner volume.FenceOwner) ([]netip.Prefix, error)
}

// Offer is what a process serves.
type Offer struct {
	// Fence, unfence and list: the process reaches every enforcer.
	Fence bool
	// The process is on a node, whose addresses it reports.
	Clients bool
	// Without Fence: how to enable it.
	Why string
}

// Config configures a Server.
type Config struct {
	Name, Version string
	Offer         Offer
	Enforcer      Enforcer // for Offer.Fence
	// The node's identity, for Offer.Clients.
	Client func(ctx context.Context) (volume.Client, error)
	// Checks a call's secrets; nil accepts all.
	Authenticate func(secrets map[string]string) error
}

// Server implements them, and cleat's own service Coverage, with errors of package errs.
type Server struct {
	identity.UnimplementedIdentityServer
	fence.UnimplementedFenceControllerServer
	fencev1.UnimplementedCoverageServer
	config Config
}

func New(c Config) (*Server, error) {
	switch {
	case c.Name == "":
		return nil, errors.New("fence service: Name is required")
	case c.Offer.Fence && c.Enforcer == nil, c.Offer.Clients && c.Client == nil:
		return nil, errors.New("fence service: Offer.Fence needs an Enforcer, Offer.Clients needs a Client")
	}
	return &Server{config: c}, nil
}

// Register adds all services.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	fencev1.RegisterCoverageServer(r, s)
	identity.RegisterIdentityServer(r, s)
	fence.RegisterFenceControllerServer(r, s)
}

func (s *Server) requireFence(call string) error {
	if s.config.Offer.Fence {
		return nil
	}
	return errs.Errorf(errs.Unsupported, "this process does not serve %s: %s", call, s.config.Offer.Why)
}

func (s *Server) authenticate(secrets map[string]string) error {
	if s.config.Authenticate == nil {
		return nil
	}
	return s.config.Authenticate(secrets)
}

// FenceClusterNetwork fences blocks.
func (s *Server) FenceClusterNetwork(ctx context.Context, r *fence.FenceClusterNetworkRequest) (*fence.FenceClusterNetworkResponse, error) {
	if err := s.requireFence("FenceClusterNetwork"); err != nil {
		return nil, err
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	req, err := request.Fence(r)
	if err != nil {
		return nil, err
	}
	if err := s.config.Enforcer.Fence(ctx, req); err != nil {
		return nil, err
	}
	return &fence.FenceClusterNetworkResponse{}, nil
}

// UnfenceClusterNetwork unfences blocks of the same parameters.
func (s *Server) UnfenceClusterNetwork(ctx context.Context, r *fence.UnfenceClusterNetworkRequest) (*fence.UnfenceClusterNetworkResponse, error) {
	if err := s.requireFence("UnfenceClusterNetwork"); err != nil {
		return nil, err
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	req, err := request.Unfence(r)
	if err != nil {
		return nil, err
	}
	if err := s.config.Enforcer.Unfence(ctx, req); err != nil {
		return nil, err
	}
	return &fence.UnfenceClusterNetworkResponse{}, nil
}

// ListClusterFence lists the blocks in force: of these parameters, or all
// without any.
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
	if err := s.sendWaiting(ctx); err != nil {
		return nil, err
	}
	return &fence.ListClusterFenceResponse{Cidrs: cidrs(blocks)}, nil
}

// GetCoverage reports what a fence covers, without a change.
func (s *Server) GetCoverage(ctx context.Context, r *fencev1.GetCoverageRequest) (*fencev1.GetCoverageResponse, error) {
	if err := s.requireFence("GetCoverage"); err != nil {
		return nil, err
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	blocks, err := request.CoverageBlocks(r)
	if err != nil {
		return nil, err
	}
	all, err := s.config.Enforcer.Coverage(ctx, blocks, r.GetLocal())
	if err != nil {
		return nil, err
	}
	return request.CoverageResponse(all), nil
}

// ListRecordedClients returns the clients recorded when they were granted volumes.
func (s *Server) ListRecordedClients(ctx context.Context, r *fencev1.ListRecordedClientsRequest) (*fencev1.ListRecordedClientsResponse, error) {
	if err := s.requireFence("ListRecordedClients"); err != nil {
		return nil, err
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	all, err := s.config.Enforcer.RecordedClients(ctx)
	if err != nil {
		return nil, err
	}
	return request.RecordedClientsResponse(all), nil
}

// ListRecordedFences lists the blocks of these parameters in every phase.
func (s *Server) ListRecordedFences(ctx context.Context, r *fencev1.ListRecordedFencesRequest) (*fencev1.ListRecordedFencesResponse, error) {
	if err := s.requireFence("ListRecordedFences"); err != nil {
		return nil, err
	}
	if err := s.authenticate(r.GetSecrets()); err != nil {
		return nil, err
	}
	owner, err := request.List(&fence.ListClusterFenceRequest{Parameters: r.GetParameters()})
	if err != nil {
		return nil, err
	}
	if owner == nil {
		return nil, errs.Errorf(errs.Invalid, "parameters is empty: specify those of the owner whose fences are listed")
	}
	blocks, err := s.config.Enforcer.Recorded(ctx, *owner)
	if err != nil {
		return nil, err
	}
	out := &fencev1.ListRecordedFencesResponse{}
	for _, b := range blocks {
		out.Cidrs = append(out.Cidrs, b.String())
	}
	return out, nil
}

// sendWaiting uses the response header, as the contract has no field; for "cleat
// fence list".
func (s *Server) sendWaiting(ctx context.Context) error {
	const most = 20 // gRPC clients accept 16 KiB
	sessions, err := s.config.Enforcer.Ending(ctx)
	if err != nil {
		return err
	}
	unseen, err := s.config.Enforcer.Unseen(ctx)
	if err != nil || len(sessions)+len(unseen) == 0 {
		return err
	}
	header := metadata.MD{}
	header.Append(request.UnseenHeader, unseen[:min(len(unseen), most)]...)
	for _, one := range sessions[:min(len(sessions), most)] {
		header.Append(request.EndingHeader, fmt.Sprintf("a session from %s to %s has not ended: open in %s", one.Client, one.Server, one.Holder))
	}
	return grpc.SetHeader(ctx, header)
}

// GetFenceClients returns the node's identity.
func (s *Server) GetFenceClients(ctx context.Context, r *fence.GetFenceClientsRequest) (*fence.GetFenceClientsResponse, error) {
	if !s.config.Offer.Clients {
		return nil, errs.Errorf(errs.Unsupported, "this process does not serve GetFenceClients: only a process with the node service does")
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
		return nil, errs.Errorf(errs.Precondition, "node %q has no known storage address; set one with --node-address", c.Node)
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
