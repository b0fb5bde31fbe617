// Package endpoint is the common part of the servers that fence, cleat csi and
// cleat fence serve: settings, the enforcer, a socket for sidecars and the CLI, and a
// listener for other servers.
package endpoint

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

// Endpoint has the settings and the enforcer of a server that fences.
type Endpoint struct {
	// Settings, set by the flags.
	Peers         []string // NAME=ADDRESS
	Listen        string
	Secrets       map[string]string // key to file
	CheckInterval time.Duration
	EndTimeout    time.Duration

	Name    string // of the driver; set it before Check
	Version string // of the program
	// Enforcer is set by Restore.
	Enforcer *enforce.Enforcer

	prefix     string // of the flags' names
	tls        mutualtls.Files
	remotes    []peer.Config // set by Check
	operations *op.Operations
}

// AddFlags declares the settings, with a prefix of their names.
func (e *Endpoint) AddFlags(fs *pflag.FlagSet, prefix string) {
	e.prefix = prefix
	fs.StringSliceVar(&e.Peers, prefix+"peer", nil, "another server that must enforce the fences, as NAME=HOST:PORT or NAME=unix:///PATH; can be repeated")
	fs.StringVar(&e.Listen, prefix+"listen", "", "accept fences from other cleat servers on HOST:PORT (mutual TLS) or unix:///PATH")
	fs.StringVar(&e.tls.Cert, prefix+"tls-cert", "", "certificate of this server, a PEM file")
	fs.StringVar(&e.tls.Key, prefix+"tls-key", "", "private key of the certificate, a PEM file that only its owner can read")
	fs.StringVar(&e.tls.CA, prefix+"tls-ca", "", "CA certificate that verifies peers, a PEM file")
	fs.StringToStringVar(&e.Secrets, prefix+"secret", nil, "secret that calls must contain, as KEY=FILE; can be repeated")
	fs.DurationVar(&e.CheckInterval, prefix+"check-interval", 10*time.Second, "interval at which all fences are verified")
	fs.DurationVar(&e.EndTimeout, prefix+"end-timeout", 30*time.Second, "how long a call waits for sessions to end before it is answered as incomplete")
}

func (e *Endpoint) parsePeers() error {
	e.remotes = nil
	for _, text := range e.Peers {
		name, endpoint, err := peer.Parse(text)
		if err != nil {
			return fmt.Errorf("--%speer: %w", e.prefix, err)
		}
		if slices.ContainsFunc(e.remotes, func(other peer.Config) bool { return other.Name == name }) {
			return fmt.Errorf("--%speer: two peers have the name %q", e.prefix, name)
		}
		c := peer.Config{Name: name, Via: e.Name, Target: client.Target{Endpoint: endpoint}}
		if !IsUnix(endpoint) {
			c.Target.TLS = e.tls
		}
		e.remotes = append(e.remotes, c)
	}
	return nil
}

// IsUnix reports whether an address is of a UNIX socket.
func IsUnix(address string) bool {
	return strings.HasPrefix(address, "unix:") || strings.HasPrefix(address, "/")
}

// Check refuses settings that cannot work.
func (e *Endpoint) Check() error {
	if err := e.parsePeers(); err != nil {
		return err
	}
	network := e.Listen != "" && !IsUnix(e.Listen) ||
		slices.ContainsFunc(e.remotes, func(c peer.Config) bool { return !IsUnix(c.Target.Endpoint) })
	switch {
	case e.CheckInterval <= 0:
		return fmt.Errorf("--%scheck-interval %s is not positive", e.prefix, e.CheckInterval)
	case e.EndTimeout <= 0:
		return fmt.Errorf("--%send-timeout %s is not positive", e.prefix, e.EndTimeout)
	case network && e.tls.None():
		return fmt.Errorf("network peers require mutual TLS: set --%stls-cert, --%stls-key and --%stls-ca", e.prefix, e.prefix, e.prefix)
	}
	for key, path := range e.Secrets {
		if key == "" || path == "" {
			return fmt.Errorf("--%ssecret %q=%q: expected KEY=FILE", e.prefix, key, path)
		}
	}
	if network {
		if err := e.tls.Check(); err != nil {
			return fmt.Errorf("--%stls-cert, -key and -ca: %w", e.prefix, err)
		}
	}
	for _, c := range e.remotes {
		if err := c.Target.Check(); err != nil {
			return fmt.Errorf("--%speer %s: %w", e.prefix, c.Name, err)
		}
	}
	return nil
}

// Restore creates the enforcer and enforces the recorded fences.
func (e *Endpoint) Restore(ctx context.Context, s *server.Server, c enforce.Config) error {
	c.Operations, c.Logger, c.Metrics = e.operations, s.Logger, s.Metrics
	c.Interval, c.Bounds = e.CheckInterval, enforce.Bounds{End: e.EndTimeout}
	for _, remote := range e.remotes {
		p, err := peer.Open(remote)
		if err != nil {
			return fmt.Errorf("--%speer: %w", e.prefix, err)
		}
		s.OnClose(func(context.Context) error { return p.Close() })
		c.Peers = append(c.Peers, p)
	}
	var err error
	if e.Enforcer, err = enforce.New(c); err != nil {
		return err
	}
	return e.Enforcer.Restore(ctx)
}

// busyTimeout is the wait for another call on the same block.
const busyTimeout = 3 * time.Second

// resolveTimeout is for all peers of one fence.
const resolveTimeout = 2 * time.Second

// PeerAddrs resolves the peers: a fence over one would disconnect this server
// from it. It skips unresolvable names, so that a fence does not depend on DNS:
// the peer refuses such a fence itself.
func (e *Endpoint) PeerAddrs(ctx context.Context, logger *slog.Logger) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var all []netip.Addr
	for _, c := range e.remotes {
		host, _, err := net.SplitHostPort(c.Target.Endpoint)
		if err != nil || IsUnix(c.Target.Endpoint) {
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

// AddParts adds the periodic check and the listeners: for sidecars and the CLI
// at endpoint, if set, for other cleat servers at --listen. The latter are
// authenticated by certificate or user, without a secret.
func (e *Endpoint) AddParts(ctx context.Context, s *server.Server, endpoint string, c service.Config) {
	e.operations = op.New(context.WithoutCancel(ctx), busyTimeout)
	s.Add(server.Part{
		Name: "fences",
		Run:  func(ctx context.Context) error { return e.Enforcer.Guard(ctx) },
		Stop: e.operations.Close,
	})
	if endpoint != "" {
		c.Authenticate = service.SecretFiles(e.Secrets)
		e.addService(s, "csi-addons", endpoint, c)
	}
	if e.Listen != "" {
		e.addService(s, "fence-peers", e.Listen, service.Config{Offer: service.Offer{Fence: true}})
	}
}

const (
	// maxPeerAge is when a peer must reconnect, so that its certificate is
	// verified again.
	maxPeerAge = 10 * time.Minute
	// maxFenceMessage holds request.MaxBlocks blocks, in bytes.
	maxFenceMessage = 8 << 20
)

func (e *Endpoint) addService(s *server.Server, name, address string, c service.Config) {
	c.Name, c.Version = e.Name, e.Version
	v := server.Service{
		Name: name,
		GRPC: server.GRPCConfig{
			Code: errs.Code, Secrets: []protoreflect.ExtensionType{spec.E_CsiSecret}, Private: privateFields(), MaxReceive: maxFenceMessage,
		},
		Register: func(r grpc.ServiceRegistrar) error {
			c.Enforcer = e.Enforcer
			x, err := service.New(c)
			if err == nil {
				x.Register(r)
			}
			return err
		},
		Listen:        func(ctx context.Context) (net.Listener, error) { return e.bind(ctx, s, address) },
		Event:         "serving fences",
		Attrs:         []any{"endpoint", address, "listener", name, "driver", e.Name, "peers", len(e.Peers), "version", e.Version},
		CancelWaiting: e.operations.Close,
	}
	if !IsUnix(address) {
		v.GRPC.MaxAge = maxPeerAge
	}
	s.AddService(v)
}

// privateFields can contain secrets although no option marks them: parameters
// of a NetworkFenceClass are arbitrary.
func privateFields() []protoreflect.FullName {
	all := []protoreflect.FullName{"cleat.fence.v1.GetCoverageRequest.secrets", "cleat.fence.v1.ListRecordedClientsRequest.secrets",
		"cleat.fence.v1.ListRecordedFencesRequest.secrets", "cleat.fence.v1.ListRecordedFencesRequest.parameters"}
	for _, message := range []string{"FenceClusterNetwork", "UnfenceClusterNetwork", "ListClusterFence", "GetFenceClients"} {
		all = append(all, protoreflect.FullName("fence."+message+"Request.parameters"))
	}
	return all
}

// bind uses a socket for privileged users, or TCP with mutual TLS.
func (e *Endpoint) bind(ctx context.Context, s *server.Server, address string) (net.Listener, error) {
	if IsUnix(address) {
		path, err := unixsock.ParseEndpoint(address)
		if err != nil {
			return nil, err
		}
		return s.ListenPrivileged(ctx, unixsock.Address{Path: path})
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%slisten %q: %w", e.prefix, address, err)
	}
	secure, err := mutualtls.Listener(l, e.tls, func(from net.Addr, err error) {
		s.Logger.Warn("peer refused", "peer", from.String(), "err", err)
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return secure, nil
}
