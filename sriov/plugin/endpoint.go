package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/gate"
)

// endpoint serves a resource's socket to the kubelet.
type endpoint struct {
	v1beta1.UnsafeDevicePluginServer // allocate.go has all methods

	name    string
	plugin  *Plugin
	logger  *slog.Logger
	notices problems // for logging

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	path     string
	moves    int
	server   *server.GRPC // nil: never served
	listener *unixsock.Listener
	closed   bool
	serving  sync.WaitGroup

	// Guarded by the plugin's monitor.
	attempt int          // of Register
	stream  *gate.Stream // newest ListAndWatch; nil: none
	ignored *gate.Stream // a stream that the kubelet ignores
	stopped bool
}

// SocketName returns a resource's socket name, as upstream:
// example.com_dpdk.sock.
func SocketName(resource string) string { return strings.ReplaceAll(resource, "/", "_") + ".sock" }

func newEndpoint(p *Plugin, name string) *endpoint {
	e := &endpoint{name: name, path: socketPath(p.cfg, SocketName(name)), plugin: p, logger: p.logger.With("resource", name)}
	e.ctx, e.cancel = context.WithCancel(p.ctx)
	return e
}

func socketPath(c Config, name string) string {
	if c.Hidden {
		name = "." + name
	}
	return filepath.Join(c.EndpointDir, name)
}

// isPeriodic: too frequent for the log.
func isPeriodic(method string) bool { return !strings.HasSuffix(method, "/Allocate") }

// refusedAllocate: retrying pods cause many a second.
func refusedAllocate(method string, c codes.Code) bool {
	return !isPeriodic(method) && c == codes.FailedPrecondition
}

// The gate's refusals carry a status.
func code(err error) codes.Code {
	if c := status.FromContextError(err).Code(); c != codes.Unknown {
		return c
	}
	return codes.FailedPrecondition
}

// ensure makes sure that the socket is served, and returns its path. A starting
// kubelet removes every socket; open connections survive.
func (e *endpoint) ensure(ctx context.Context) (path string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.path, e.serve(ctx)
}

// serve is called with the lock.
func (e *endpoint) serve(ctx context.Context) error {
	if e.closed {
		return errors.New("the plugin is shutting down")
	}
	if e.listener != nil {
		seen, err := e.listener.Look()
		if err != nil {
			return err
		}
		if seen == unixsock.Ours {
			return nil
		}
	}
	if e.server == nil {
		c := e.plugin.cfg
		srv, err := server.NewGRPC(server.GRPCConfig{Logger: c.Logger, Metrics: c.Metrics, Code: code, Quiet: isPeriodic, Throttle: refusedAllocate})
		if err != nil {
			return err
		}
		v1beta1.RegisterDevicePluginServer(srv, e)
		e.server = srv
	}
	l, err := unixsock.Listen(ctx, unixsock.Address{Path: e.path, SharedDir: true})
	if errors.Is(err, unixsock.ErrLive) {
		return fmt.Errorf("%w: another SR-IOV device plugin serves this resource on the node, stop it", err)
	}
	if err != nil {
		return err
	}
	if e.listener != nil {
		err = e.listener.Close()
	}
	e.listener = l
	path := e.path
	e.serving.Go(func() {
		if err := e.server.Serve(context.WithoutCancel(ctx), l); err != nil && !errors.Is(err, net.ErrClosed) {
			e.logger.Error("serving device plugin socket failed", "socket", path, "err", err)
		}
	})
	return err
}

// alreadyConnected is in the refusal of a kubelet, from 1.37 on, that still has a
// connection at this socket's path. If it was a plugin's that has ended since, the
// kubelet keeps it and refuses the path until the kubelet restarts.
const alreadyConnected = "device plugin already connected"

// move changes the socket's name for the next registration.
func (e *endpoint) move() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.listener == nil {
		return
	}
	if err := e.listener.Close(); err != nil {
		e.logger.Warn("cannot remove device plugin socket", "socket", e.path, "err", err)
	}
	e.moves++
	e.listener, e.path = nil, socketPath(e.plugin.cfg, SocketName(fmt.Sprintf("%s.%d", e.name, e.moves)))
}

// Calls in flight continue.
func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed = true; e.listener == nil {
		return
	}
	if err := e.listener.Close(); err != nil {
		e.logger.Warn("cannot remove device plugin socket", "socket", e.path, "err", err)
	}
}

const drainTimeout = 2 * time.Second

// drain is called after close.
func (e *endpoint) drain() {
	if e.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if err := e.server.Drain(ctx); err != nil {
		e.logger.Warn("canceled kubelet calls in flight", "err", err)
	}
	e.serving.Wait()
}

// register drops the result if a newer attempt has started.
func (e *endpoint) register(attempt int) {
	p := e.plugin
	path, err := e.ensure(e.ctx)
	served := err == nil
	if served {
		err = p.cfg.Registrar.Register(e.ctx, Registration{Resource: e.name, Endpoint: path, Options: options()})
	}
	if err != nil && strings.Contains(err.Error(), alreadyConnected) {
		e.move()
	}
	p.step(func(now time.Time) {
		if e.attempt != attempt {
			return
		}
		defer p.gate.Registered(now, e.name, err)
		if !served {
			return
		}
		p.metrics.registrations.WithLabelValues(e.name, okOrFailed(err)).Inc()
		changed := e.notices.set("registration", err)
		switch {
		case err == nil:
			e.logger.Info("registered with the kubelet", "socket", path)
		case changed && e.ctx.Err() == nil:
			e.logger.Warn("registration with the kubelet failed, will retry", "err", err)
		}
	})
}

// forget removes socket and registration, so that another server can use them.
func (e *endpoint) forget() {
	e.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), drainTimeout)
	defer cancel()
	if err := e.plugin.cfg.Registrar.Forget(ctx, e.name); err != nil {
		e.logger.Warn("cannot remove kubelet registration", "err", err)
	}
}

// end waits for the calls and the work of the endpoint.
func (e *endpoint) end() {
	e.cancel()
	e.close()
	e.drain()
	e.work.Wait()
}
