package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/linux/ddptool"
	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/container"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// sriovPluginServer is cleat sriov plugin put together. Its fields are set in the
// order in which start needs them.
type sriovPluginServer struct {
	flags     sriovPluginFlags
	logger    *slog.Logger
	registry  *prometheus.Registry
	telemetry *server.Telemetry
	store     *store.Store
	pods      *podresources.Client
	watcher   *pluginWatcher // nil: the kubelet is called
	plugin    *plugin.Plugin
	server    *server.GRPC
	listener  net.Listener
	hangups   chan os.Signal
}

func serveSriovPlugin(ctx context.Context, f sriovPluginFlags, logs io.Writer) error {
	if err := f.complete(); err != nil {
		return err
	}
	s := &sriovPluginServer{flags: f, hangups: make(chan os.Signal, 1)}
	signal.Notify(s.hangups, syscall.SIGHUP) // from here on, as one that nobody takes would end the process
	defer signal.Stop(s.hangups)
	var err error
	if s.logger, err = server.NewLogger(logs, f.logFormat, f.logLevel); err != nil {
		return err
	}
	s.registry = server.NewRegistry(server.Build{Version: release, Commit: strings.Trim(revision(), " ()")})
	s.telemetry = server.NewTelemetry(s.registry, s.logger)
	parts := []server.Part{
		{Name: "state", Prepare: s.open, Stop: s.close},
		{Name: "telemetry", Prepare: s.listenTelemetry, Start: s.telemetry.Serve, Stop: s.telemetry.Stop},
		{Name: "plugin", Start: s.run, Stop: s.stopPlugin},
	}
	if f.controlled {
		parts = append(parts, server.Part{Name: "control", Prepare: s.listen, Start: s.serve, Stop: s.drain})
	}
	return server.Run(ctx, server.Options{Logger: s.logger, Bound: stopBound}, parts...)
}

// open makes the plugin, of which nothing shows yet.
func (s *sriovPluginServer) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	memory, err := s.remember(ctx)
	if err != nil {
		return err
	}
	s.pods = podresources.NewInPod(s.flags.podResources, s.flags.own)
	c := plugin.Config{
		ConfigFile: s.flags.configFile, Prefix: s.flags.prefix, Strict: s.flags.strict,
		Controlled: s.flags.controlled, Bound: s.flags.withdrawWithin, LinkHealth: s.flags.linkHealth,
		Discovery: discovery.Config{Sysfs: s.flags.sysfsRoot, Dev: s.flags.devRoot, Devlink: new(devlink.Recent), Profiles: new(ddptool.Tool)}, Interval: s.flags.rescan,
		Watch: s.watch, Pods: s.pods, Memory: memory,
		Files: container.Files{DeviceInfo: s.flags.deviceInfoDir, CDI: s.flags.cdiDir}, CDI: s.flags.useCDI,
		Logger: s.logger, Metrics: s.registry,
	}
	s.register(&c)
	s.plugin, err = plugin.New(c)
	return err
}

// register chooses how the kubelet hears of resources.
func (s *sriovPluginServer) register(c *plugin.Config) {
	if s.flags.registration == registerWatcher {
		s.watcher = newPluginWatcher(s.flags.registrationDir, s.logger, s.registry)
		c.Registrar, c.EndpointDir, c.Hidden = s.watcher, s.flags.registrationDir, true
		return
	}
	kubelet := plugin.Kubelet{Dir: filepath.Join(s.flags.kubeletDir, "device-plugins")}
	c.Registrar, c.EndpointDir, c.Restarts = kubelet, kubelet.Dir, kubelet.Restarts
}

// watch tells of changes of the machine, and of SIGHUP.
func (s *sriovPluginServer) watch(ctx context.Context, kick func()) error {
	ended := make(chan error, 1)
	go func() {
		ended <- discovery.Watch(ctx, discovery.WatchConfig{Warn: func(err error) {
			s.logger.Warn("changes of functions may go unseen until the next scan", "error", err)
		}}, kick)
	}()
	for {
		select {
		case <-s.hangups:
			s.logger.Info("told to look again")
			s.plugin.Reload()
		case err := <-ended:
			return err
		}
	}
}

func (s *sriovPluginServer) close(ctx context.Context) error {
	var errs []error
	if s.watcher != nil {
		errs = append(errs, s.watcher.close(ctx))
	}
	if s.pods != nil {
		errs = append(errs, s.pods.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}

func (s *sriovPluginServer) listenTelemetry(ctx context.Context) error {
	s.telemetry.Check("plugin", s.plugin.Check)
	s.telemetry.Status("sriov", func(context.Context) (any, error) { return s.plugin.Document(), nil })
	return s.telemetry.Listen(ctx, s.flags.metricsAddress)
}

func (s *sriovPluginServer) run(ctx context.Context) error {
	s.logger.Info("the SR-IOV device plugin runs", "config", s.flags.configFile, "controlled", s.flags.controlled,
		"registration", s.flags.registration, "kubelet", s.flags.kubeletDir, "version", release)
	if s.flags.controlled {
		s.logger.Info("nothing is offered until a config daemon answers for the devices", "endpoint", "unix://"+s.flags.controlSocket)
	}
	return s.plugin.Run(ctx)
}

// lingerBound is how long the end may take for everything to be taken back. It
// leaves the rest of the stop its time.
const lingerBound = 20 * time.Second

func (s *sriovPluginServer) stopPlugin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lingerBound)
	defer cancel()
	return s.plugin.Stop(ctx)
}

func (s *sriovPluginServer) listen(ctx context.Context) (err error) {
	if s.server, err = server.NewGRPC(server.GRPCConfig{
		Logger: s.logger, Metrics: s.registry, Code: control.Code, Quiet: control.Quiet, Keepalive: controlKeepalive,
	}); err != nil {
		return err
	}
	control.NewServer(control.ServerConfig{Plugin: s.plugin, Version: release, Logger: s.logger}).Register(s.server)
	s.listener, err = listenPrivileged(ctx, unixsock.Address{Path: s.flags.controlSocket}, s.flags.allowUIDs, s.logger)
	return err
}

// controlKeepalive is how long a silent daemon is taken to live before it is
// asked.
const controlKeepalive = 10 * time.Second

func (s *sriovPluginServer) serve(ctx context.Context) error {
	s.logger.Info("the control interface is served", "endpoint", "unix://"+s.flags.controlSocket)
	return s.server.Serve(ctx, s.listener)
}

// drain takes everything back first, with which the streams of daemons end.
func (s *sriovPluginServer) drain(ctx context.Context) error {
	return errors.Join(s.stopPlugin(ctx), s.server.Drain(ctx))
}
