package remote

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plugin implements the registration API.
type plugin struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	if p.info == nil {
		return nil, errors.New("still waking up")
	}
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

// serve serves a plugin's socket until the returned function is called or the
// test ends.
func serve(t testing.TB, socket string, info *registration.PluginInfo) (remove func()) {
	t.Helper()
	return testkit.Serve(t, socket, func(s grpc.ServiceRegistrar) { registration.RegisterRegistrationServer(s, &plugin{info: info}) })
}

// csiPlugin is a plugin whose endpoint is the socket that it registers by: the host
// reports another one as dead, 0.1 s after the registration.
func csiPlugin(name string) *registration.PluginInfo {
	return &registration.PluginInfo{Type: "CSIPlugin", Name: name, SupportedVersions: []string{"1.0.0"}}
}

// anything accepts every plugin.
type anything struct{}

func (anything) Validate(context.Context, watch.Plugin) error   { return nil }
func (anything) Register(context.Context, watch.Plugin) error   { return nil }
func (anything) DeRegister(context.Context, watch.Plugin) error { return nil }

// rig is a plugin host with its service and a client.
type rig struct {
	dir     string // the plugin directory
	host    *watch.Host
	service *Service
	server  *server.GRPC
	remote  *Host
}

func newRig(t testing.TB) *rig {
	t.Helper()
	top := t.TempDir()
	r := &rig{dir: filepath.Join(top, "plugins")}
	r.host = testkit.Value(watch.New(watch.Options{Dir: r.dir, Handlers: map[string]watch.Handler{"CSIPlugin": anything{}}}))(t)
	testkit.Must(t, r.host.Start(t.Context()))
	r.server = testkit.Value(server.NewGRPC(server.GRPCConfig{Code: Code}))(t)
	r.service = NewService(Config{
		Host: r.host,
		Info: Info{Version: "1.2.3", Directory: r.dir, Types: []string{"CSIPlugin"}, Started: time.Unix(1e9, 0).UTC(), PID: 42},
	})
	r.service.Register(r.server)
	endpoint := filepath.Join(top, "host", "host.sock")
	l := testkit.Value(unixsock.Listen(t.Context(), unixsock.Address{Path: endpoint}))(t)
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(context.Background(), l) }()
	r.remote = testkit.Value(Dial(t.Context(), "unix://"+endpoint))(t)
	t.Cleanup(func() {
		ctx := testkit.Context(t)
		testkit.Must(t, r.remote.Close())
		r.service.Stop()
		testkit.Must(t, r.server.Drain(ctx), <-served, r.host.Close(ctx, false))
	})
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// until waits until a plugin of a name is registered.
func (r *rig) until(t testing.TB, name string) watch.Status {
	t.Helper()
	return testkit.Value(r.remote.Wait(t.Context(), "", name, time.Minute))(t)
}
