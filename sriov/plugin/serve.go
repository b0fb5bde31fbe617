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
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// endpoint is the socket on which the kubelet calls a resource.
type endpoint struct {
	path   string
	server *server.GRPC
	deps   *deps

	mu       sync.Mutex
	listener *unixsock.Listener
	closed   bool
	serving  sync.WaitGroup
}

// SocketName is the file name of a resource's socket, as the upstream plugin
// has it: example.com_dpdk.sock.
func SocketName(resource string) string { return strings.ReplaceAll(resource, "/", "_") + ".sock" }

func newEndpoint(d *deps, r *resource) (*endpoint, error) {
	srv, err := server.NewGRPC(server.GRPCConfig{Logger: d.logger, Metrics: d.callMetrics, Code: code, Quiet: quiet, Throttle: refusedAllocate})
	if err != nil {
		return nil, err
	}
	v1beta1.RegisterDevicePluginServer(srv, r)
	name := SocketName(r.name)
	if d.hidden {
		name = "." + name
	}
	return &endpoint{path: filepath.Join(d.endpointDir, name), server: srv, deps: d}, nil
}

// quiet: the kubelet asks these all day.
func quiet(method string) bool { return !strings.HasSuffix(method, "/Allocate") }

// refusedAllocate: a kubelet with pods that retry is refused many times a second.
func refusedAllocate(method string, c codes.Code) bool {
	return !quiet(method) && c == codes.FailedPrecondition
}

// code is the one table of errors to codes.
func code(err error) codes.Code {
	if refused, ok := errors.AsType[*refusal](err); ok {
		return refused.code
	}
	switch {
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return codes.FailedPrecondition
}

// ensure makes sure that the socket is there and served. A kubelet that starts
// removes every socket in its directory; connections that stand live on.
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
			e.deps.logger.Error("a device plugin socket is served no more", "socket", e.path, "error", err)
		}
	})
	return err
}

// close takes the socket away; calls under way go on.
func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.listener == nil {
		return
	}
	if err := e.listener.Close(); err != nil {
		e.deps.logger.Warn("a device plugin socket could not be removed", "socket", e.path, "error", err)
	}
}

// drainBound is how long calls may run on that a stopped resource still has.
const drainBound = 2 * time.Second

// drain lets calls end, and returns when nothing is served any more.
func (e *endpoint) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), drainBound)
	defer cancel()
	if err := e.server.Drain(ctx); err != nil {
		e.deps.logger.Warn("calls of the kubelet were cut off", "socket", e.path, "error", err)
	}
	e.serving.Wait()
}
