package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/claim"
	"github.com/cleatproject/cleat/kubelet/handler/csi"
	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/handler/generic"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// knownTypes are registered by any host.
func knownTypes() []string { return []string{csi.Type, register.DRA, device.Type} }

// pluginHost is cleat host put together. Its fields are set in the order in
// which start needs them.
type pluginHost struct {
	flags     hostFlags
	logger    *slog.Logger
	registry  *prometheus.Registry
	telemetry *server.Telemetry
	drivers   *csi.Handler
	devices   *device.Handler
	others    *generic.Handler
	host      *watch.Host
	claim     *claim.Claim
	service   *remote.Service
	server    *server.GRPC
	listener  net.Listener
	screen    *cli.Screen // nil: no table is shown
	out       io.Writer
}

func serveHost(ctx context.Context, f hostFlags, out, logs io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	h := &pluginHost{flags: f, out: out}
	if terminal, ok := out.(*os.File); ok && f.output == "table" && cli.IsTerminal(out) {
		h.screen = cli.NewScreen(terminal)
		if cli.IsTerminal(logs) {
			logs = h.screen
		}
		if !f.settings.Changed("log-level") { // the table tells the rest
			f.logLevel = "error"
		}
	}
	var err error
	if h.logger, err = server.NewLogger(logs, f.logFormat, f.logLevel); err != nil {
		return err
	}
	h.registry = server.NewRegistry(server.Build{Version: release, Commit: strings.Trim(revision(), " ()")})
	h.telemetry = server.NewTelemetry(h.registry, h.logger)
	if err := h.assemble(); err != nil {
		return err
	}
	devices := &deviceRegistration{host: h}
	cli.IgnoreBrokenPipes() // who reads the output may go; the plugins stay
	return server.Run(ctx, server.Options{Logger: h.logger, Bound: stopBound},
		server.Part{Name: "telemetry", Prepare: h.listenTelemetry, Start: h.telemetry.Serve, Stop: h.telemetry.Stop},
		server.Part{Name: "directory", Prepare: h.take, Stop: h.giveBack},
		server.Part{Name: "plugins", Prepare: h.start, Start: h.serve, Stop: h.stop},
		server.Part{Name: "device plugins", Prepare: devices.listen, Start: devices.serve, Stop: devices.stop},
		server.Part{Name: "output", Start: h.show},
	)
}

// assemble makes the host with a handler for each type, and what serves it.
func (h *pluginHost) assemble() error {
	h.drivers, h.others = csi.New(csi.Options{}), generic.New(generic.Options{})
	h.devices = device.New(device.Options{Logger: h.logger})
	handlers := map[string]watch.Handler{}
	for _, kind := range h.types() {
		handlers[kind] = h.others
	}
	handlers[csi.Type], handlers[device.Type] = h.drivers, h.devices
	var err error
	h.host, err = watch.New(watch.Options{
		Dir: h.flags.pluginsDir, Handlers: handlers, Grace: h.flags.grace, Peer: h.flags.peer(),
		Logger: h.logger, Metrics: h.registry,
	})
	if err != nil {
		return err
	}
	h.service = remote.NewService(remote.Config{
		Host: h.host, Serving: h.serving, Resources: h.devices.Resources,
		Info: remote.Info{Version: release, Directory: h.flags.pluginsDir, Types: h.types(), Started: time.Now(), PID: os.Getpid()},
	})
	if h.server, err = server.NewGRPC(server.GRPCConfig{
		Logger: h.logger, Metrics: h.registry, Code: remote.Code,
		Quiet: func(string) bool { return true }, // all calls only ask
	}); err != nil {
		return err
	}
	h.service.Register(h.server)
	return nil
}

func (h *pluginHost) types() []string {
	all := slices.Concat(knownTypes(), h.flags.pluginTypes)
	slices.Sort(all)
	return slices.Compact(all)
}

// serving asks the handler of a type which endpoint of a name it would use.
func (h *pluginHost) serving(kind, name string) (endpoint string, known bool) {
	switch kind {
	case csi.Type:
		d, found := h.drivers.Driver(name)
		return d.Endpoint, found
	case device.Type:
		r, found := h.devices.Resource(name)
		return r.Endpoint, found
	}
	p, found := h.others.Serving(kind, name)
	return p.Endpoint, found
}

func (h *pluginHost) listenTelemetry(ctx context.Context) error {
	h.telemetry.Check("plugins", func(context.Context) error { return h.host.Health() })
	h.telemetry.Status("host", h.status)
	return h.telemetry.Listen(ctx, h.flags.metricsAddress)
}

func (h *pluginHost) take(context.Context) error {
	var err error
	h.claim, err = claim.Take(h.flags.pluginsDir, h.flags.besideKubelet)
	if errors.Is(err, claim.ErrKubelet) {
		return fmt.Errorf("%w: choose another directory with --plugins-dir, or give every plugin two hosts with --beside-kubelet", err)
	}
	return err
}

func (h *pluginHost) giveBack(context.Context) error { return h.claim.Release() }

// start binds the socket first: where another host serves it, no plugin is
// touched.
func (h *pluginHost) start(ctx context.Context) error {
	path, err := unixsock.ParseEndpoint(h.flags.socket)
	if err != nil {
		return err
	}
	h.listener, err = unixsock.Listen(ctx, unixsock.Address{Path: path, Group: h.flags.socketGroup, Mode: h.flags.socketMode()})
	if errors.Is(err, unixsock.ErrLive) {
		return fmt.Errorf("%w: ask that host with cleat plugins, or give this one another socket with --socket and another directory with --plugins-dir", err)
	}
	if err != nil {
		return err
	}
	if err := h.host.Start(ctx); err != nil {
		h.devices.Close()
		return errors.Join(err, h.listener.Close(), h.host.Close(ctx, false))
	}
	return nil
}

func (h *pluginHost) serve(ctx context.Context) error {
	h.logger.Info("plugins are registered", "directory", h.flags.pluginsDir, "types", h.types(), "socket", h.flags.socket, "version", release)
	return h.server.Serve(ctx, h.listener)
}

func (h *pluginHost) stop(ctx context.Context) error {
	h.service.Stop()
	defer h.devices.Close()
	return errors.Join(h.server.Drain(ctx), h.host.Close(ctx, h.flags.deregister))
}

// show tells the output what happens until the host ends. When nobody takes
// that any more, the process ends too.
func (h *pluginHost) show(ctx context.Context) error {
	all := following(remote.Follow(ctx, h.host))
	switch {
	case h.screen != nil:
		return showLive(ctx, h.screen, h.flags.pluginsDir, all)
	case h.flags.output == "json":
		return writeDocuments(h.out, all)
	case h.flags.output == "table":
		return writeLines(h.out, all)
	}
	return nil
}

// status is the host's part of /status.
func (h *pluginHost) status(context.Context) (any, error) {
	return struct {
		Version   string            `json:"version"`
		Directory string            `json:"directory"`
		Types     []string          `json:"types"`
		Plugins   []watch.Status    `json:"plugins"`
		Drivers   []csi.Driver      `json:"drivers"`
		Resources []device.Resource `json:"resources"`
		Others    []generic.Name    `json:"others"`
	}{
		Version: release, Directory: h.flags.pluginsDir, Types: h.types(), Plugins: h.host.List(),
		Drivers: h.drivers.Drivers(), Resources: h.devices.Resources(), Others: h.others.Names(),
	}, nil
}
