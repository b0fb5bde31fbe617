package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// Error is the gRPC status of a failed call.
type Error struct {
	Code    codes.Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// ErrNoHost: no process serves the endpoint, or access is denied.
var ErrNoHost = errors.New("no plugin host answers")

// Host is a client of a plugin host. It is safe for concurrent use.
type Host struct {
	endpoint string
	conn     *grpc.ClientConn
	calls    hostv1.HostClient
}

// Dial connects to an endpoint such as unix:///run/cleat/host/host.sock, or
// fails with ErrNoHost.
func Dial(ctx context.Context, endpoint string) (*Host, error) {
	path, err := unixsock.ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := rpcdial.Connect(ctx, path)
	if err != nil {
		return nil, noHost(endpoint, err)
	}
	return &Host{endpoint: endpoint, conn: conn, calls: hostv1.NewHostClient(conn)}, nil
}

func noHost(endpoint string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		advice = "the socket does not exist; start a host with: cleat host, or set another socket with --host"
	case errors.Is(err, unix.ECONNREFUSED):
		advice = "the host that created the socket is not running; start it with: cleat host"
	case errors.Is(err, fs.ErrPermission):
		advice = "permission denied for this user; run as root, or start the host with --socket-group"
	default:
		return fmt.Errorf("%w on %s: %w", ErrNoHost, endpoint, err)
	}
	return fmt.Errorf("%w on %s: %s (%w)", ErrNoHost, endpoint, advice, err)
}

// Close ends the connection.
func (h *Host) Close() error { return h.conn.Close() }

// callError returns an Error, or ErrNoHost if the host is gone.
func (h *Host) callError(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	if s.Code() == codes.Unavailable {
		return fmt.Errorf("%w on %s: %s", ErrNoHost, h.endpoint, s.Message())
	}
	return &Error{Code: s.Code(), Message: s.Message()}
}

// Info describes a host.
type Info struct {
	Version   string    `json:"version"`
	Directory string    `json:"directory"`
	Types     []string  `json:"types"`
	Started   time.Time `json:"started"`
	PID       int       `json:"pid"`
	// Why the host might not know all plugins; empty: it does.
	Error string `json:"error,omitempty"`
}

// Info describes the host.
func (h *Host) Info(ctx context.Context) (Info, error) {
	a, err := h.calls.GetHost(ctx, &hostv1.GetHostRequest{})
	if err != nil {
		return Info{}, h.callError(err)
	}
	return Info{
		Version: a.GetVersion(), Directory: pathFromWire(a.GetDirectory()), Types: a.GetTypes(),
		Started: timeFromWire(a.GetStarted()), PID: int(a.GetPid()), Error: a.GetError(),
	}, nil
}

// List returns the plugins by socket. A non-empty type or name restricts it.
func (h *Host) List(ctx context.Context, kind, name string) ([]watch.Status, error) {
	all := []watch.Status{}
	request := &hostv1.ListPluginsRequest{Filter: &hostv1.Filter{Type: kind, Name: name}}
	for {
		page, err := h.calls.ListPlugins(ctx, request)
		if err != nil {
			return nil, h.callError(err)
		}
		for _, p := range page.GetPlugins() {
			all = append(all, fromWire(p))
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return all, nil
		}
	}
}

// Get returns the plugin at a socket. An Error with NotFound explains why it
// does not exist.
func (h *Host) Get(ctx context.Context, socket string) (watch.Status, error) {
	a, err := h.calls.GetPlugin(ctx, &hostv1.GetPluginRequest{Socket: pathToWire(socket)})
	if err != nil {
		return watch.Status{}, h.callError(err)
	}
	return fromWire(a.GetPlugin()), nil
}

// Lookup returns the serving plugin of a type and name. An Error with NotFound
// explains why it does not exist.
func (h *Host) Lookup(ctx context.Context, kind, name string) (watch.Status, error) {
	a, err := h.calls.LookupPlugin(ctx, &hostv1.LookupPluginRequest{Type: kind, Name: name})
	if err != nil {
		return watch.Status{}, h.callError(err)
	}
	return fromWire(a.GetPlugin()), nil
}

// Explain describes a name or a socket for users, and what to do. found,
// possibly empty, matches word.
func (h *Host) Explain(ctx context.Context, word string) (found []watch.Status, text string, err error) {
	a, err := h.calls.ExplainPlugin(ctx, &hostv1.ExplainPluginRequest{Word: pathToWire(word)})
	if err != nil {
		return nil, "", h.callError(err)
	}
	for _, p := range a.GetPlugins() {
		found = append(found, fromWire(p))
	}
	return found, a.GetText(), nil
}

// waitGrace lets the host's own error arrive first.
const waitGrace = 5 * time.Second

// Wait waits until a plugin of a name (and type, if not empty) is registered.
// After timeout an Error with DeadlineExceeded explains what is missing.
// Timeout 0: only ctx limits it.
func (h *Host) Wait(ctx context.Context, kind, name string, timeout time.Duration) (watch.Status, error) {
	request := &hostv1.WaitPluginRequest{Type: kind, Name: name}
	if timeout > 0 {
		request.Timeout = durationpb.New(timeout)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+waitGrace)
		defer cancel()
	}
	a, err := h.calls.WaitPlugin(ctx, request)
	if err != nil {
		return watch.Status{}, h.callError(err)
	}
	return fromWire(a.GetPlugin()), nil
}

// Watch yields all plugins, then each Change, until ctx ends. An error is the
// last value.
func (h *Host) Watch(ctx context.Context) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := h.calls.WatchPlugins(ctx, &hostv1.WatchPluginsRequest{})
		for err == nil {
			var m *hostv1.WatchPluginsResponse
			if m, err = stream.Recv(); err == nil && !yield(changeFromWire(m), nil) {
				return
			}
		}
		if errors.Is(err, io.EOF) { // only a stopping host ends a watch
			err = status.Error(codes.Unavailable, "the host ended the watch")
		}
		yield(Change{}, h.callError(err))
	}
}
