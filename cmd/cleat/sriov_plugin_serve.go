package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/internal/linux/ddptool"
	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// sriovPluginServer is cleat sriov plugin.
type sriovPluginServer struct {
	server.Server
	config          plugin.Config
	controlSocket   string
	kubeletDir      string
	registrationDir string
	registration    string
	podResources    string
	pod             string
	own             podresources.Pod // parsed from pod

	plugin  *plugin.Plugin
	hangups chan os.Signal
}

// withdrawTimeout leaves time for the rest of the shutdown.
const withdrawTimeout = 20 * time.Second

// controlKeepalive is the idle time before a ping to a daemon.
const controlKeepalive = 10 * time.Second

// Assemble implements server.Program.
func (s *sriovPluginServer) Assemble(context.Context) error {
	// Handle SIGHUP from here on: its default action ends the process.
	s.hangups = make(chan os.Signal, 1)
	signal.Notify(s.hangups, syscall.SIGHUP)
	s.AddState(s.open)
	s.OnClose(func(context.Context) error { signal.Stop(s.hangups); return nil })
	s.Add(server.Part{Name: "device plugin", Prepare: s.create})
	s.AddTelemetry()
	s.Add(server.Part{Name: "plugin", Run: s.run, Stop: s.withdraw})
	if !s.config.Controlled {
		return nil
	}
	s.AddService(server.Service{
		Name: "control",
		GRPC: server.GRPCConfig{Code: control.Code, Quiet: control.Quiet, Keepalive: controlKeepalive},
		Register: func(r grpc.ServiceRegistrar) error {
			control.NewServer(control.ServerConfig{Plugin: s.plugin, Version: release, Logger: s.Logger}).Register(r)
			return nil
		},
		Listen: func(ctx context.Context) (net.Listener, error) {
			return s.ListenPrivileged(ctx, unixsock.Address{Path: s.controlSocket})
		},
		Event: "serving control interface",
		Attrs: []any{"endpoint", "unix://" + s.controlSocket},
	})
	// First, since it ends the streams of daemons.
	s.Add(server.Part{Name: "withdrawal", Stop: s.withdraw})
	return nil
}

// open opens what the plugin uses.
func (s *sriovPluginServer) open(ctx context.Context) error {
	c := &s.config
	var err error
	if c.Memory, err = s.openGrants(ctx); err != nil {
		return err
	}
	pods := podresources.NewInPod(s.podResources, s.own)
	s.OnClose(func(context.Context) error { return pods.Close() })
	c.Pods, c.Watch, c.Logger, c.Metrics = pods, s.watch, s.Logger, s.Metrics
	c.Discovery.Devlink, c.Discovery.Profiles = new(devlink.Recent), new(ddptool.Tool)
	if s.registration == registerWatcher {
		watcher := watchedDirectory{register.NewDirectory(s.registrationDir, s.Logger, s.Metrics)}
		s.OnClose(watcher.Close)
		c.Registrar, c.EndpointDir, c.Hidden = watcher, s.registrationDir, true
	} else {
		kubelet := plugin.Kubelet{Dir: filepath.Join(s.kubeletDir, "device-plugins")}
		c.Registrar, c.EndpointDir, c.Restarts = kubelet, kubelet.Dir, kubelet.Restarts
	}
	return nil
}

// create reads the plugin's configuration.
func (s *sriovPluginServer) create(context.Context) (err error) {
	if s.plugin, err = plugin.New(s.config); err != nil {
		return err
	}
	s.Check("plugin", s.plugin.Check)
	s.Status("sriov", func(context.Context) (any, error) { return s.plugin.Document(), nil })
	return nil
}

// watchedDirectory registers resources in the directory that the kubelet watches.
type watchedDirectory struct{ *register.Directory }

// Register implements plugin.Registrar.
func (w watchedDirectory) Register(ctx context.Context, r plugin.Registration) error {
	return w.Directory.Register(ctx, register.Plugin{Type: register.Device, Name: r.Resource, Endpoint: r.Endpoint, Versions: []string{"v1beta1"}})
}

// openGrants opens the record of devices allocated to pods. It is optional,
// since the kubelet reports them too: it is omitted if the default directory
// cannot be created, as on the read-only root of the upstream plugin's pod; a
// damaged one is moved aside.
func (s *sriovPluginServer) openGrants(ctx context.Context) (plugin.Memory, error) {
	err := os.MkdirAll(s.StateDir, 0o700)
	if s.StateDir == sriovPluginState && (errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission)) {
		s.Logger.Warn("no state directory, allocations will be lost on restart: set --state-dir, or mount a host directory", "path", s.StateDir, "err", err)
		return nil, nil
	}
	open := func() (plugin.Memory, error) {
		record, err := s.OpenStore(ctx, "plugin.db", store.Options{Role: grants.Role, Version: grants.Version, Preallocate: 1 << 20})
		if err != nil {
			return nil, err
		}
		memory, err := grants.Open(ctx, record)
		if err != nil {
			return nil, errors.Join(err, record.Close())
		}
		return memory, nil
	}
	memory, err := open()
	if !errors.Is(err, store.ErrDamaged) {
		return memory, err
	}
	file := filepath.Join(s.StateDir, "plugin.db")
	aside := fmt.Sprintf("%s.damaged-%d", file, time.Now().Unix())
	s.Logger.Error("allocation record damaged, starting a new one: functions in pods can be missed until the kubelet reports them",
		"err", err, "target", aside)
	if err := os.Rename(file, aside); err != nil {
		return nil, err
	}
	return open()
}

// watch calls kick after changes of the machine, and reloads on SIGHUP.
func (s *sriovPluginServer) watch(ctx context.Context, kick func()) error {
	ended := make(chan error, 1)
	go func() {
		ended <- inventory.Watch(ctx, inventory.WatchConfig{Warn: func(err error) {
			s.Logger.Warn("function watch failed, changes are found at the next rescan", "err", err)
		}}, kick)
	}()
	for {
		select {
		case <-s.hangups:
			s.Logger.Info("reloading", "signal", "hangup")
			s.plugin.Reload()
		case err := <-ended:
			return err
		}
	}
}

func (s *sriovPluginServer) run(ctx context.Context) error {
	s.Logger.Info("SR-IOV device plugin started", "path", s.config.ConfigFile, "controlled", s.config.Controlled,
		"registration", s.registration, "kubelet", s.kubeletDir, "version", release)
	if s.config.Controlled {
		s.Logger.Info("waiting for a config daemon before offering devices", "endpoint", "unix://"+s.controlSocket)
	}
	return s.plugin.Run(ctx)
}

func (s *sriovPluginServer) withdraw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	return s.plugin.Stop(ctx)
}
