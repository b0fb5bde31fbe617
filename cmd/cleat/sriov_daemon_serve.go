package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// sriovDaemonServer is cleat sriov daemon put together. Its fields are set in
// the order in which start needs them.
type sriovDaemonServer struct {
	flags     sriovDaemonFlags
	logger    *slog.Logger
	registry  *prometheus.Registry
	telemetry *server.Telemetry
	store     *store.Store
	pods      *podresources.Client // nil: there is no kubelet
	host      *host.Host
	keeper    *control.Keeper
	daemon    *daemon.Daemon
}

func serveSriovDaemon(ctx context.Context, f sriovDaemonFlags, logs io.Writer) error {
	s := &sriovDaemonServer{flags: f}
	var err error
	if s.logger, err = server.NewLogger(logs, f.logFormat, f.logLevel); err != nil {
		return err
	}
	s.registry = server.NewRegistry(server.Build{Version: release, Commit: strings.Trim(revision(), " ()")})
	s.telemetry = server.NewTelemetry(s.registry, s.logger)
	// A step under way ends before the gate is let go of.
	return server.Run(ctx, server.Options{Logger: s.logger, Bound: stopBound},
		server.Part{Name: "state", Prepare: s.open, Stop: s.close},
		server.Part{Name: "telemetry", Prepare: s.listenTelemetry, Start: s.telemetry.Serve, Stop: s.telemetry.Stop},
		untilStopped("keeper", func(ctx context.Context) error { return s.keeper.Run(ctx) }),
		untilStopped("daemon", func(ctx context.Context) error { return s.daemon.Run(ctx) }),
	)
}

// untilStopped is a part that runs until its context ends.
func untilStopped(name string, run func(context.Context) error) server.Part {
	told, tell := context.WithCancel(context.Background())
	return server.Part{
		Name: name,
		Start: func(ctx context.Context) error {
			ctx, end := context.WithCancel(ctx)
			defer end()
			defer context.AfterFunc(told, end)()
			if err := run(ctx); told.Err() == nil || !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
		Stop: func(context.Context) error { tell(); return nil },
	}
}

// open makes the daemon. Nothing is asked or changed yet.
func (s *sriovDaemonServer) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	if err := os.MkdirAll(s.flags.stateDir, 0o700); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if s.store, err = store.Open(ctx, s.flags.record(), store.Options{Role: daemon.Role, Version: daemon.Version, Preallocate: 1 << 20}); err != nil {
		return err
	}
	if s.keeper, err = control.NewKeeper(control.KeeperConfig{Socket: s.flags.controlSocket, Logger: s.logger, Metrics: s.registry, Recheck: true}); err != nil {
		return fmt.Errorf("--control-socket: %w", err)
	}
	c := daemon.Config{
		Rules: s.flags.rules(), Store: s.store, Gate: s.keeper, PluginConfig: s.flags.pluginConfig, GUIDFile: s.flags.guidFile,
		Watch: s.watch, Logger: s.logger, Metrics: s.registry,
	}
	s.pods, s.host = s.flags.look(&c)
	if c.Source, err = s.source(&c); err != nil {
		return err
	}
	s.daemon, err = daemon.New(c)
	return err
}

// record is the path of what is remembered.
func (f *sriovDaemonFlags) record() string { return filepath.Join(f.stateDir, "sriov-daemon.db") }

// look gives a config its machine and its kubelet.
func (f *sriovDaemonFlags) look(c *daemon.Config) (*podresources.Client, *host.Host) {
	machine := f.host
	machine.Sysfs = f.sysfsRoot
	h := host.New(machine)
	c.Host = h
	if f.podResources == "" {
		return nil, h
	}
	pods := podresources.NewInPod(f.podResources, f.own)
	c.Pods = pods
	return pods, h
}

// source is where the node state comes from. With an object, what becomes of it
// is reported.
func (s *sriovDaemonServer) source(c *daemon.Config) (source.Source, error) {
	from, cluster, err := s.flags.source(s.logger)
	if cluster != nil && s.flags.parsed == daemon.Apply && s.flags.writeStatus {
		c.Report = cluster.UpdateStatus
	}
	return from, err
}

func (f *sriovDaemonFlags) source(logger *slog.Logger) (source.Source, *source.Cluster, error) {
	if f.nodeState != "" {
		return source.NewFile(f.nodeState, logger), nil, nil
	}
	cluster, err := source.NewCluster(source.ClusterConfig{
		Kubeconfig: f.kubeconfig, Namespace: f.namespace, Node: f.node, UserAgent: "cleat-sriov-daemon/" + release, Logger: logger,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%w (a file is given by --node-state)", err)
	}
	return cluster, cluster, nil
}

func (s *sriovDaemonServer) watch(ctx context.Context, kick func()) error {
	return discovery.Watch(ctx, discovery.WatchConfig{Warn: func(err error) {
		s.logger.Warn("changes of functions may go unseen until the next look", "error", err)
	}}, kick)
}

func (s *sriovDaemonServer) listenTelemetry(ctx context.Context) error {
	s.telemetry.Check("sriov", s.daemon.Check)
	s.telemetry.Status("sriov", func(context.Context) (any, error) { return s.daemon.Status(), nil })
	return s.telemetry.Listen(ctx, s.flags.metricsAddress)
}

func (s *sriovDaemonServer) close(ctx context.Context) error {
	var errs []error
	if s.host != nil {
		errs = append(errs, s.host.Close(ctx))
	}
	if s.pods != nil {
		errs = append(errs, s.pods.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}
