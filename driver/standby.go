package driver

import (
	"context"
	"errors"
	"net"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// standby serves the sockets of the sidecars while this replica waits, and answers Probe
// with "not ready". Sidecars wait for a driver that is not ready; without a socket they
// exit after half a minute, and are started again later each time. When it ends they lose
// the connection, exit, and find the driver's own sockets.
type standby struct {
	servers []*server.GRPC
	serving errgroup.Group
}

// start binds the sockets.
func (b *standby) start(ctx context.Context, d *driver) error {
	l, err := d.ListenEndpoint(ctx)
	if err == nil {
		err = b.serve(ctx, d, l, func(r grpc.ServiceRegistrar) { spec.RegisterIdentityServer(r, notReady{d.identity()}) })
	}
	if err != nil || d.addonsEndpoint == "" {
		return err
	}
	path, err := unixsock.ParseEndpoint(d.addonsEndpoint)
	if err != nil {
		return err
	}
	if l, err = d.ListenPrivileged(ctx, unixsock.Address{Path: path}); err != nil {
		return err
	}
	return b.serve(ctx, d, l, func(r grpc.ServiceRegistrar) { identity.RegisterIdentityServer(r, addonsNotReady{}) })
}

func (b *standby) serve(ctx context.Context, d *driver, l net.Listener, register func(grpc.ServiceRegistrar)) error {
	g, err := server.NewGRPC(server.GRPCConfig{Code: errs.Code, Logger: d.Logger, Metrics: d.Metrics})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	register(g)
	b.servers = append(b.servers, g)
	b.serving.Go(func() error { return g.Serve(context.WithoutCancel(ctx), l) })
	return nil
}

// stop closes the connections and removes the sockets.
func (b *standby) stop(ctx context.Context) error {
	var all error
	for _, g := range b.servers {
		all = errors.Join(all, g.Drain(context.WithoutCancel(ctx)))
	}
	return errors.Join(all, b.serving.Wait())
}

// notReady has the rest of Identity, since csi-snapshotter asks for the name before it
// calls Probe.
type notReady struct{ *csi.Identity }

// Probe implements csi.v1.Identity.
func (notReady) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
}

type addonsNotReady struct {
	identity.UnimplementedIdentityServer
}

// Probe implements identity.Identity of CSI-Addons.
func (addonsNotReady) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
}
