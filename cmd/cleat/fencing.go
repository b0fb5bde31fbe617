package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/peer"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// fenceFlags are the settings of fencing that a storage driver and a server of
// fences alone share.
type fenceFlags struct {
	peers         []string // NAME=ADDRESS
	listen        string
	tls           mutualtls.Files
	secrets       map[string]string // key to file
	allowUIDs     []uint
	checkInterval time.Duration
	endTimeout    time.Duration
	prefix        string // of the flags' names
}

func (f *fenceFlags) add(fs *pflag.FlagSet, prefix string) {
	f.prefix = prefix
	name := func(word string) string { return prefix + word }
	fs.StringSliceVar(&f.peers, name("peer"), nil, "another server that has to fence too, as NAME=HOST:PORT or NAME=unix:///PATH; may be repeated")
	fs.StringVar(&f.listen, name("listen"), "", "take fences from other servers of ours here: HOST:PORT (mutual TLS) or unix:///PATH")
	fs.StringVar(&f.tls.Cert, name("tls-cert"), "", "certificate of this server for peers, a PEM file")
	fs.StringVar(&f.tls.Key, name("tls-key"), "", "its key, a PEM file that only its owner can read")
	fs.StringVar(&f.tls.CA, name("tls-ca"), "", "authority whose certificates peers must have, a PEM file")
	fs.StringToStringVar(&f.secrets, name("secret"), nil, "a secret that calls must carry, as KEY=FILE; may be repeated")
	fs.DurationVar(&f.checkInterval, name("check-interval"), 10*time.Second, "how often it is read back whether every fence holds")
	fs.DurationVar(&f.endTimeout, name("end-timeout"), 30*time.Second, "how long a call waits for sessions to end before it answers that it is not done")
	uids := "allow-uid"
	if prefix != "" {
		uids = "addons-allow-uid"
	}
	fs.UintSliceVar(&f.allowUIDs, uids, nil, "these users may call beside root")
}

// remotes reads the peers.
func (f *fenceFlags) remotes() (all []peer.Config, err error) {
	for _, text := range f.peers {
		name, endpoint, err := peer.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("--%speer: %w", f.prefix, err)
		}
		if slices.ContainsFunc(all, func(other peer.Config) bool { return other.Name == name }) {
			return nil, fmt.Errorf("--%speer: two peers have the name %q", f.prefix, name)
		}
		c := peer.Config{Name: name, Target: client.Target{Endpoint: endpoint}}
		if !isUnix(endpoint) {
			c.Target.TLS = f.tls
		}
		all = append(all, c)
	}
	return all, nil
}

func isUnix(address string) bool {
	return strings.HasPrefix(address, "unix:") || strings.HasPrefix(address, "/")
}

// check refuses settings that cannot work together.
func (f *fenceFlags) check() error {
	remotes, err := f.remotes()
	if err != nil {
		return err
	}
	network := f.listen != "" && !isUnix(f.listen) ||
		slices.ContainsFunc(remotes, func(c peer.Config) bool { return !isUnix(c.Target.Endpoint) })
	switch {
	case f.checkInterval <= 0:
		return fmt.Errorf("--%scheck-interval %s: a time above 0 is needed", f.prefix, f.checkInterval)
	case f.endTimeout <= 0:
		return fmt.Errorf("--%send-timeout %s: a time above 0 is needed", f.prefix, f.endTimeout)
	case network && f.tls.None():
		return fmt.Errorf("peers over the network need mutual TLS: give --%stls-cert, --%stls-key and --%stls-ca", f.prefix, f.prefix, f.prefix)
	}
	for key, path := range f.secrets {
		if key == "" || path == "" {
			return fmt.Errorf("--%ssecret %q=%q: write KEY=FILE", f.prefix, key, path)
		}
	}
	for _, uid := range f.allowUIDs {
		if uid == overflowUID || uid > 1<<32-2 {
			return fmt.Errorf("a user %d is allowed: that is how users of other user namespaces look, any of them", uid)
		}
	}
	if network {
		if err := f.tls.Check(); err != nil {
			return fmt.Errorf("--%stls-cert, -key and -ca: %w", f.prefix, err)
		}
	}
	for _, c := range remotes {
		if err := c.Target.Check(); err != nil {
			return fmt.Errorf("--%speer %s: %w", f.prefix, c.Name, err)
		}
	}
	return nil
}

// fencing is what a process serves of fencing: its enforcer, a socket for
// sidecars and people, and a listener for other servers of ours.
type fencing struct {
	flags      fenceFlags
	name       string // of the driver
	logger     *slog.Logger
	registry   *prometheus.Registry
	operations *op.Operations
	peers      []*peer.Peer
	hosts      []string // of peers
	enforcer   *enforce.Enforcer
	faces      []*face
}

// face is one listener with the services on it.
type face struct {
	name     string
	address  string
	service  service.Config
	server   *server.GRPC
	listener net.Listener
}

func newFencing(ctx context.Context, f fenceFlags, name string, logger *slog.Logger, registry *prometheus.Registry) (*fencing, error) {
	remotes, err := f.remotes()
	if err != nil {
		return nil, err
	}
	n := &fencing{flags: f, name: name, logger: logger, registry: registry}
	n.operations = op.New(context.WithoutCancel(ctx), busyWait)
	for _, c := range remotes {
		c.Via = name
		p, err := peer.Open(c)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("--%speer: %w", f.prefix, err), n.close())
		}
		n.peers = append(n.peers, p)
		if host, _, err := net.SplitHostPort(c.Target.Endpoint); err == nil {
			n.hosts = append(n.hosts, host)
		}
	}
	return n, nil
}

// restore makes the enforcer of a ledger, and what is on record hold.
func (n *fencing) restore(ctx context.Context, l *ledger.Ledger, locals []enforce.Local, network func(context.Context) (request.Network, error)) error {
	c := enforce.Config{
		Ledger: l, Operations: n.operations, Locals: locals, Network: network, Logger: n.logger, Metrics: n.registry,
		Interval: n.flags.checkInterval, Bounds: enforce.Bounds{End: n.flags.endTimeout},
	}
	for _, p := range n.peers {
		c.Peers = append(c.Peers, p)
	}
	var err error
	if n.enforcer, err = enforce.New(c); err != nil {
		return err
	}
	return n.enforcer.Restore(ctx)
}

// resolveBound is how long a fence waits for the names of all peers.
const resolveBound = 2 * time.Second

// peerAddrs resolves the hosts of the peers: a fence that covers one would cut
// this server off from it. A name that cannot be resolved is left out, so that
// a fence does not wait for a name service: the peer itself refuses as well.
func (n *fencing) peerAddrs(ctx context.Context) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, resolveBound)
	defer cancel()
	var all []netip.Addr
	for _, host := range n.hosts {
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			n.logger.WarnContext(ctx, "a peer's addresses cannot be told; whether a fence covers them is left to the peer", "peer", host, "error", err)
		}
		for _, a := range addrs {
			all = append(all, a.Unmap().WithZone(""))
		}
	}
	return all
}

// serveSidecars adds the socket on which the csi-addons sidecar and people call.
func (n *fencing) serveSidecars(endpoint string, c service.Config) {
	c.Name, c.Version = n.name, release
	c.Authenticate = service.SecretFiles(n.flags.secrets)
	n.faces = append(n.faces, &face{name: "csi-addons", address: endpoint, service: c})
}

// servePeers adds the listener for other servers. Their certificate, or their
// user, stands for them, so no secret is asked for.
func (n *fencing) servePeers() {
	if n.flags.listen == "" {
		return
	}
	c := service.Config{Name: n.name, Version: release, Offer: service.Offer{Fence: true}}
	n.faces = append(n.faces, &face{name: "fence-peers", address: n.flags.listen, service: c})
}

// parts are run in this order, and ended in reverse.
func (n *fencing) parts() []server.Part {
	all := []server.Part{{
		Name:  "fences",
		Start: func(ctx context.Context) error { return n.enforcer.Guard(ctx) },
		Stop:  n.operations.Close,
	}}
	for _, f := range n.faces {
		all = append(all, server.Part{
			Name:    f.name,
			Prepare: func(ctx context.Context) error { return n.open(ctx, f) },
			Start: func(ctx context.Context) error {
				n.logger.Info("fences are served", "endpoint", f.address, "to", f.name, "driver", n.name, "peers", len(n.peers), "version", release)
				return f.server.Serve(ctx, f.listener)
			},
			Stop: func(ctx context.Context) error { return drainOrBreakOff(ctx, f.server, n.operations.Close) },
		})
	}
	return all
}

// open makes the server of a face and binds its listener.
func (n *fencing) open(ctx context.Context, f *face) error {
	var err error
	c := server.GRPCConfig{
		Logger: n.logger, Metrics: n.registry, Code: errs.Code, Secrets: []protoreflect.ExtensionType{spec.E_CsiSecret},
		Private: privateFields(), MaxReceive: maxFenceMessage,
	}
	if !isUnix(f.address) {
		c.MaxAge = maxPeerAge
	}
	f.server, err = server.NewGRPC(c)
	if err != nil {
		return err
	}
	f.service.Enforcer = n.enforcer
	s, err := service.New(f.service)
	if err != nil {
		return err
	}
	s.Register(f.server)
	f.listener, err = n.listen(ctx, f)
	return err
}

// maxPeerAge is how long a peer's certificate is trusted without another look.
const maxPeerAge = 10 * time.Minute

// maxFenceMessage holds the most blocks that a request may name.
const maxFenceMessage = 8 << 20

// privateFields may hold secrets though no option marks them: parameters are
// whatever a class of a cluster says.
func privateFields() []protoreflect.FullName {
	var all []protoreflect.FullName
	for _, message := range []string{"FenceClusterNetwork", "UnfenceClusterNetwork", "ListClusterFence", "GetFenceClients"} {
		all = append(all, protoreflect.FullName("fence."+message+"Request.parameters"))
	}
	return all
}

func (n *fencing) listen(ctx context.Context, f *face) (net.Listener, error) {
	if !isUnix(f.address) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.address)
		if err != nil {
			return nil, fmt.Errorf("--%slisten %q: %w", n.flags.prefix, f.address, err)
		}
		secure, err := mutualtls.Listener(l, n.flags.tls, func(from net.Addr, err error) {
			n.logger.Warn("a peer was refused", "from", from.String(), "error", err)
		})
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		return secure, nil
	}
	path, err := unixsock.ParseEndpoint(f.address)
	if err != nil {
		return nil, err
	}
	return listenPrivileged(ctx, unixsock.Address{Path: path}, n.flags.allowUIDs, n.logger)
}

// close lets go of the peers.
func (n *fencing) close() error {
	var errs []error
	for _, p := range n.peers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
