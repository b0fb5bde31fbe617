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
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/peer"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// fencing is the common part of cleat csi and cleat fence serve: settings,
// enforcer, a socket for sidecars and the CLI, and a listener for other
// servers.
type fencing struct {
	prefix        string   // of the flags' names
	peers         []string // NAME=ADDRESS
	listen        string
	tls           mutualtls.Files
	secrets       map[string]string // key to file
	checkInterval time.Duration
	endTimeout    time.Duration

	remotes    []peer.Config // set by check
	name       string        // of the driver
	operations *op.Operations
	enforcer   *enforce.Enforcer
}

func (n *fencing) addFlags(fs *pflag.FlagSet, prefix string) {
	n.prefix = prefix
	fs.StringSliceVar(&n.peers, prefix+"peer", nil, "another server that must enforce the fences, as NAME=HOST:PORT or NAME=unix:///PATH; can be repeated")
	fs.StringVar(&n.listen, prefix+"listen", "", "accept fences from other cleat servers on HOST:PORT (mutual TLS) or unix:///PATH")
	fs.StringVar(&n.tls.Cert, prefix+"tls-cert", "", "certificate of this server, a PEM file")
	fs.StringVar(&n.tls.Key, prefix+"tls-key", "", "private key of the certificate, a PEM file that only its owner can read")
	fs.StringVar(&n.tls.CA, prefix+"tls-ca", "", "CA certificate that verifies peers, a PEM file")
	fs.StringToStringVar(&n.secrets, prefix+"secret", nil, "secret that calls must contain, as KEY=FILE; can be repeated")
	fs.DurationVar(&n.checkInterval, prefix+"check-interval", 10*time.Second, "interval at which all fences are verified")
	fs.DurationVar(&n.endTimeout, prefix+"end-timeout", 30*time.Second, "how long a call waits for sessions to end before it is answered as incomplete")
}

func (n *fencing) parsePeers() error {
	n.remotes = nil
	for _, text := range n.peers {
		name, endpoint, err := peer.Parse(text)
		if err != nil {
			return fmt.Errorf("--%speer: %w", n.prefix, err)
		}
		if slices.ContainsFunc(n.remotes, func(other peer.Config) bool { return other.Name == name }) {
			return fmt.Errorf("--%speer: two peers have the name %q", n.prefix, name)
		}
		c := peer.Config{Name: name, Via: n.name, Target: client.Target{Endpoint: endpoint}}
		if !isUnix(endpoint) {
			c.Target.TLS = n.tls
		}
		n.remotes = append(n.remotes, c)
	}
	return nil
}

func isUnix(address string) bool {
	return strings.HasPrefix(address, "unix:") || strings.HasPrefix(address, "/")
}

func (n *fencing) check() error {
	if err := n.parsePeers(); err != nil {
		return err
	}
	network := n.listen != "" && !isUnix(n.listen) ||
		slices.ContainsFunc(n.remotes, func(c peer.Config) bool { return !isUnix(c.Target.Endpoint) })
	switch {
	case n.checkInterval <= 0:
		return fmt.Errorf("--%scheck-interval %s is not positive", n.prefix, n.checkInterval)
	case n.endTimeout <= 0:
		return fmt.Errorf("--%send-timeout %s is not positive", n.prefix, n.endTimeout)
	case network && n.tls.None():
		return fmt.Errorf("network peers require mutual TLS: set --%stls-cert, --%stls-key and --%stls-ca", n.prefix, n.prefix, n.prefix)
	}
	for key, path := range n.secrets {
		if key == "" || path == "" {
			return fmt.Errorf("--%ssecret %q=%q: expected KEY=FILE", n.prefix, key, path)
		}
	}
	if network {
		if err := n.tls.Check(); err != nil {
			return fmt.Errorf("--%stls-cert, -key and -ca: %w", n.prefix, err)
		}
	}
	for _, c := range n.remotes {
		if err := c.Target.Check(); err != nil {
			return fmt.Errorf("--%speer %s: %w", n.prefix, c.Name, err)
		}
	}
	return nil
}

// restore creates the enforcer and enforces the recorded fences.
func (n *fencing) restore(ctx context.Context, s *server.Server, c enforce.Config) error {
	c.Operations, c.Logger, c.Metrics = n.operations, s.Logger, s.Metrics
	c.Interval, c.Bounds = n.checkInterval, enforce.Bounds{End: n.endTimeout}
	for _, remote := range n.remotes {
		p, err := peer.Open(remote)
		if err != nil {
			return fmt.Errorf("--%speer: %w", n.prefix, err)
		}
		s.OnClose(func(context.Context) error { return p.Close() })
		c.Peers = append(c.Peers, p)
	}
	var err error
	if n.enforcer, err = enforce.New(c); err != nil {
		return err
	}
	return n.enforcer.Restore(ctx)
}

// resolveTimeout is for all peers of one fence.
const resolveTimeout = 2 * time.Second

// peerAddrs resolves the peers: a fence over one would disconnect this server
// from it. It skips unresolvable names, so that a fence does not depend on DNS:
// the peer refuses such a fence itself.
func (n *fencing) peerAddrs(ctx context.Context, logger *slog.Logger) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var all []netip.Addr
	for _, c := range n.remotes {
		host, _, err := net.SplitHostPort(c.Target.Endpoint)
		if err != nil || isUnix(c.Target.Endpoint) {
			continue
		}
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			logger.WarnContext(ctx, "peer address lookup failed, peer will check the fence itself", "peer", host, "err", err)
		}
		for _, a := range addrs {
			all = append(all, a.Unmap().WithZone(""))
		}
	}
	return all
}

// addParts adds the periodic check and the listeners: for sidecars and the CLI
// at endpoint, if set, for other cleat servers at --listen. The latter are
// authenticated by certificate or user, without a secret.
func (n *fencing) addParts(ctx context.Context, s *server.Server, endpoint string, c service.Config) {
	n.operations = op.New(context.WithoutCancel(ctx), busyTimeout)
	s.Add(server.Part{
		Name: "fences",
		Run:  func(ctx context.Context) error { return n.enforcer.Guard(ctx) },
		Stop: n.operations.Close,
	})
	if endpoint != "" {
		c.Authenticate = service.SecretFiles(n.secrets)
		n.addService(s, "csi-addons", endpoint, c)
	}
	if n.listen != "" {
		n.addService(s, "fence-peers", n.listen, service.Config{Offer: service.Offer{Fence: true}})
	}
}

const (
	// maxPeerAge is when a peer must reconnect, so that its certificate is
	// verified again.
	maxPeerAge = 10 * time.Minute
	// maxFenceMessage holds request.MaxBlocks blocks, in bytes.
	maxFenceMessage = 8 << 20
)

func (n *fencing) addService(s *server.Server, name, address string, c service.Config) {
	c.Name, c.Version = n.name, release
	v := server.Service{
		Name: name,
		GRPC: server.GRPCConfig{
			Code: errs.Code, Secrets: []protoreflect.ExtensionType{spec.E_CsiSecret}, Private: privateFields(), MaxReceive: maxFenceMessage,
		},
		Register: func(r grpc.ServiceRegistrar) error {
			c.Enforcer = n.enforcer
			x, err := service.New(c)
			if err == nil {
				x.Register(r)
			}
			return err
		},
		Listen:        func(ctx context.Context) (net.Listener, error) { return n.bind(ctx, s, address) },
		Event:         "serving fences",
		Attrs:         []any{"endpoint", address, "listener", name, "driver", n.name, "peers", len(n.peers), "version", release},
		CancelWaiting: n.operations.Close,
	}
	if !isUnix(address) {
		v.GRPC.MaxAge = maxPeerAge
	}
	s.AddService(v)
}

// privateFields can contain secrets although no option marks them: parameters
// of a NetworkFenceClass are arbitrary.
func privateFields() []protoreflect.FullName {
	all := []protoreflect.FullName{"cleat.fence.v1.GetCoverageRequest.secrets"}
	for _, message := range []string{"FenceClusterNetwork", "UnfenceClusterNetwork", "ListClusterFence", "GetFenceClients"} {
		all = append(all, protoreflect.FullName("fence."+message+"Request.parameters"))
	}
	return all
}

// bind uses a socket for privileged users, or TCP with mutual TLS.
func (n *fencing) bind(ctx context.Context, s *server.Server, address string) (net.Listener, error) {
	if isUnix(address) {
		path, err := unixsock.ParseEndpoint(address)
		if err != nil {
			return nil, err
		}
		return s.ListenPrivileged(ctx, unixsock.Address{Path: path})
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%slisten %q: %w", n.prefix, address, err)
	}
	secure, err := mutualtls.Listener(l, n.tls, func(from net.Addr, err error) {
		s.Logger.Warn("peer refused", "peer", from.String(), "err", err)
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return secure, nil
}
