// Package client calls any driver's CSI-Addons fence service, on a UNIX socket
// or with mutual TLS, and returns the responses unchanged.
package client

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	fencev1 "github.com/cleatproject/cleat/api/fence/v1"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/volume"
)

// Client is a connection to a driver, safe for concurrent use. It connects on
// demand and reconnects, so a driver can restart.
type Client struct {
	target   Target
	conn     *grpc.ClientConn
	last     failure // of connecting
	identity identity.IdentityClient
	fences   fence.FenceControllerClient
	coverage fencev1.CoverageClient
}

// Request has a call's parameters and secrets.
type Request struct {
	Parameters map[string]string
	// Secrets are removed from the driver's messages.
	Secrets map[string]string
}

// Identity is a driver's identity.
type Identity struct {
	Name     string            `json:"name"`
	Version  string            `json:"version,omitempty"`
	Manifest map[string]string `json:"manifest,omitempty"`
}

// Capabilities are what a driver announces.
type Capabilities struct {
	Controller bool `json:"controller"`
	Node       bool `json:"node"`
	Fence      bool `json:"fence"` // fence, unfence, list
	Clients    bool `json:"clients"`
	// As in the contract: Service/CONTROLLER_SERVICE.
	All []string `json:"all"`
}

// FenceClient is a client of the storage.
type FenceClient struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"` // CIDRs, as the driver writes them
}

// Open prepares a connection without waiting for the driver. The error is
// errs.Invalid.
func Open(target Target) (*Client, error) {
	target, dial, err := target.resolve()
	if err != nil {
		return nil, err
	}
	c := &Client{target: target}
	if c.conn, err = c.connect(dial); err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", target.Endpoint, err)
	}
	c.identity, c.fences = identity.NewIdentityClient(c.conn), fence.NewFenceControllerClient(c.conn)
	c.coverage = fencev1.NewCoverageClient(c.conn)
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Endpoint returns the driver's endpoint.
func (c *Client) Endpoint() string { return c.target.Endpoint }

// Identity calls GetIdentity.
func (c *Client) Identity(ctx context.Context) (Identity, error) {
	a, err := call(ctx, c, "GetIdentity", c.identity.GetIdentity, &identity.GetIdentityRequest{}, nil)
	return Identity{a.GetName(), a.GetVendorVersion(), a.GetManifest()}, err
}

// Capabilities calls GetCapabilities.
func (c *Client) Capabilities(ctx context.Context) (Capabilities, error) {
	a, err := call(ctx, c, "GetCapabilities", c.identity.GetCapabilities, &identity.GetCapabilitiesRequest{}, nil)
	if err != nil {
		return Capabilities{}, err
	}
	return capabilities(a.GetCapabilities()), nil
}

// Probe reports whether the driver is ready.
func (c *Client) Probe(ctx context.Context) (ready bool, err error) {
	a, err := call(ctx, c, "Probe", c.identity.Probe, &identity.ProbeRequest{}, nil)
	return err == nil && (a.GetReady() == nil || a.GetReady().GetValue()), err
}

// Fence calls FenceClusterNetwork.
func (c *Client) Fence(ctx context.Context, r Request, blocks []netip.Prefix) error {
	_, err := call(ctx, c, "FenceClusterNetwork", c.fences.FenceClusterNetwork,
		&fence.FenceClusterNetworkRequest{Parameters: r.Parameters, Secrets: r.Secrets, Cidrs: cidrs(blocks)}, r.Secrets)
	return err
}

// Unfence calls UnfenceClusterNetwork.
func (c *Client) Unfence(ctx context.Context, r Request, blocks []netip.Prefix) error {
	_, err := call(ctx, c, "UnfenceClusterNetwork", c.fences.UnfenceClusterNetwork,
		&fence.UnfenceClusterNetworkRequest{Parameters: r.Parameters, Secrets: r.Secrets, Cidrs: cidrs(blocks)}, r.Secrets)
	return err
}

// List calls ListClusterFence; CIDRs are as the driver writes them.
func (c *Client) List(ctx context.Context, r Request) ([]string, error) {
	blocks, _, err := c.ListAll(ctx, r)
	return blocks, err
}

// Waiting is what delays fences and their end. Only cleat's service reports it.
type Waiting struct {
	Ending []string // sessions that fences wait for
	Unseen []string // clients to restart before they are unfenced
}

// ListAll is List with what delays fences.
func (c *Client) ListAll(ctx context.Context, r Request) (blocks []string, waiting Waiting, err error) {
	var header metadata.MD
	list := func(ctx context.Context, q *fence.ListClusterFenceRequest, o ...grpc.CallOption) (*fence.ListClusterFenceResponse, error) {
		return c.fences.ListClusterFence(ctx, q, append(o, grpc.Header(&header))...)
	}
	a, err := call(ctx, c, "ListClusterFence", list, &fence.ListClusterFenceRequest{Parameters: r.Parameters, Secrets: r.Secrets}, r.Secrets)
	return texts(a.GetCidrs()), Waiting{header.Get(request.EndingHeader), header.Get(request.UnseenHeader)}, err
}

// Coverage calls GetCoverage, which only cleat's service has (errs.Unsupported).
// It changes nothing; no blocks are all recorded fences.
func (c *Client) Coverage(ctx context.Context, r Request, blocks []netip.Prefix, onlyLocal bool) ([]volume.Coverage, error) {
	const largest = 64 << 20 // of clients with many sessions
	q := &fencev1.GetCoverageRequest{Secrets: r.Secrets, Local: onlyLocal}
	for _, b := range blocks {
		q.Cidrs = append(q.Cidrs, b.String())
	}
	rpc := func(ctx context.Context, q *fencev1.GetCoverageRequest, o ...grpc.CallOption) (*fencev1.GetCoverageResponse, error) {
		return c.coverage.GetCoverage(ctx, q, append(o, grpc.MaxCallRecvMsgSize(largest))...)
	}
	a, err := call(ctx, c, "GetCoverage", rpc, q, r.Secrets)
	return request.Coverage(a), err
}

// RecordedClients calls ListRecordedClients, which only cleat's service has
// (errs.Unsupported).
func (c *Client) RecordedClients(ctx context.Context, r Request) ([]volume.RecordedClient, error) {
	a, err := call(ctx, c, "ListRecordedClients", c.coverage.ListRecordedClients, &fencev1.ListRecordedClientsRequest{Secrets: r.Secrets}, r.Secrets)
	if err != nil {
		return nil, err
	}
	return request.RecordedClients(a)
}

// Recorded calls ListRecordedFences, which only cleat's service has
// (errs.Unsupported); CIDRs are as the service writes them.
func (c *Client) Recorded(ctx context.Context, r Request) ([]string, error) {
	a, err := call(ctx, c, "ListRecordedFences", c.coverage.ListRecordedFences, &fencev1.ListRecordedFencesRequest{Parameters: r.Parameters, Secrets: r.Secrets}, r.Secrets)
	return a.GetCidrs(), err
}

// Clients calls GetFenceClients, which returns a driver's own node.
func (c *Client) Clients(ctx context.Context, r Request) ([]FenceClient, error) {
	a, err := call(ctx, c, "GetFenceClients", c.fences.GetFenceClients,
		&fence.GetFenceClientsRequest{Parameters: r.Parameters, Secrets: r.Secrets}, r.Secrets)
	all := []FenceClient{}
	for _, found := range a.GetClients() {
		all = append(all, FenceClient{found.GetId(), texts(found.GetAddresses())})
	}
	return all, err
}

func capabilities(announced []*identity.Capability) Capabilities {
	c := Capabilities{All: []string{}}
	for _, one := range announced {
		switch one := one.GetType().(type) {
		case *identity.Capability_Service_:
			c.Controller = c.Controller || one.Service.GetType() == identity.Capability_Service_CONTROLLER_SERVICE
			c.Node = c.Node || one.Service.GetType() == identity.Capability_Service_NODE_SERVICE
			c.All = append(c.All, "Service/"+one.Service.GetType().String())
		case *identity.Capability_NetworkFence_:
			c.Fence = c.Fence || one.NetworkFence.GetType() == identity.Capability_NetworkFence_NETWORK_FENCE
			c.Clients = c.Clients || one.NetworkFence.GetType() == identity.Capability_NetworkFence_GET_CLIENTS_TO_FENCE
			c.All = append(c.All, "NetworkFence/"+one.NetworkFence.GetType().String())
		case *identity.Capability_ReclaimSpace_:
			c.All = append(c.All, "ReclaimSpace/"+one.ReclaimSpace.GetType().String())
		case *identity.Capability_VolumeReplication_:
			c.All = append(c.All, "VolumeReplication/"+one.VolumeReplication.GetType().String())
		case *identity.Capability_VolumeGroup_:
			c.All = append(c.All, "VolumeGroup/"+one.VolumeGroup.GetType().String())
		case *identity.Capability_EncryptionKeyRotation_:
			c.All = append(c.All, "EncryptionKeyRotation/"+one.EncryptionKeyRotation.GetType().String())
		default:
			c.All = append(c.All, "unknown")
		}
	}
	return c
}

func cidrs(blocks []netip.Prefix) []*fence.CIDR {
	out := make([]*fence.CIDR, len(blocks))
	for i, b := range blocks {
		out[i] = &fence.CIDR{Cidr: b.String()}
	}
	return out
}

func texts(cidrs []*fence.CIDR) []string {
	out := make([]string, len(cidrs))
	for i, c := range cidrs {
		out[i] = c.GetCidr()
	}
	return out
}
