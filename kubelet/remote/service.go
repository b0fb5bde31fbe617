// Package remote shows a host of plugins to other processes: the contract
// host/v1 served over a watch.Host, and the client.
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

// Serving is asked which endpoint of a type and name serves, of several that
// are registered. A handler that has no opinion says that it knows none.
type Serving func(kind, name string) (endpoint string, known bool)

// Service answers host/v1.
type Service struct {
	hostv1.UnimplementedHostServer
	Config
	stopped context.Context
	stop    context.CancelFunc
}

// Config is what a Service tells of.
type Config struct {
	Host *watch.Host
	Info Info
	// Serving may be nil: then the newest instance of a name serves.
	Serving Serving
	// Resources are what the device plugins offer; nil: nothing.
	Resources func() []device.Resource
}

// NewService makes one.
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

// Stop ends the calls that would go on for long, for a server that is to be
// drained.
func (s *Service) Stop() { s.stop() }

var (
	errInvalid  = errors.New("the request is not valid")
	errUnknown  = errors.New("no such plugin")
	errStopping = errors.New("the host of plugins stops")
)

// Code is what an error of the service is in gRPC.
func Code(err error) codes.Code {
	switch {
	case errors.Is(err, errInvalid):
		return codes.InvalidArgument
	case errors.Is(err, errUnknown):
		return codes.NotFound
	case errors.Is(err, errStopping), errors.Is(err, watch.ErrClosed):
		return codes.Unavailable
	}
	return codes.Internal // ended contexts are the server's matter
}

// problem is an error whose text is all for the reader; its kind is for Code.
type problem struct {
	kind error
	text string
}

func (p *problem) Error() string { return p.text }
func (p *problem) Unwrap() error { return p.kind }

func invalid(format string, args ...any) error {
	return &problem{kind: errInvalid, text: fmt.Sprintf(format, args...)}
}

// GetHost is part of host/v1.
func (s *Service) GetHost(context.Context, *hostv1.GetHostRequest) (*hostv1.GetHostResponse, error) {
	return &hostv1.GetHostResponse{
		Version: s.Info.Version, Directory: pathToWire(s.Info.Directory), Types: s.Info.Types,
		Started: timeToWire(s.Info.Started), Pid: int32(s.Info.PID),
	}, nil
}

// Pages of ListPlugins: plugins, and bytes after which one more is the last. A
// plugin takes some 300 bytes, and what others made up may take far more; gRPC
// clients take 4 MiB.
const (
	usualPage = 500
	mostPage  = 1000
	pageBytes = 1 << 20
)

// ListPlugins is part of host/v1.
func (s *Service) ListPlugins(_ context.Context, r *hostv1.ListPluginsRequest) (*hostv1.ListPluginsResponse, error) {
	size := int(r.GetPageSize())
	switch {
	case size < 0:
		return nil, invalid("page_size is %d; it must not be negative, and 0 leaves it to the host", size)
	case size == 0:
		size = usualPage
	}
	size = min(size, mostPage)
	after, bytes, answer := pathFromWire(r.GetPageToken()), 0, &hostv1.ListPluginsResponse{}
	for _, p := range s.Host.List() { // in the order of sockets
		if p.Socket <= after || !fits(r.GetFilter(), p) {
			continue
		}
		if n := len(answer.Plugins); n == size || bytes > pageBytes {
			answer.NextPageToken = answer.Plugins[n-1].GetSocket()
			break
		}
		w := toWire(p)
		bytes += proto.Size(w)
		answer.Plugins = append(answer.Plugins, w)
	}
	return answer, nil
}

func fits(f *hostv1.Filter, s watch.Status) bool {
	return (f.GetType() == "" || f.GetType() == s.Type) && (f.GetName() == "" || f.GetName() == s.Name)
}

// GetPlugin is part of host/v1.
func (s *Service) GetPlugin(_ context.Context, r *hostv1.GetPluginRequest) (*hostv1.GetPluginResponse, error) {
	socket := pathFromWire(r.GetSocket())
	if !filepath.IsAbs(socket) {
		return nil, invalid("socket is %q; it must be the absolute path of one, as %s/example.sock", r.GetSocket(), s.Info.Directory)
	}
	found, text := s.Host.Why(socket)
	for _, p := range found {
		if p.Socket == socket {
			return &hostv1.GetPluginResponse{Plugin: toWire(p)}, nil
		}
	}
	return nil, &problem{kind: errUnknown, text: cmp.Or(text, "no plugin has its socket at "+socket)}
}

// LookupPlugin is part of host/v1.
func (s *Service) LookupPlugin(_ context.Context, r *hostv1.LookupPluginRequest) (*hostv1.LookupPluginResponse, error) {
	kind, name := r.GetType(), r.GetName()
	if kind == "" || name == "" {
		return nil, invalid("type is %q and name is %q; both are needed, as CSIPlugin and csi.example.com", kind, name)
	}
	all := s.Host.List()
	endpoint, known := s.Serving(kind, name)
	p, ok := pick(all, kind, name, endpoint)
	if !ok && known { // it serves by now, and its endpoint has just changed
		p, ok = pick(all, kind, name, "")
	}
	if !ok {
		return nil, &problem{kind: errUnknown, text: s.missing(all, kind, name)}
	}
	return &hostv1.LookupPluginResponse{Plugin: toWire(p)}, nil
}

// ExplainPlugin is part of host/v1.
func (s *Service) ExplainPlugin(_ context.Context, r *hostv1.ExplainPluginRequest) (*hostv1.ExplainPluginResponse, error) {
	if r.GetWord() == "" {
		return nil, invalid("word is empty; it must be the name of a plugin or the path of a socket")
	}
	found, text := s.Host.Why(pathFromWire(r.GetWord()))
	if len(found) == 0 {
		text += s.meant("", r.GetWord())
	}
	answer := &hostv1.ExplainPluginResponse{Text: valid(strings.TrimSpace(text))}
	for _, p := range found {
		answer.Plugins = append(answer.Plugins, toWire(p))
	}
	return answer, nil
}

// WatchPlugins is part of host/v1.
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

// WaitPlugin is part of host/v1.
func (s *Service) WaitPlugin(ctx context.Context, r *hostv1.WaitPluginRequest) (*hostv1.WaitPluginResponse, error) {
	if r.GetName() == "" {
		return nil, invalid("name is empty; it must be the name of the plugin to wait for")
	}
	ctx, cancel := s.untilStopped(ctx)
	defer cancel()
	if t := r.GetTimeout(); t != nil {
		if err := t.CheckValid(); err != nil || t.AsDuration() < 0 {
			return nil, invalid("timeout is %s; it must be a duration, not negative", t)
		}
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, t.AsDuration())
		defer end()
	}
	p, err := s.Host.Wait(ctx, r.GetType(), r.GetName())
	switch {
	case err != nil && s.stopped.Err() != nil:
		return nil, errStopping
	case errors.Is(err, context.DeadlineExceeded): // which the code says
		text := strings.TrimSuffix(err.Error(), ": "+context.DeadlineExceeded.Error())
		return nil, &problem{kind: context.DeadlineExceeded, text: text + s.meant(r.GetType(), r.GetName())}
	case err != nil:
		return nil, err
	}
	return &hostv1.WaitPluginResponse{Plugin: toWire(p)}, nil
}

// untilStopped ends with the call or with the service.
func (s *Service) untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(s.stopped, cancel)
	return ctx, func() {
		unhook()
		cancel()
	}
}
