// Package remote serves a watch.Host to other processes by the gRPC API
// host/v1, and is its client.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// Serving returns which registered endpoint serves a type and name. known is
// false without a preference.
type Serving func(kind, name string) (endpoint string, known bool)

// Service implements the gRPC API host/v1.
type Service struct {
	hostv1.UnimplementedHostServer
	Config
	stopped context.Context
	stop    context.CancelFunc
}

// Config configures a Service.
type Config struct {
	Host *watch.Host
	Info Info
	// Nil: the newest instance serves.
	Serving Serving
	// Of the device plugins; can be nil.
	Resources func() []device.Resource
}

func NewService(c Config) *Service {
	if c.Serving == nil {
		c.Serving = func(string, string) (string, bool) { return "", false }
	}
	if c.Resources == nil {
		c.Resources = func() []device.Resource { return nil }
	}
	s := &Service{Config: c}
	s.stopped, s.stop = context.WithCancel(context.Background())
	return s
}

// Register puts the service on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { hostv1.RegisterHostServer(r, s) }

// Stop ends long-running calls, for draining.
func (s *Service) Stop() { s.stop() }

var (
	errInvalid  = errors.New("invalid request")
	errUnknown  = errors.New("no such plugin")
	errStopping = errors.New("the plugin host is stopping")
)

// Code returns an error's gRPC code.
func Code(err error) codes.Code {
	switch {
	case errors.Is(err, errInvalid):
		return codes.InvalidArgument
	case errors.Is(err, errUnknown):
		return codes.NotFound
	case errors.Is(err, errStopping), errors.Is(err, watch.ErrClosed):
		return codes.Unavailable
	}
	return codes.Internal
}

// apiError has a complete text; kind determines its Code.
type apiError struct {
	kind error
	text string
}

func (e *apiError) Error() string { return e.text }
func (e *apiError) Unwrap() error { return e.kind }

func invalid(format string, args ...any) error {
	return &apiError{kind: errInvalid, text: fmt.Sprintf(format, args...)}
}

func (s *Service) GetHost(context.Context, *hostv1.GetHostRequest) (*hostv1.GetHostResponse, error) {
	answer := &hostv1.GetHostResponse{
		Version: s.Info.Version, Directory: pathToWire(s.Info.Directory), Types: s.Info.Types,
		Started: timeToWire(s.Info.Started), Pid: int32(s.Info.PID),
	}
	if err := s.Host.Health(); err != nil {
		answer.Error = valid(err.Error())
	}
	return answer, nil
}

// Limits of a ListPlugins page, in plugins and bytes (the plugin that exceeds
// maxPageBytes is the last). A plugin takes about 300 bytes, or far more; gRPC
// clients accept 4 MiB.
const (
	defaultPageSize = 500
	maxPageSize     = 1000
	maxPageBytes    = 1 << 20
)

func (s *Service) ListPlugins(_ context.Context, r *hostv1.ListPluginsRequest) (*hostv1.ListPluginsResponse, error) {
	size := int(r.GetPageSize())
	switch {
	case size < 0:
		return nil, invalid("page_size is %d; it must not be negative (0 is the default)", size)
	case size == 0:
		size = defaultPageSize
	}
	size = min(size, maxPageSize)
	after, bytes, answer := pathFromWire(r.GetPageToken()), 0, &hostv1.ListPluginsResponse{}
	for _, p := range s.Host.List() { // by socket
		if p.Socket <= after || !matches(r.GetFilter(), p) {
			continue
		}
		if n := len(answer.Plugins); n == size || bytes > maxPageBytes {
			answer.NextPageToken = answer.Plugins[n-1].GetSocket()
			break
		}
		w := toWire(p)
		bytes += proto.Size(w)
		answer.Plugins = append(answer.Plugins, w)
	}
	return answer, nil
}

func matches(f *hostv1.Filter, s watch.Status) bool {
	return (f.GetType() == "" || f.GetType() == s.Type) && (f.GetName() == "" || f.GetName() == s.Name)
}

func (s *Service) GetPlugin(_ context.Context, r *hostv1.GetPluginRequest) (*hostv1.GetPluginResponse, error) {
	socket := pathFromWire(r.GetSocket())
	if !filepath.IsAbs(socket) {
		return nil, invalid("socket is %q; it must be an absolute path, such as %s/example.sock", r.GetSocket(), s.Info.Directory)
	}
	found, text := s.Host.Why(socket)
	for _, p := range found {
		if p.Socket == socket {
			return &hostv1.GetPluginResponse{Plugin: toWire(p)}, nil
		}
	}
	return nil, &apiError{kind: errUnknown, text: cmp.Or(text, "no plugin has the socket "+socket)}
}

func (s *Service) LookupPlugin(ctx context.Context, r *hostv1.LookupPluginRequest) (*hostv1.LookupPluginResponse, error) {
	kind, name := r.GetType(), r.GetName()
	if kind == "" || name == "" {
		return nil, invalid("type is %q and name is %q; both are required, such as CSIPlugin and csi.example.com", kind, name)
	}
	p, err := s.serving(ctx, kind, name)
	if err != nil {
		return nil, err
	}
	return &hostv1.LookupPluginResponse{Plugin: toWire(p)}, nil
}

func (s *Service) ExplainPlugin(_ context.Context, r *hostv1.ExplainPluginRequest) (*hostv1.ExplainPluginResponse, error) {
	if r.GetWord() == "" {
		return nil, invalid("word is empty; it must be the name of a plugin or the path of a socket")
	}
	found, text := s.Host.Why(pathFromWire(r.GetWord()))
	if len(found) == 0 {
		text += s.suggestion("", r.GetWord())
	}
	answer := &hostv1.ExplainPluginResponse{Text: valid(strings.TrimSpace(text))}
	for _, p := range found {
		answer.Plugins = append(answer.Plugins, toWire(p))
	}
	return answer, nil
}

func (s *Service) WatchPlugins(_ *hostv1.WatchPluginsRequest, stream grpc.ServerStreamingServer[hostv1.WatchPluginsResponse]) error {
	ctx, cancel := s.untilStopped(stream.Context())
	defer cancel()
	for c := range Follow(ctx, s.Host) {
		if err := stream.Send(changeToWire(c)); err != nil {
			return err
		}
	}
	if err := stream.Context().Err(); err != nil {
		return err
	}
	return errStopping
}

func (s *Service) WaitPlugin(ctx context.Context, r *hostv1.WaitPluginRequest) (*hostv1.WaitPluginResponse, error) {
	if r.GetName() == "" {
		return nil, invalid("name is empty; it must be the name of the plugin to wait for")
	}
	ctx, cancel := s.untilStopped(ctx)
	defer cancel()
	if t := r.GetTimeout(); t != nil {
		if err := t.CheckValid(); err != nil || t.AsDuration() < 0 {
			return nil, invalid("timeout is %s; it must be a valid duration and not negative", t)
		}
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, t.AsDuration())
		defer end()
	}
	p, err := s.Host.Wait(ctx, r.GetType(), r.GetName())
	switch {
	case err != nil && s.stopped.Err() != nil:
		return nil, errStopping
	case errors.Is(err, context.DeadlineExceeded): // the code says that
		text := strings.TrimSuffix(err.Error(), ": "+context.DeadlineExceeded.Error())
		return nil, &apiError{kind: context.DeadlineExceeded, text: text + s.suggestion(r.GetType(), r.GetName())}
	case err != nil:
		return nil, err
	}
	return &hostv1.WaitPluginResponse{Plugin: toWire(p)}, nil
}

// The context ends with the call or the service.
func (s *Service) untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(s.stopped, cancel)
	return ctx, func() {
		unhook()
		cancel()
	}
}
