// Package client asks the fence service of CSI-Addons of any driver, on its
// socket or, with mutual TLS, over the network. It sends what it is given and
// returns what was answered; it decides nothing.
package client

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/cleatproject/cleat/fence/request"
)

// Client is a connection to a driver. It is made when it is needed and again
// when it was lost, so that a driver may come and go. It may be used by several
// goroutines.
type Client struct {
	target   Target
	conn     *grpc.ClientConn
	last     failure // of the connection
	identity identity.IdentityClient
	fences   fence.FenceControllerClient
}

// Request is what goes with every call of the fence service.
type Request struct {
	Parameters map[string]string
	// Secrets are not kept, and taken out of what the driver says.
	Secrets map[string]string
}

// Identity is who a driver is.
type Identity struct {
	Name     string            `json:"name"`
	Version  string            `json:"version,omitempty"`
	Manifest map[string]string `json:"manifest,omitempty"`
}

// Capabilities are what a driver announces.
type Capabilities struct {
	Controller bool `json:"controller"` // it serves what a controller does
	Node       bool `json:"node"`
	Fence      bool `json:"fence"`   // FenceClusterNetwork and its neighbours
	Clients    bool `json:"clients"` // GetFenceClients
	// All of them as the contract calls them, as Service/CONTROLLER_SERVICE.
	All []string `json:"all"`
}

// FenceClient is a client of the storage, as a driver knows it.
type FenceClient struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"` // CIDRs as the driver writes them
}

// Open prepares a connection. It does not wait for the driver; errors are of
// kind errs.Invalid and tell what is wrong with the target.
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
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Endpoint is where the driver is asked.
func (c *Client) Endpoint() string { return c.target.Endpoint }

// Identity asks the driver who it is.
func (c *Client) Identity(ctx context.Context) (Identity, error) {
	a, err := call(ctx, c, "GetIdentity", c.identity.GetIdentity, &identity.GetIdentityRequest{}, nil)
	return Identity{a.GetName(), a.GetVendorVersion(), a.GetManifest()}, err
}

// Capabilities asks the driver what it offers.
func (c *Client) Capabilities(ctx context.Context) (Capabilities, error) {
	a, err := call(ctx, c, "GetCapabilities", c.identity.GetCapabilities, &identity.GetCapabilitiesRequest{}, nil)
	if err != nil {
		return Capabilities{}, err
	}
	return capabilities(a.GetCapabilities()), nil
}

// Probe asks the driver whether it is ready.
func (c *Client) Probe(ctx context.Context) (ready bool, err error) {
	a, err := call(ctx, c, "Probe", c.identity.Probe, &identity.ProbeRequest{}, nil)
	return err == nil && (a.GetReady() == nil || a.GetReady().GetValue()), err
}

// Fence asks the driver to cut blocks of addresses off. nil is its word that
// they are.
func (c *Client) Fence(ctx context.Context, r Request, blocks []netip.Prefix) error {
	_, err := call(ctx, c, "FenceClusterNetwork", c.fences.FenceClusterNetwork,
		&fence.FenceClusterNetworkRequest{Parameters: r.Parameters, Secrets: r.Secrets, Cidrs: cidrs(blocks)}, r.Secrets)
	return err
}

// Unfence asks the driver to let blocks in again.
func (c *Client) Unfence(ctx context.Context, r Request, blocks []netip.Prefix) error {
	_, err := call(ctx, c, "UnfenceClusterNetwork", c.fences.UnfenceClusterNetwork,
		&fence.UnfenceClusterNetworkRequest{Parameters: r.Parameters, Secrets: r.Secrets, Cidrs: cidrs(blocks)}, r.Secrets)
	return err
}

// List asks the driver what is fenced: CIDRs as it writes them.
func (c *Client) List(ctx context.Context, r Request) ([]string, error) {
	blocks, _, err := c.ListAll(ctx, r)
	return blocks, err
}

// ListAll is List, and the sessions of fenced clients that have not ended, as
// cleat's own service reports them. Fences wait for those.
func (c *Client) ListAll(ctx context.Context, r Request) (blocks, ending []string, err error) {
	var header metadata.MD
	list := func(ctx context.Context, q *fence.ListClusterFenceRequest, o ...grpc.CallOption) (*fence.ListClusterFenceResponse, error) {
		return c.fences.ListClusterFence(ctx, q, append(o, grpc.Header(&header))...)
	}
	a, err := call(ctx, c, "ListClusterFence", list, &fence.ListClusterFenceRequest{Parameters: r.Parameters, Secrets: r.Secrets}, r.Secrets)
	return texts(a.GetCidrs()), header.Get(request.EndingHeader), err
}

// Clients asks the driver which clients of the storage it knows: a node's
// driver knows its own node.
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
