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

// endpoint is the socket on which the kubelet calls a resource.
type endpoint struct {
	path     string
	resource *resource
	server   *server.GRPC

	mu       sync.Mutex
	listener *unixsock.Listener
	closed   bool
	serving  sync.WaitGroup
}

// SocketName is the file name of a resource's socket, as the upstream plugin
// has it: example.com_dpdk.sock.
func SocketName(resource string) string { return strings.ReplaceAll(resource, "/", "_") + ".sock" }

func newEndpoint(r *resource) (*endpoint, error) {
	c := r.plugin.cfg
	srv, err := server.NewGRPC(server.GRPCConfig{Logger: c.Logger, Metrics: c.Metrics, Code: code, Quiet: quiet, Throttle: refusedAllocate})
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

// quiet reports whether the kubelet calls a method periodically.
func quiet(method string) bool { return !strings.HasSuffix(method, "/Allocate") }

// refusedAllocate reports whether a call was a refused Allocate: with pods that
// retry there are many a second.
func refusedAllocate(method string, c codes.Code) bool {
	return !quiet(method) && c == codes.FailedPrecondition
}

// code is the table of errors and gRPC codes. The gate's refusals have a status.
func code(err error) codes.Code {
	if c := status.FromContextError(err).Code(); c != codes.Unknown {
		return c
	}
	return codes.FailedPrecondition
}

// ensure makes sure that the socket exists and is served. A kubelet that starts
// removes every socket in its directory; open connections live on.
func (e *endpoint) ensure(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errors.New("the plugin stops")
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
		return fmt.Errorf("%w: does another SR-IOV device plugin run on this node? Only one can serve a resource", err)
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
			e.resource.logger.Error("a device plugin socket is served no more", "socket", e.path, "error", err)
		}
	})
	return err
}

// close removes the socket; running calls continue.
func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.listener == nil {
		return
	}
	if err := e.listener.Close(); err != nil {
		e.resource.logger.Warn("a device plugin socket could not be removed", "socket", e.path, "error", err)
	}
}

// drainTimeout is how long calls of a stopped resource can continue.
const drainTimeout = 2 * time.Second

// drain waits for running calls, and for the end of the server.
func (e *endpoint) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if err := e.server.Drain(ctx); err != nil {
		e.resource.logger.Warn("calls of the kubelet were cut off", "socket", e.path, "error", err)
	}
	e.serving.Wait()
}
