package plugin

import (
	"context"
	"errors"
	"fmt"
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
)

type endpoint struct {
	path     string
	resource *resource
	server   *server.GRPC

	mu       sync.Mutex
	listener *unixsock.Listener
	closed   bool
	serving  sync.WaitGroup
}

// SocketName returns a resource's socket name, as upstream:
// example.com_dpdk.sock.
func SocketName(resource string) string { return strings.ReplaceAll(resource, "/", "_") + ".sock" }

func newEndpoint(r *resource) (*endpoint, error) {
	c := r.plugin.cfg
	srv, err := server.NewGRPC(server.GRPCConfig{Logger: c.Logger, Metrics: c.Metrics, Code: code, Quiet: isPeriodic, Throttle: refusedAllocate})
	if err != nil {
		return nil, err
	}
	v1beta1.RegisterDevicePluginServer(srv, r)
	name := SocketName(r.name)
	if c.Hidden {
		name = "." + name
	}
	return &endpoint{path: filepath.Join(c.EndpointDir, name), resource: r, server: srv}, nil
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

// A starting kubelet removes every socket; open connections survive.
func (e *endpoint) ensure(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
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
	e.serving.Go(func() {
		if err := e.server.Serve(context.WithoutCancel(ctx), l); err != nil && !errors.Is(err, net.ErrClosed) {
			e.resource.logger.Error("serving device plugin socket failed", "socket", e.path, "err", err)
		}
	})
	return err
}

// Calls in flight continue.
func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.listener == nil {
		return
	}
	if err := e.listener.Close(); err != nil {
		e.resource.logger.Warn("cannot remove device plugin socket", "socket", e.path, "err", err)
	}
}

const drainTimeout = 2 * time.Second

func (e *endpoint) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if err := e.server.Drain(ctx); err != nil {
		e.resource.logger.Warn("canceled kubelet calls in flight", "socket", e.path, "err", err)
	}
	e.serving.Wait()
}
