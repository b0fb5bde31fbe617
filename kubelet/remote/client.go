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

// Error is a host's answer to a call that it did not do.
type Error struct {
	Code    codes.Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// ErrNoHost: nobody answers on the endpoint, or may be asked.
var ErrNoHost = errors.New("no host of plugins answers")

// Host is a host of plugins that runs in another process. It may be used by
// several goroutines.
type Host struct {
	endpoint string
	conn     *grpc.ClientConn
	calls    hostv1.HostClient
}

// Dial connects to a host's endpoint, as unix:///run/cleat/host/host.sock. It
// fails with ErrNoHost when nobody is there.
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

// noHost says what to do about it.
func noHost(endpoint string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		advice = "there is no such socket; start a host with: cleat host, or name another socket with --host"
	case errors.Is(err, unix.ECONNREFUSED):
		advice = "the socket was left by a host that is gone; start it again with: cleat host"
	case errors.Is(err, fs.ErrPermission):
		advice = "this user may not use the socket; run as root, or start the host with --socket-group"
	default:
		return fmt.Errorf("%w on %s: %w", ErrNoHost, endpoint, err)
	}
	return fmt.Errorf("%w on %s: %s (%w)", ErrNoHost, endpoint, advice, err)
}

// Close ends the connection.
func (h *Host) Close() error { return h.conn.Close() }

// answer turns the end of a call into an Error, or ErrNoHost when the host has
// gone away meanwhile.
func (h *Host) answer(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	if s.Code() == codes.Unavailable {
		return fmt.Errorf("%w on %s any more: %s", ErrNoHost, h.endpoint, s.Message())
	}
	return &Error{Code: s.Code(), Message: s.Message()}
}

// Info is what a host says of itself.
type Info struct {
	Version   string    `json:"version"`
	Directory string    `json:"directory"`
	Types     []string  `json:"types"`
	Started   time.Time `json:"started"`
	PID       int       `json:"pid"`
}

// Info asks the host who it is.
func (h *Host) Info(ctx context.Context) (Info, error) {
	a, err := h.calls.GetHost(ctx, &hostv1.GetHostRequest{})
	if err != nil {
		return Info{}, h.answer(err)
	}
	return Info{
		Version: a.GetVersion(), Directory: pathFromWire(a.GetDirectory()), Types: a.GetTypes(),
		Started: timeFromWire(a.GetStarted()), PID: int(a.GetPid()),
	}, nil
}

// List tells how plugins are now, sorted by socket: those of a type and of a
// name, where these are not empty.
func (h *Host) List(ctx context.Context, kind, name string) ([]watch.Status, error) {
	all := []watch.Status{}
	request := &hostv1.ListPluginsRequest{Filter: &hostv1.Filter{Type: kind, Name: name}}
	for {
		page, err := h.calls.ListPlugins(ctx, request)
		if err != nil {
			return nil, h.answer(err)
		}
		for _, p := range page.GetPlugins() {
			all = append(all, fromWire(p))
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return all, nil
		}
	}
}

// Get tells how the plugin behind a socket is; an Error with code NotFound says
// why there may be none.
func (h *Host) Get(ctx context.Context, socket string) (watch.Status, error) {
	a, err := h.calls.GetPlugin(ctx, &hostv1.GetPluginRequest{Socket: pathToWire(socket)})
	if err != nil {
		return watch.Status{}, h.answer(err)
	}
	return fromWire(a.GetPlugin()), nil
}

// Lookup tells which of the registered plugins of a type and name serves now;
// an Error with code NotFound says why none does.
func (h *Host) Lookup(ctx context.Context, kind, name string) (watch.Status, error) {
	a, err := h.calls.LookupPlugin(ctx, &hostv1.LookupPluginRequest{Type: kind, Name: name})
	if err != nil {
		return watch.Status{}, h.answer(err)
	}
	return fromWire(a.GetPlugin()), nil
}

// Explain says in lines for people how things are with a name or a socket, and
// what to do. Found are the plugins that the word names; there may be none.
func (h *Host) Explain(ctx context.Context, word string) (found []watch.Status, text string, err error) {
	a, err := h.calls.ExplainPlugin(ctx, &hostv1.ExplainPluginRequest{Word: pathToWire(word)})
	if err != nil {
		return nil, "", h.answer(err)
	}
	for _, p := range a.GetPlugins() {
		found = append(found, fromWire(p))
	}
	return found, a.GetText(), nil
}

// waitGrace is how much longer a call may take than what it waits for, so that
// the host's own words on a failure arrive.
const waitGrace = 5 * time.Second

// Wait returns when a plugin of that name, and type when it is not empty, is
// registered. When it is not within the timeout, an Error with the code
// DeadlineExceeded says what stands in its way. Zero is no timeout but ctx's.
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
		return watch.Status{}, h.answer(err)
	}
	return fromWire(a.GetPlugin()), nil
}

// Watch yields how all plugins are and what changes, see Change, until ctx or
// the loop ends. An error is the last thing that it yields.
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
		if errors.Is(err, io.EOF) { // no host ends a watch in peace
			err = status.Error(codes.Unavailable, "it ended the watch")
		}
		yield(Change{}, h.answer(err))
	}
}
