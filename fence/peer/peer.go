// Package peer passes fences on to other servers that enforce them too, over
// the contract that they were asked by: one more storage server behind the
// same driver is one more peer. What the caller sent besides the blocks, its
// parameters and secrets, stays here.
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

// Config says who the peer is.
type Config struct {
	// Name is what people call it, in messages and figures.
	Name string
	// Via is the name of the driver that passes the fences on. With the
	// digest of who asked it there it is who asks the peer: another driver's
	// fences are another owner's.
	Via    string
	Target client.Target
}

// Peer is another server. It may be used by several goroutines. Errors of kind
// Invalid and Precondition say that it refuses; all others are Unavailable: it
// may do it later.
type Peer struct {
	name, via string
	client    *client.Client
}

// Parse reads NAME=ENDPOINT, as storage-b=192.0.2.7:9070. Errors:
// errs.Invalid.
func Parse(text string) (name, endpoint string, err error) {
	name, endpoint, found := strings.Cut(text, "=")
	if !found || endpoint == "" {
		return "", "", errs.Errorf(errs.Invalid, "%q names no peer: write NAME=HOST:PORT, as storage-b=192.0.2.7:9070", text)
	}
	return name, endpoint, checkName(name)
}

func checkName(name string) error {
	if len(name) <= 63 && regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`).MatchString(name) {
		return nil
	}
	return errs.Errorf(errs.Invalid, "%q is no name for a peer: it has 1 to 63 letters, digits, dots, dashes and underscores, and begins and ends with a letter or digit", name)
}

// Open prepares a peer. It need not be there yet. Errors: errs.Invalid, also
// for certificates that are not in order.
func Open(c Config) (*Peer, error) {
	if err := checkName(c.Name); err != nil {
		return nil, err
	}
	if c.Via == "" {
		return nil, errs.Errorf(errs.Invalid, "peer %s: the driver that passes fences on has no name", c.Name)
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

// Name is what people call it.
func (p *Peer) Name() string { return p.name }

// Endpoint is where it is asked.
func (p *Peer) Endpoint() string { return p.client.Endpoint() }

// Close ends the connection.
func (p *Peer) Close() error { return p.client.Close() }

// Ready returns nil when the peer answers, says that it is ready and announces
// that it fences.
func (p *Peer) Ready(ctx context.Context) error {
	ready, err := p.client.Probe(ctx)
	if err != nil {
		return later(err)
	}
	if !ready {
		return errs.Errorf(errs.Unavailable, "%s says that it is not ready yet", p.Endpoint())
	}
	c, err := p.client.Capabilities(ctx)
	if err != nil {
		return later(err)
	}
	if !c.Fence {
		return errs.Errorf(errs.Unavailable, "%s does not announce NETWORK_FENCE, only %q", p.Endpoint(), c.All)
	}
	return nil
}

// Fence has the peer cut an ask's blocks off. nil: they are.
func (p *Peer) Fence(ctx context.Context, ask plan.Ask) error {
	return later(p.client.Fence(ctx, p.request(ask.Owner, ask.Force), ask.Blocks))
}

// Unfence has the peer let an ask's blocks in again. It never insists there: by
// force the peer would also lift what others have fenced through it.
func (p *Peer) Unfence(ctx context.Context, ask plan.Ask) error {
	return later(p.client.Unfence(ctx, p.request(ask.Owner, false), ask.Blocks))
}

// List returns what the peer holds for an owner, sorted.
func (p *Peer) List(ctx context.Context, owner volume.FenceOwner) ([]netip.Prefix, error) {
	texts, err := p.client.List(ctx, p.request(owner, false))
	if err != nil {
		return nil, later(err)
	}
	blocks := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		if blocks[i], err = request.Block(text); err != nil {
			return nil, errs.Errorf(errs.Unavailable, "%s answered ListClusterFence with what cannot be relied on: %s", p.Endpoint(), err)
		}
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	return slices.Compact(blocks), nil
}

// request is what goes to the peer in place of what the caller sent: the same
// for the same caller, and nothing of its values.
func (p *Peer) request(owner volume.FenceOwner, force bool) client.Request {
	parameters := map[string]string{request.ViaParameter: p.via, request.OwnerParameter: owner.Digest}
	if force {
		parameters[request.ForceParameter] = "true"
	}
	return client.Request{Parameters: parameters}
}

// later keeps the refusals of a peer and makes all else an error that a repeat
// may overcome: whatever is wrong with the peer now, the fence is not whole.
func later(err error) error {
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
