package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/nft"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/fence/sock"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
)

// fenceServer is cleat fence serve put together. Its fields are set in the
// order in which start needs them.
type fenceServer struct {
	flags     fenceServeFlags
	ports     ports.Set
	logger    *slog.Logger
	registry  *prometheus.Registry
	telemetry *server.Telemetry
	fencing   *fencing
	store     *store.Store
	filter    *nft.Filter   // nil with --peers-only
	sockets   *sock.Sockets // nil with --peers-only
}

func serveFences(ctx context.Context, f fenceServeFlags, logs io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	s := &fenceServer{flags: f}
	var err error
	if s.ports, err = f.portSet(); err != nil {
		return err
	}
	if s.logger, err = server.NewLogger(logs, f.logFormat, f.logLevel); err != nil {
		return err
	}
	s.registry = server.NewRegistry(server.Build{Version: release, Commit: strings.Trim(revision(), " ()")})
	s.telemetry = server.NewTelemetry(s.registry, s.logger)
	if s.fencing, err = newFencing(ctx, f.fenceFlags, f.name, s.logger, s.registry); err != nil {
		return err
	}
	parts := []server.Part{
		{Name: "state", Prepare: s.open, Stop: s.close},
		{Name: "telemetry", Prepare: s.listenTelemetry, Start: s.telemetry.Serve, Stop: s.telemetry.Stop},
	}
	s.fencing.serveSidecars(f.endpoint, service.Config{Offer: service.Offer{Fence: true}})
	s.fencing.servePeers()
	return server.Run(ctx, server.Options{Logger: s.logger, Bound: stopBound}, slices.Concat(parts, s.fencing.parts())...)
}

// open puts what is on record in force, before anything listens.
func (s *fenceServer) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	if err := os.MkdirAll(s.flags.stateDir, 0o700); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	var locals []enforce.Local
	if !s.flags.peersOnly {
		if locals, err = s.openHost(ctx); err != nil {
			return err
		}
	}
	path := filepath.Join(s.flags.stateDir, "fences.db")
	if err := s.checkRecord(ctx, path); err != nil {
		return err
	}
	if s.store, err = store.Open(ctx, path, store.Options{Role: "fences", Version: 1, Preallocate: 4 << 20}); err != nil {
		return err
	}
	return s.fencing.restore(ctx, ledger.New(s.store), locals, s.network)
}

// checkRecord refuses to begin a new record where the packet filter holds what
// an earlier one had: a state directory that was lost, or is the wrong one,
// must not open every fence.
func (s *fenceServer) checkRecord(ctx context.Context, path string) error {
	switch _, err := os.Stat(path); {
	case err == nil, s.filter == nil, s.flags.liftUnrecorded:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--state-dir: %w", err)
	}
	held, err := s.filter.Held(ctx)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		return fmt.Errorf("--state-dir %s has no record of fences, but table %s holds %d blocks, %s among them: give the directory that they were recorded in, or let all of them in again with --lift-unrecorded",
			s.flags.stateDir, s.flags.table, len(held), held[0])
	}
	return nil
}

func (s *fenceServer) openHost(ctx context.Context) ([]enforce.Local, error) {
	dir, err := filepath.Abs(s.flags.stateDir)
	if err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	if s.filter, err = nft.Open(ctx, nft.Config{
		Table: s.flags.table, Ports: s.ports, HolderSocket: filepath.Join(dir, "holder.sock"), Holder: []string{"/proc/self/exe", nft.HolderCommand}, Logger: s.logger,
	}); err != nil {
		return nil, err
	}
	if s.sockets, err = sock.Open(ctx, sock.Config{Ports: s.ports, KernelTargets: s.flags.kernelTargets, Logger: s.logger}); err != nil {
		return nil, err
	}
	return []enforce.Local{{Name: "host", Fencer: enforce.Host(s.filter, s.sockets), Changed: s.filter.Changed()}}, nil
}

// network is what blocks are checked against: this machine and the peers, which
// only a forced fence covers, and the broadcast addresses of this machine.
func (s *fenceServer) network(ctx context.Context) (request.Network, error) {
	own, err := netaddr.Own()
	if err != nil {
		return request.Network{}, err
	}
	broadcast, err := netaddr.Broadcast()
	return request.Network{Own: append(own, s.fencing.peerAddrs(ctx)...), Broadcast: broadcast}, err
}

// close leaves the fences in force: see nft.Filter.Close.
func (s *fenceServer) close(ctx context.Context) error {
	var errs []error
	if s.sockets != nil {
		errs = append(errs, s.sockets.Close())
	}
	if s.filter != nil {
		errs = append(errs, s.filter.Close(ctx))
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(append(errs, s.fencing.close())...)
}

func (s *fenceServer) listenTelemetry(ctx context.Context) error {
	s.telemetry.Check("fences", s.fencing.enforcer.Check)
	s.telemetry.Status("fences", s.status)
	return s.telemetry.Listen(ctx, s.flags.metricsAddress)
}

// status is the server's part of /status.
func (s *fenceServer) status(ctx context.Context) (any, error) {
	document := struct {
		Name    string       `json:"name"`
		Version string       `json:"version"`
		Ports   string       `json:"ports,omitempty"`
		Filter  *nft.Status  `json:"filter,omitempty"`
		Sockets *sock.Status `json:"sockets,omitempty"`
		enforce.Status
	}{Name: s.flags.name, Version: release}
	if s.filter != nil {
		filter, sockets := s.filter.Status(), s.sockets.Status()
		document.Ports, document.Filter, document.Sockets = s.ports.String(), &filter, &sockets
	}
	var err error
	document.Status, err = s.fencing.enforcer.Status(ctx)
	return document, err
}
