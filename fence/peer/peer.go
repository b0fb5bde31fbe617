// Package peer forwards fences to other servers over the CSI-Addons contract,
// without the caller's parameters and secrets.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/volume"
)

// Config configures a Peer.
type Config struct {
	// For messages and metrics.
	Name string
	// The forwarding driver's name. With the owner's digest it is the owner at
	// the peer, so different drivers do not collide.
	Via    string
	Target client.Target
}

// Peer is another server, safe for concurrent use. Invalid and Precondition are
// refusals; other errors are Unavailable: a retry can succeed.
type Peer struct {
	name, via string
	client    *client.Client
}

// Parse parses NAME=ENDPOINT, such as storage-b=192.0.2.7:9070. The error is
// errs.Invalid.
func Parse(text string) (name, endpoint string, err error) {
	name, endpoint, found := strings.Cut(text, "=")
	if !found || endpoint == "" {
		return "", "", errs.Errorf(errs.Invalid, "invalid peer %q: write NAME=HOST:PORT, such as storage-b=192.0.2.7:9070", text)
	}
	return name, endpoint, checkName(name)
}

func checkName(name string) error {
	if len(name) <= 63 && regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`).MatchString(name) {
		return nil
	}
	return errs.Errorf(errs.Invalid, "invalid peer name %q: use 1 to 63 letters, digits, dots, dashes and underscores, with a letter or digit at both ends", name)
}

// Open prepares a connection; the peer can be down. The error is errs.Invalid,
// also for certificates.
func Open(c Config) (*Peer, error) {
	if err := checkName(c.Name); err != nil {
		return nil, err
	}
	if c.Via == "" {
		return nil, errs.Errorf(errs.Invalid, "peer %s: Via, the name of the forwarding driver, is required", c.Name)
	}
	if err := c.Target.Check(); err != nil {
		return nil, fmt.Errorf("peer %s: %w", c.Name, err)
	}
	conn, err := client.Open(c.Target)
	if err != nil {
		return nil, fmt.Errorf("peer %s: %w", c.Name, err)
	}
	return &Peer{name: c.Name, via: c.Via, client: conn}, nil
}

// Name returns the configured name.
func (p *Peer) Name() string { return p.name }

// Endpoint returns the peer's endpoint.
func (p *Peer) Endpoint() string { return p.client.Endpoint() }

// Close closes the connection.
func (p *Peer) Close() error { return p.client.Close() }

// Ready returns nil if the peer answers, is ready and announces NETWORK_FENCE.
func (p *Peer) Ready(ctx context.Context) error {
	ready, err := p.client.Probe(ctx)
	if err != nil {
		return retryable(err)
	}
	if !ready {
		return errs.Errorf(errs.Unavailable, "%s is not ready yet", p.Endpoint())
	}
	c, err := p.client.Capabilities(ctx)
	if err != nil {
		return retryable(err)
	}
	if !c.Fence {
		return errs.Errorf(errs.Unavailable, "%s does not announce the capability NETWORK_FENCE, only %q", p.Endpoint(), c.All)
	}
	return nil
}

// Fence fences a request's blocks.
func (p *Peer) Fence(ctx context.Context, req plan.Request) error {
	return retryable(p.client.Fence(ctx, p.request(req), req.Blocks))
}

// Unfence unfences a request's blocks. Forcing would lift other owners' fences.
func (p *Peer) Unfence(ctx context.Context, req plan.Request) error {
	req.Force = false
	return retryable(p.client.Unfence(ctx, p.request(req), req.Blocks))
}

// List returns the peer's blocks of an owner, sorted.
func (p *Peer) List(ctx context.Context, owner volume.FenceOwner) ([]netip.Prefix, error) {
	texts, err := p.client.List(ctx, p.request(plan.Request{Owner: owner}))
	if err != nil {
		return nil, retryable(err)
	}
	blocks := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		if blocks[i], err = request.Block(text); err != nil {
			return nil, errs.Errorf(errs.Unavailable, "%s returned an invalid block from ListClusterFence: %s", p.Endpoint(), err)
		}
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	return slices.Compact(blocks), nil
}

// Coverage returns what a fence of the blocks covers at the peer's own enforcers.
func (p *Peer) Coverage(ctx context.Context, blocks []netip.Prefix) ([]volume.Coverage, error) {
	all, err := p.client.Coverage(ctx, client.Request{}, blocks, true)
	return all, retryable(err)
}

// request has parameters that identify the caller without its values.
func (p *Peer) request(req plan.Request) client.Request {
	parameters := map[string]string{request.ViaParameter: p.via, request.OwnerParameter: req.Owner.Digest}
	if req.Force {
		parameters[request.ForceParameter] = "true"
	}
	if req.Restarted {
		parameters[request.RestartedParameter] = "true"
	}
	return client.Request{Parameters: parameters}
}

// retryable keeps refusals; others become Unavailable, as the fence is
// incomplete.
func retryable(err error) error {
	if err == nil {
		return nil
	}
	if _, answered := errors.AsType[*client.Error](err); answered {
		if kind := errs.KindOf(err); kind == errs.Invalid || kind == errs.Precondition {
			return err
		}
	}
	return errs.Errorf(errs.Unavailable, "%w", err)
}
