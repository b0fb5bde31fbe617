package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/endpoint"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/takeover"
	"github.com/cleatproject/cleat/takeover/networkfence"
	"github.com/cleatproject/cleat/volume"
)

// remediationParameter makes each remediation an owner of fences of its own.
const remediationParameter = "takeover.cleat.dev/remediation"

// fenceBackend is a fence service of cleat as a backend of takeovers.
type fenceBackend struct {
	*client.Client
	host string // of the endpoint; empty for a UNIX socket
}

// openBackends connects on demand: a backend can be down.
func openBackends(kube dynamic.Interface, all []takeover.BackendConfig, tls mutualtls.Files) (backends map[string]takeover.Backend, closeAll func(context.Context) error, err error) {
	backends = map[string]takeover.Backend{}
	var opened []*client.Client
	closeAll = func(context.Context) error {
		var failed []error
		for _, c := range opened {
			failed = append(failed, c.Close())
		}
		return errors.Join(failed...)
	}
	for _, b := range all {
		if b.NetworkFenceClass != "" {
			backends[b.Name] = networkfence.Backend{Client: kube, Name: b.Name, Class: b.NetworkFenceClass}
			continue
		}
		target := client.Target{Endpoint: b.Endpoint}
		host := ""
		if !endpoint.IsUnix(b.Endpoint) {
			target.TLS = tls
			host, _, _ = net.SplitHostPort(b.Endpoint) // Open refuses what has no port
		}
		c, err := client.Open(target)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("backend %s: %w", b.Name, err), closeAll(context.Background()))
		}
		opened = append(opened, c)
		backends[b.Name] = fenceBackend{c, host}
	}
	return backends, closeAll, nil
}

func ownerRequest(owner string) client.Request {
	return client.Request{Parameters: map[string]string{remediationParameter: owner}}
}

// Fence implements takeover.Backend.
func (b fenceBackend) Fence(ctx context.Context, owner string, addresses []netip.Addr) error {
	return b.Client.Fence(ctx, ownerRequest(owner), blocksOf(addresses))
}

// ReadBack implements takeover.Backend. List reads the enforcers back at each
// call. A fence counts as held only if its service covers a storage server with it.
func (b fenceBackend) ReadBack(ctx context.Context, owner string, addresses []netip.Addr) (takeover.Fences, error) {
	var f takeover.Fences
	recorded, err := b.Recorded(ctx, ownerRequest(owner))
	if err == nil {
		f.Recorded, err = addressesIn(recorded)
	}
	if err != nil || len(f.Recorded) == 0 {
		f.Lifted = err == nil // the service has the records of what it enforces
		return f, err
	}
	held, err := b.List(ctx, ownerRequest(owner))
	if err == nil {
		f.Held, err = addressesIn(held)
	}
	if err != nil || len(f.Held) == 0 {
		return takeover.Fences{Recorded: f.Recorded}, err
	}
	coverage, err := b.Coverage(ctx, client.Request{}, blocksOf(addresses), false)
	if err == nil {
		err = coverageProblem(coverage)
	}
	if err == nil && len(coverage) == 0 { // as a driver of local files without peers
		err = errs.Errorf(errs.Precondition, "the service enforces fences nowhere: name another backend, or the fence service of the storage as its peer")
	}
	if err != nil {
		return takeover.Fences{Recorded: f.Recorded}, err
	}
	f.Evidence = evidenceOf(coverage)
	return f, nil
}

// evidenceOf has a text for each enforcer.
func evidenceOf(coverage []volume.Coverage) (texts []string) {
	for _, c := range coverage {
		text := c.Enforcer + ": fences read back"
		if servers, err := coveredServers([]volume.Coverage{c}); err == nil && len(servers) > 0 {
			text += ", covers " + describeCovered(servers)
		}
		texts = append(texts, text)
	}
	return texts
}

// Unfence implements takeover.Backend. It names what this owner has fenced, since
// a request with a block of others is refused whole.
func (b fenceBackend) Unfence(ctx context.Context, owner string, _ []netip.Addr) error {
	recorded, err := b.Recorded(ctx, ownerRequest(owner))
	if err != nil || len(recorded) == 0 {
		return err
	}
	addresses, err := addressesIn(recorded)
	if err != nil {
		return err
	}
	r := ownerRequest(owner)
	r.Parameters[request.RestartedParameter] = "true"
	return b.Client.Unfence(ctx, r, blocksOf(addresses))
}

// Forget implements takeover.Backend: the service forgets lifted fences itself.
func (fenceBackend) Forget(context.Context, string, []netip.Addr) error { return nil }

// Clients implements takeover.Backend.
func (b fenceBackend) Clients(ctx context.Context) ([]takeover.Client, error) {
	recorded, err := b.RecordedClients(ctx, client.Request{})
	all := make([]takeover.Client, len(recorded))
	for i, c := range recorded {
		all[i] = takeover.Client{Node: c.Node, Addresses: c.Addrs, Former: c.Former}
	}
	return all, err
}

// Servers implements takeover.Backend.
func (b fenceBackend) Servers(ctx context.Context) ([]netip.Addr, error) {
	if b.host == "" {
		return nil, nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", b.host)
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", b.host, err)
	}
	return all, nil
}

func blocksOf(addresses []netip.Addr) []netip.Prefix {
	blocks := make([]netip.Prefix, len(addresses))
	for i, a := range addresses {
		blocks[i] = netip.PrefixFrom(a, a.BitLen())
	}
	return blocks
}

func addressesIn(cidrs []string) ([]netip.Addr, error) {
	addresses := make([]netip.Addr, len(cidrs))
	for i, text := range cidrs {
		block, err := request.Block(strings.TrimSpace(text))
		if err != nil || !block.IsSingleIP() {
			return nil, errs.Errorf(errs.Internal, "the service lists the block %q for this remediation, which fences single addresses", text)
		}
		addresses[i] = block.Addr()
	}
	return addresses, nil
}
