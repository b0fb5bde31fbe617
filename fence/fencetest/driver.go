package fencetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	fencev1 "github.com/cleatproject/cleat/api/fence/v1"
)

// Driver is an independent in-memory implementation of the CSI-Addons fence
// service, with its own owners and codes.
type Driver struct {
	identity.UnimplementedIdentityServer
	fence.UnimplementedFenceControllerServer

	mu     sync.Mutex
	fenced map[string]string // owner by CIDR
	calls  []Call
	before func(context.Context, Call) error
	listed []string // overrides ListClusterFence
	// Responses of the other calls; set before Serve.
	NotReady     bool
	Capabilities []*identity.Capability
	Clients      []*fence.ClientDetails
	// Nil: no service Coverage, as drivers of others.
	Coverage *fencev1.GetCoverageResponse
}

// coverage is a Driver's service Coverage.
type coverage struct {
	fencev1.UnimplementedCoverageServer
	*Driver
}

func (c coverage) GetCoverage(ctx context.Context, r *fencev1.GetCoverageRequest) (*fencev1.GetCoverageResponse, error) {
	var cidrs []*fence.CIDR
	for _, text := range r.GetCidrs() {
		cidrs = append(cidrs, &fence.CIDR{Cidr: text})
	}
	return c.Coverage, c.begin(ctx, "GetCoverage", nil, r.GetSecrets(), cidrs)
}

// Call is a received call.
type Call struct {
	Method              string
	Parameters, Secrets map[string]string
	CIDRs               []string
}

// NewDriver returns a driver that announces NETWORK_FENCE.
func NewDriver() *Driver {
	return &Driver{fenced: map[string]string{}, Capabilities: []*identity.Capability{
		ServiceCapability(identity.Capability_Service_CONTROLLER_SERVICE),
		FenceCapability(identity.Capability_NetworkFence_NETWORK_FENCE),
	}}
}

func ServiceCapability(kind identity.Capability_Service_Type) *identity.Capability {
	return &identity.Capability{Type: &identity.Capability_Service_{Service: &identity.Capability_Service{Type: kind}}}
}

func FenceCapability(kind identity.Capability_NetworkFence_Type) *identity.Capability {
	return &identity.Capability{Type: &identity.Capability_NetworkFence_{NetworkFence: &identity.Capability_NetworkFence{Type: kind}}}
}

// Serve serves until the test ends or stop is called.
func (d *Driver) Serve(t testing.TB, l net.Listener) (stop func()) {
	t.Helper()
	s := grpc.NewServer()
	identity.RegisterIdentityServer(s, d)
	fence.RegisterFenceControllerServer(s, d)
	if d.Coverage != nil {
		fencev1.RegisterCoverageServer(s, coverage{Driver: d})
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		s.Stop()
		serving.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// Before sets a function that runs first in each call, and can fail it.
func (d *Driver) Before(f func(context.Context, Call) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = f
}

// Answer sets the response of ListClusterFence.
func (d *Driver) Answer(cidrs ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listed = cidrs
}

// Calls returns the received calls of methods.
func (d *Driver) Calls(methods ...string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var found []Call
	for _, c := range d.calls {
		if slices.Contains(methods, c.Method) {
			found = append(found, c)
		}
	}
	return found
}

// Fenced returns all fenced CIDRs, sorted.
func (d *Driver) Fenced() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.fenced))
}

func (d *Driver) begin(ctx context.Context, method string, parameters, secrets map[string]string, cidrs []*fence.CIDR) error {
	c := Call{Method: method, Parameters: parameters, Secrets: secrets}
	for _, one := range cidrs {
		c.CIDRs = append(c.CIDRs, one.GetCidr())
	}
	d.mu.Lock()
	d.calls = append(d.calls, c)
	before := d.before
	d.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, c)
}

// owner ignores the force parameter.
func owner(parameters map[string]string) string {
	p := maps.Clone(parameters)
	delete(p, "fence.cleat.dev/force")
	return fmt.Sprint(p)
}

func check(cidrs []*fence.CIDR) error {
	if len(cidrs) == 0 {
		return status.Error(codes.InvalidArgument, "no CIDRs")
	}
	for _, c := range cidrs {
		if p, err := netip.ParsePrefix(c.GetCidr()); err != nil || p.Masked() != p {
			return status.Errorf(codes.InvalidArgument, "malformed CIDR %q", c.GetCidr())
		}
	}
	return nil
}

// FenceClusterNetwork is part of the contract.
func (d *Driver) FenceClusterNetwork(ctx context.Context, r *fence.FenceClusterNetworkRequest) (*fence.FenceClusterNetworkResponse, error) {
	if err := d.begin(ctx, "FenceClusterNetwork", r.GetParameters(), r.GetSecrets(), r.GetCidrs()); err != nil {
		return nil, err
	}
	if err := check(r.GetCidrs()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range r.GetCidrs() {
		d.fenced[c.GetCidr()] = owner(r.GetParameters())
	}
	return &fence.FenceClusterNetworkResponse{}, nil
}

// UnfenceClusterNetwork is part of the contract.
func (d *Driver) UnfenceClusterNetwork(ctx context.Context, r *fence.UnfenceClusterNetworkRequest) (*fence.UnfenceClusterNetworkResponse, error) {
	if err := d.begin(ctx, "UnfenceClusterNetwork", r.GetParameters(), r.GetSecrets(), r.GetCidrs()); err != nil {
		return nil, err
	}
	if err := check(r.GetCidrs()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range r.GetCidrs() {
		if by, found := d.fenced[c.GetCidr()]; found && by != owner(r.GetParameters()) {
			return nil, status.Errorf(codes.FailedPrecondition, "%s was fenced by another owner", c.GetCidr())
		}
	}
	for _, c := range r.GetCidrs() {
		delete(d.fenced, c.GetCidr())
	}
	return &fence.UnfenceClusterNetworkResponse{}, nil
}

// ListClusterFence is part of the contract.
func (d *Driver) ListClusterFence(ctx context.Context, r *fence.ListClusterFenceRequest) (*fence.ListClusterFenceResponse, error) {
	if err := d.begin(ctx, "ListClusterFence", r.GetParameters(), r.GetSecrets(), nil); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	answer := &fence.ListClusterFenceResponse{}
	for _, cidr := range d.listed {
		answer.Cidrs = append(answer.Cidrs, &fence.CIDR{Cidr: cidr})
	}
	if d.listed != nil {
		return answer, nil
	}
	for cidr, by := range d.fenced {
		if len(r.GetParameters()) == 0 || by == owner(r.GetParameters()) {
			answer.Cidrs = append(answer.Cidrs, &fence.CIDR{Cidr: cidr})
		}
	}
	return answer, nil
}

// GetFenceClients is part of the contract.
func (d *Driver) GetFenceClients(ctx context.Context, r *fence.GetFenceClientsRequest) (*fence.GetFenceClientsResponse, error) {
	if err := d.begin(ctx, "GetFenceClients", r.GetParameters(), r.GetSecrets(), nil); err != nil {
		return nil, err
	}
	if d.Clients == nil {
		return nil, status.Error(codes.Unimplemented, "method GetFenceClients not implemented")
	}
	return &fence.GetFenceClientsResponse{Clients: d.Clients}, nil
}

// GetIdentity is part of the contract.
func (d *Driver) GetIdentity(ctx context.Context, _ *identity.GetIdentityRequest) (*identity.GetIdentityResponse, error) {
	if err := d.begin(ctx, "GetIdentity", nil, nil, nil); err != nil {
		return nil, err
	}
	return &identity.GetIdentityResponse{Name: "fence.example.com", VendorVersion: "1.2", Manifest: map[string]string{"commit": "abc"}}, nil
}

// GetCapabilities is part of the contract.
func (d *Driver) GetCapabilities(ctx context.Context, _ *identity.GetCapabilitiesRequest) (*identity.GetCapabilitiesResponse, error) {
	if err := d.begin(ctx, "GetCapabilities", nil, nil, nil); err != nil {
		return nil, err
	}
	return &identity.GetCapabilitiesResponse{Capabilities: d.Capabilities}, nil
}

// Probe is part of the contract.
func (d *Driver) Probe(ctx context.Context, _ *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	if err := d.begin(ctx, "Probe", nil, nil, nil); err != nil {
		return nil, err
	}
	if d.NotReady {
		return &identity.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	}
	return &identity.ProbeResponse{}, nil
}
