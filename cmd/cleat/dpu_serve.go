package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/dpu/hostfs"
	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/plugin"
	"github.com/cleatproject/cleat/dpu/service"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/spdk"
)

// dpuServer is cleat dpu.
type dpuServer struct {
	server.Server
	sample                                  string // command name of the process
	hostname                                string
	pluginSocket                            string
	snapSocket                              string
	cluster, node                           string
	hostNQN                                 string
	pools                                   map[string]string
	lossTimeout, reconnectDelay, fastIOFail int // seconds
	answerWithin                            time.Duration
	oldStates                               []string // of earlier releases; set by Complete
	keepsNode                               bool     // a recorded name overrides node; set by Complete
	plan                                    plan.Settings
	mounts                                  hostfs.Config
	objects                                 object.Config
	service                                 service.Config

	plugin *plugin.Plugin
}

// Assemble implements server.Program.
func (s *dpuServer) Assemble(context.Context) error {
	s.AddState(s.open)
	s.AddTelemetry()
	s.Add(server.Part{ // from before the first call until after the last
		Name: "plugin",
		Run:  func(ctx context.Context) error { return s.plugin.Run(ctx) },
		Stop: s.closePlugin,
	})
	s.AddService(server.Service{
		Name:     "dpu",
		GRPC:     server.GRPCConfig{Code: service.Code, Private: service.Private(), Quiet: quietDPUMethod},
		Register: s.register,
		Listen:   s.listen,
		Event:    "serving DPU storage plugin",
		Attrs: []any{"endpoint", "unix://" + s.pluginSocket, "plugin", s.plan.Plugin, "provider", s.service.Provider,
			"snap", s.snapSocket, "version", release},
		CancelWaiting: s.closePlugin,
	})
	return nil
}

func (s *dpuServer) closePlugin(ctx context.Context) error { return s.plugin.Close(ctx) }

// snapTimeout of calls other than an attach is long: the result of a call that
// timed out is unknown.
const snapTimeout = 2 * time.Minute

// open does not need a running SNAP.
func (s *dpuServer) open(ctx context.Context) error {
	record, err := s.openRecord(ctx)
	if err != nil {
		return err
	}
	devices, err := table.Open(ctx, record)
	if err != nil {
		return err
	}
	snap, err := spdk.Open(spdk.Config{Socket: s.snapSocket, Timeout: snapTimeout, Logger: s.Logger, Metrics: s.Metrics})
	if err != nil {
		return err
	}
	s.OnClose(func(context.Context) error { return snap.Close() })
	s.mounts.Logger, s.mounts.Helper = s.Logger, helper(hostfs.HelperCommand)
	mounts, err := hostfs.Open(s.mounts)
	if err != nil {
		return err
	}
	s.objects.RPC, s.objects.Mounts, s.objects.Logger = snap, mounts, s.Logger
	objects, err := object.New(s.objects)
	if err != nil {
		return err
	}
	if s.plugin, err = plugin.New(plugin.Config{
		Settings: s.plan, Table: devices, RPC: snap, Objects: objects, AnswerWithin: s.answerWithin, Logger: s.Logger, Metrics: s.Metrics,
	}); err != nil {
		return err
	}
	s.Check("snap", s.plugin.Check)
	s.Status("dpu", func(ctx context.Context) (any, error) { return s.plugin.Status(ctx) })
	return nil
}

// openRecord opens the record, moved from an earlier release's directory if
// necessary, and restores the node's name.
func (s *dpuServer) openRecord(ctx context.Context) (*store.Store, error) {
	if err := os.MkdirAll(filepath.Dir(s.StateDir), 0o755); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	if err := os.Mkdir(s.StateDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	const file = "dpu.db"
	options := store.Options{Role: table.Role, Version: table.Version, Preallocate: 1 << 20}
	for _, dir := range s.oldStates {
		old, path := filepath.Join(dir, file), filepath.Join(s.StateDir, file)
		moved, err := store.Move(ctx, old, path, options)
		if err != nil {
			return nil, fmt.Errorf("move the record of an earlier release to %s (use --state-dir %s to keep it in place): %w", s.StateDir, dir, err)
		}
		if moved {
			s.Logger.Info("record moved", "source", old, "target", path)
		}
	}
	record, err := s.OpenStore(ctx, file, options)
	if err != nil || !s.keepsNode {
		return record, err
	}
	return record, s.keepNode(ctx, record)
}

// keepNode records the first host name as the node's name: a pod's host name
// changes, and the host NQN, which targets admit, must not.
func (s *dpuServer) keepNode(ctx context.Context, record *store.Store) error {
	const key = "node"
	names := store.Bucket[string]{Name: "names"}
	err := record.Update(ctx, func(tx *store.Tx) error {
		first, known, err := names.Get(tx, key)
		if err != nil {
			return err
		}
		if known {
			s.node = first
			return nil
		}
		return names.Put(tx, key, s.node)
	})
	if err != nil {
		return err
	}
	return s.identify()
}

func (s *dpuServer) register(r grpc.ServiceRegistrar) error {
	s.service.Version, s.service.Devices = release, s.plugin
	s.service.Manifest = map[string]string{
		"program": "cleat", "commit": build().Commit, "snap-socket": s.snapSocket,
		"host-nqn": s.plan.HostNQN, // targets must admit it
	}
	x, err := service.New(s.service)
	if err == nil {
		x.Register(r)
	}
	return err
}

func (s *dpuServer) listen(ctx context.Context) (net.Listener, error) {
	a := unixsock.Address{Path: s.pluginSocket}
	if filepath.Dir(s.StateDir) == filepath.Dir(s.pluginSocket) {
		a.Beside = filepath.Base(s.StateDir)
	}
	return s.ListenPrivileged(ctx, a)
}

// quietDPUMethod selects calls that are not logged. The node driver calls
// GetDevice every 10 s per attachment, with methods that have constant answers.
func quietDPUMethod(method string) bool {
	return server.QuietMethod(method) || strings.HasSuffix(method, "/GetDevice") || strings.HasSuffix(method, "/GetSNAPProvider") ||
		strings.HasSuffix(method, "/StoragePluginGetCapabilities")
}
