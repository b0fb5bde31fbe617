package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/handler/device"
)

// deviceRegistration serves kubelet.sock, for device plugins that call Register.
type deviceRegistration struct {
	host     *pluginHost
	service  *device.Registration
	server   *server.GRPC
	listener net.Listener // nil: a kubelet serves it
}

// deviceDir has the sockets of device plugins: beside those of others, as in the
// kubelet's directory.
func (f hostFlags) deviceDir() string {
	return cmp.Or(f.devicesDir, filepath.Join(filepath.Dir(f.pluginsDir), "device-plugins"))
}

func (d *deviceRegistration) listen(ctx context.Context) (err error) {
	h, dir := d.host, d.host.flags.deviceDir()
	d.service = device.NewRegistration(dir, h.devices)
	d.server, err = server.NewGRPC(server.GRPCConfig{
		Logger: h.logger, Metrics: h.registry,
		Code: func(error) codes.Code { return codes.Unknown }, // as the kubelet answers
	})
	if err != nil {
		return err
	}
	v1beta1.RegisterRegistrationServer(d.server, d.service)
	if err = d.service.Clear(ctx); err == nil {
		d.listener, err = unixsock.Listen(ctx, unixsock.Address{Path: filepath.Join(dir, device.KubeletSocket), SharedDir: true, AnyLength: true})
	}
	if errors.Is(err, unixsock.ErrLive) {
		if h.flags.besideKubelet {
			h.logger.Info("a kubelet registers the device plugins", "directory", dir)
			return nil
		}
		return fmt.Errorf("%w: a kubelet or another host registers device plugins there; choose another directory with --device-plugins-dir, or leave them to it with --beside-kubelet", err)
	}
	return err
}

func (d *deviceRegistration) serve(ctx context.Context) error {
	if d.listener == nil {
		return nil
	}
	d.host.logger.Info("device plugins are registered", "endpoint", "unix://"+d.listener.Addr().String())
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.service.Run(run)
	}()
	err := d.server.Serve(ctx, d.listener)
	cancel()
	<-ended
	return err
}

func (d *deviceRegistration) stop(ctx context.Context) error {
	if d.listener == nil {
		return nil
	}
	return errors.Join(d.server.Drain(ctx), d.listener.Close())
}
