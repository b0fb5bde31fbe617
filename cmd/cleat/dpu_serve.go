package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/dpu/hostfs"
	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/plugin"
	"github.com/cleatproject/cleat/dpu/pool"
	"github.com/cleatproject/cleat/dpu/service"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/spdk"
)

// dpuServer is cleat dpu put together. Its fields are set in the order in which
// start needs them.
type dpuServer struct {
	flags     dpuFlags
	logger    *slog.Logger
	registry  *prometheus.Registry
	telemetry *server.Telemetry
	store     *store.Store
	snap      *spdk.Client
	plugin    *plugin.Plugin
	server    *server.GRPC
	listener  net.Listener
}

func serveDPU(ctx context.Context, f dpuFlags, logs io.Writer) error {
	if err := f.complete(); err != nil {
		return err
	}
	s := &dpuServer{flags: f}
	var err error
	if s.logger, err = server.NewLogger(logs, f.logFormat, f.logLevel); err != nil {
		return err
	}
	s.registry = server.NewRegistry(server.Build{Version: release, Commit: strings.Trim(revision(), " ()")})
	s.telemetry = server.NewTelemetry(s.registry, s.logger)
	return server.Run(ctx, server.Options{Logger: s.logger, Bound: stopBound},
		server.Part{Name: "state", Prepare: s.open, Stop: s.close},
		server.Part{Name: "telemetry", Prepare: s.listenTelemetry, Start: s.telemetry.Serve, Stop: s.telemetry.Stop},
		server.Part{Name: "keeper", Start: s.keep, Stop: s.stopPlugin},
		server.Part{Name: "dpu", Prepare: s.listen, Start: s.serve, Stop: s.drain},
	)
}

// snapTimeout bounds a call of SNAP that is not an attach. It is long: a call
// that is given up may be carried out all the same, and is then in doubt.
const snapTimeout = 2 * time.Minute

// open makes the plugin on what is on record. SNAP need not be there yet.
func (s *dpuServer) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	if s.store, err = s.openStore(ctx); err != nil {
		return err
	}
	if err := s.keepNode(ctx); err != nil {
		return err
	}
	c := plugin.Config{AnswerWithin: s.flags.answerWithin, Logger: s.logger, Metrics: s.registry}
	if c.Settings, err = s.flags.settings(); err != nil {
		return err
	}
	if c.Table, err = table.Open(ctx, s.store); err != nil {
		return err
	}
	if s.snap, err = spdk.Open(spdk.Config{Socket: s.flags.snapSocket, Timeout: snapTimeout, Logger: s.logger, Metrics: s.registry}); err != nil {
		return err
	}
	c.RPC = s.snap
	if c.Objects, err = s.objects(); err != nil {
		return err
	}
	s.plugin, err = plugin.New(c)
	return err
}

// openStore opens the record, after it was moved to where it is kept by now.
func (s *dpuServer) openStore(ctx context.Context) (*store.Store, error) {
	if err := os.MkdirAll(filepath.Dir(s.flags.stateDir), 0o755); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	if err := os.Mkdir(s.flags.stateDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	path := filepath.Join(s.flags.stateDir, "dpu.db")
	options := store.Options{Role: table.Role, Version: table.Version, Preallocate: 1 << 20}
	for _, dir := range s.flags.oldStates {
		old := filepath.Join(dir, "dpu.db")
		moved, err := store.Move(ctx, old, path, options)
		if err != nil {
			return nil, fmt.Errorf("the record of an earlier release cannot be moved to %s; with --state-dir %s it stays: %w", s.flags.stateDir, dir, err)
		}
		if moved {
			s.logger.Info("record moved", "from", old, "to", path)
		}
	}
	return store.Open(ctx, path, options)
}

// keepNode takes the host name of the first start for the node's when none is
// given: that of a pod changes, and with it the host that targets know.
func (s *dpuServer) keepNode(ctx context.Context) error {
	if !s.flags.keepsNode {
		return nil
	}
	const key = "node"
	names := store.Bucket[string]{Name: "names"}
	return s.store.Update(ctx, func(tx *store.Tx) error {
		first, known, err := names.Get(tx, key)
		if err != nil {
			return err
		}
		if known {
			s.flags.node = first
			return nil
		}
		return names.Put(tx, key, s.flags.node)
	})
}

func (s *dpuServer) objects() (*object.Maker, error) {
	pools, err := pool.Parse(s.flags.pools)
	if err != nil {
		return nil, err
	}
	mounts, err := hostfs.Open(hostfs.Config{
		Dir: s.flags.volumeDir, Pools: pools, KeyDir: s.flags.keyDir, CephDir: s.flags.cephDir,
		Logger: s.logger, Helper: mountHelper(),
	})
	if err != nil {
		return nil, err
	}
	return object.New(object.Config{
		RPC: s.snap, Mounts: mounts, Pools: pools, KeyDir: s.flags.keyDir, CephDir: s.flags.cephDir,
		TCP: object.TCP(s.flags.tcp), AIOBlockSize: s.flags.aioBlockSize, Logger: s.logger,
	})
}

// keep runs beside the calls, from before the first to after the last.
func (s *dpuServer) keep(ctx context.Context) error { return s.plugin.Run(ctx) }

func (s *dpuServer) stopPlugin(ctx context.Context) error { return s.plugin.Close(ctx) }

func (s *dpuServer) close(context.Context) error {
	var errs []error
	if s.snap != nil {
		errs = append(errs, s.snap.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}

func (s *dpuServer) listenTelemetry(ctx context.Context) error {
	s.telemetry.Check("snap", s.plugin.Check)
	s.telemetry.Status("dpu", func(ctx context.Context) (any, error) { return s.plugin.Status(ctx) })
	return s.telemetry.Listen(ctx, s.flags.metricsAddress)
}

func (s *dpuServer) listen(ctx context.Context) error {
	settings, err := s.flags.settings()
	if err != nil {
		return err
	}
	face, err := service.New(service.Config{
		Name: s.flags.name, Version: release, Provider: s.flags.providerName, Devices: s.plugin,
		Manifest: map[string]string{
			"program": "cleat", "commit": strings.Trim(revision(), " ()"), "snap-socket": s.flags.snapSocket,
			"host-nqn": settings.HostNQN, // which whoever runs a target has to admit
		},
	})
	if err != nil {
		return err
	}
	if s.server, err = server.NewGRPC(server.GRPCConfig{
		Logger: s.logger, Metrics: s.registry, Code: service.Code, Private: service.Private(), Quiet: quietDPUMethod,
	}); err != nil {
		return err
	}
	face.Register(s.server)
	s.listener, err = listenPrivileged(ctx, unixsock.Address{Path: s.flags.pluginSocket, Beside: s.besideSocket()}, s.flags.allowUIDs, s.logger)
	return err
}

// besideSocket is the name of the state directory when the socket's has it.
func (s *dpuServer) besideSocket() string {
	if filepath.Dir(s.flags.stateDir) != filepath.Dir(s.flags.pluginSocket) {
		return ""
	}
	return filepath.Base(s.flags.stateDir)
}

// quietDPUMethod: the heartbeat asks GetDevice every 10 s for each attachment,
// and what is always the same is asked before each of them.
func quietDPUMethod(method string) bool {
	return server.QuietMethod(method) || strings.HasSuffix(method, "/GetDevice") || strings.HasSuffix(method, "/GetSNAPProvider") ||
		strings.HasSuffix(method, "/StoragePluginGetCapabilities")
}

func (s *dpuServer) serve(ctx context.Context) error {
	s.logger.Info("DPU devices are served", "endpoint", "unix://"+s.flags.pluginSocket, "plugin", s.flags.pluginName, "provider", s.flags.providerName,
		"snap", s.flags.snapSocket, "version", release)
	return s.server.Serve(ctx, s.listener)
}

func (s *dpuServer) drain(ctx context.Context) error {
	return drainOrBreakOff(ctx, s.server, s.plugin.Close)
}
