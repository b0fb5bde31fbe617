package remote

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plugin is a real one, as far as registration goes.
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

// serve puts a plugin's socket into place until the returned function, or the
// end of the test.
func serve(t testing.TB, socket string, info *registration.PluginInfo) (remove func()) {
	t.Helper()
	hidden := filepath.Join(filepath.Dir(socket), "."+filepath.Base(socket))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &plugin{info: info})
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	if err := os.Rename(hidden, socket); err != nil {
		t.Fatal(err)
	}
	remove = func() {
		_ = os.Remove(socket)
		server.Stop()
		<-served
	}
	t.Cleanup(remove)
	return remove
}

func csiPlugin(name string) *registration.PluginInfo {
	return &registration.PluginInfo{Type: "CSIPlugin", Name: name, Endpoint: "/run/" + name + ".sock", SupportedVersions: []string{"1.0.0"}}
}

// anything takes every plugin.
type anything struct{}

func (anything) Validate(context.Context, watch.Plugin) error   { return nil }
func (anything) Register(context.Context, watch.Plugin) error   { return nil }
func (anything) DeRegister(context.Context, watch.Plugin) error { return nil }

// rig is a host of plugins that is served, and its client.
type rig struct {
	dir     string // of the plugins
	host    *watch.Host
	service *Service
	server  *server.GRPC
	remote  *Host
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigWith(t, watch.Options{})
}

func newRigWith(t testing.TB, o watch.Options) *rig {
	t.Helper()
	top := t.TempDir()
	r := &rig{dir: filepath.Join(top, "plugins")}
	o.Dir, o.Handlers = r.dir, map[string]watch.Handler{"CSIPlugin": anything{}}
	var err error
	r.host, err = watch.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.host.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.server, err = server.NewGRPC(server.GRPCConfig{Code: Code}); err != nil {
		t.Fatal(err)
	}
	r.service = NewService(Config{
		Host: r.host,
		Info: Info{Version: "1.2.3", Directory: r.dir, Types: []string{"CSIPlugin"}, Started: time.Unix(1e9, 0).UTC(), PID: 42},
	})
	r.service.Register(r.server)
	endpoint := filepath.Join(top, "host", "host.sock")
	l, err := unixsock.Listen(t.Context(), unixsock.Address{Path: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(context.Background(), l) }()
	if r.remote, err = Dial(t.Context(), "unix://"+endpoint); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.remote.Close(); err != nil {
			t.Error(err)
		}
		r.service.Stop()
		if err := errors.Join(r.server.Drain(ctx), <-served, r.host.Close(ctx, false)); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// until ends when a plugin of that name is registered.
func (r *rig) until(t testing.TB, name string) watch.Status {
	t.Helper()
	s, err := r.remote.Wait(t.Context(), "", name, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
