package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

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

// knownTypes are registered by every host.
func knownTypes() []string { return []string{csi.Type, register.DRA, device.Type} }

// hostServer is cleat host.
type hostServer struct {
	server.Server
	pluginsDir    string
	devicesDir    string
	pluginTypes   []string
	besideKubelet bool
	grace         time.Duration
	deregister    bool
	output        string
	screen        *cli.Screen // nil without a table

	drivers *csi.Handler
	devices *device.Handler
	others  *generic.Handler
	host    *watch.Host
}

// Assemble implements server.Program.
func (h *hostServer) Assemble(context.Context) error {
	h.drivers, h.others = csi.New(csi.Options{}), generic.New(generic.Options{})
	h.devices = device.New(device.Options{Logger: h.Logger})
	handlers := map[string]watch.Handler{}
	for _, kind := range h.types() {
		handlers[kind] = h.others
	}
	handlers[csi.Type], handlers[device.Type] = h.drivers, h.devices
	var err error
	h.host, err = watch.New(watch.Options{
		Dir: h.pluginsDir, Handlers: handlers, Grace: h.grace, Peer: h.checkPeer(), Logger: h.Logger, Metrics: h.Metrics,
	})
	if err != nil {
		return err
	}
	inventory := remote.NewService(remote.Config{
		Host: h.host, Serving: h.serving, Resources: h.devices.Resources,
		Info: remote.Info{Version: release, Directory: h.pluginsDir, Types: h.types(), Started: time.Now(), PID: os.Getpid()},
	})
	h.Check("plugins", func(context.Context) error { return h.host.Health() })
	h.Status("host", h.status)
	h.AddTelemetry()
	h.AddState(h.claim)
	h.AddService(server.Service{
		Name: "plugins",
		GRPC: server.GRPCConfig{Code: remote.Code, Quiet: func(string) bool { return true }}, // all calls only read
		Register: func(r grpc.ServiceRegistrar) error {
			inventory.Register(r)
			return nil
		},
		Listen: h.listen,
		Event:  "registering plugins",
		Attrs:  []any{"path", h.pluginsDir, "types", h.types(), "socket", h.Endpoint, "version", release},
	})
	// Stop Watch streams before calls are drained.
	h.Add(server.Part{Name: "watchers", Stop: func(context.Context) error { inventory.Stop(); return nil }})
	h.addDevices()
	h.Add(server.Part{Name: "output", Run: h.show})
	cli.IgnoreBrokenPipes() // plugins stay registered if the reader of the output exits
	return nil
}

func (h *hostServer) claim(context.Context) error {
	held, err := claim.Take(h.pluginsDir, h.besideKubelet)
	if errors.Is(err, claim.ErrKubelet) {
		return fmt.Errorf("%w: use another directory with --plugins-dir, or register every plugin twice with --beside-kubelet", err)
	}
	if err != nil {
		return err
	}
	h.OnClose(func(context.Context) error { return held.Release() })
	h.OnClose(func(ctx context.Context) error {
		defer h.devices.Close()
		return h.host.Close(ctx, h.deregister)
	})
	return nil
}

// listen binds the socket before the host starts: if another host serves it, no
// plugin is changed.
func (h *hostServer) listen(ctx context.Context) (net.Listener, error) {
	l, err := h.ListenEndpoint(ctx)
	if errors.Is(err, unixsock.ErrLive) {
		return nil, fmt.Errorf("%w: query that host with cleat plugins, or start this one with another --socket and --plugins-dir", err)
	}
	if err != nil {
		return nil, err
	}
	if err := h.host.Start(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// addDevices adds the parts for kubelet.sock, for device plugins that call
// Register.
func (h *hostServer) addDevices() {
	registration := device.NewRegistration(h.devicesDir, h.devices)
	besideKubelet := false
	h.AddService(server.Service{
		Name: "device plugins",
		GRPC: server.GRPCConfig{Code: func(error) codes.Code { return codes.Unknown }}, // as the kubelet answers
		Register: func(r grpc.ServiceRegistrar) error {
			v1beta1.RegisterRegistrationServer(r, registration)
			return nil
		},
		Listen: func(ctx context.Context) (net.Listener, error) {
			l, err := h.listenDevices(ctx, registration)
			besideKubelet = l == nil
			return l, err
		},
		Event: "registering device plugins",
		Attrs: []any{"endpoint", "unix://" + filepath.Join(h.devicesDir, device.KubeletSocket)},
	})
	h.Add(server.Part{Name: "device plugin sockets", Run: func(ctx context.Context) error {
		if !besideKubelet {
			registration.Run(ctx)
		}
		return nil
	}})
}

// listenDevices returns nil if a kubelet serves the socket.
func (h *hostServer) listenDevices(ctx context.Context, registration *device.Registration) (net.Listener, error) {
	err := registration.Clear(ctx)
	if err == nil {
		var l *unixsock.Lasting
		l, err = unixsock.ListenLasting(ctx, unixsock.Address{Path: filepath.Join(h.devicesDir, device.KubeletSocket), SharedDir: true, AnyLength: true})
		if err == nil {
			return l, nil
		}
	}
	switch {
	case !errors.Is(err, unixsock.ErrLive):
		return nil, err
	case h.besideKubelet:
		h.Logger.Info("device plugins left to the kubelet", "path", h.devicesDir)
		return nil, nil
	}
	return nil, fmt.Errorf("%w: a kubelet or another host registers device plugins there; use another directory with --device-plugins-dir, or leave device plugins to it with --beside-kubelet", err)
}

func (h *hostServer) types() []string {
	all := slices.Concat(knownTypes(), h.pluginTypes)
	slices.Sort(all)
	return slices.Compact(all)
}

// serving returns the endpoint in use for a name.
func (h *hostServer) serving(kind, name string) (endpoint string, known bool) {
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

// show writes changes until the host ends. A write error ends the process.
func (h *hostServer) show(ctx context.Context) error {
	all := withoutErrors(remote.Follow(ctx, h.host))
	switch {
	case h.screen != nil:
		return showLive(ctx, h.screen, h.pluginsDir, all)
	case h.output == "json":
		return writeDocuments(h.Out, all)
	case h.output == "table":
		return writeLines(h.Out, all)
	}
	return nil
}

func (h *hostServer) status(context.Context) (any, error) {
	return struct {
		Version   string            `json:"version"`
		Directory string            `json:"directory"`
		Types     []string          `json:"types"`
		Plugins   []watch.Status    `json:"plugins"`
		Drivers   []csi.Driver      `json:"drivers"`
		Resources []device.Resource `json:"resources"`
		Others    []generic.Name    `json:"others"`
	}{
		Version: release, Directory: h.pluginsDir, Types: h.types(), Plugins: h.host.List(),
		Drivers: h.drivers.Drivers(), Resources: h.devices.Resources(), Others: h.others.Names(),
	}, nil
}
