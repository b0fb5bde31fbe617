package plugin

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
)

type resource struct {
	v1beta1.UnsafeDevicePluginServer // allocate.go has all methods

	name     string
	plugin   *Plugin
	logger   *slog.Logger
	endpoint *endpoint
	offer    atomic.Pointer[offer]
	attempts atomic.Uint64
	notices  problems // for logging

	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	closing chan struct{} // closed to end the streams

	// Of the event loop.
	machine   *gate.Resource
	stream    uint64 // newest ListAndWatch; 0: none
	hadStream bool
	stopped   bool
}

// offer is immutable.
type offer struct {
	pool    inventory.Pool
	members map[string]inventory.Member
}

func newOffer(p inventory.Pool) *offer {
	o := &offer{pool: p, members: make(map[string]inventory.Member, len(p.Members))}
	for _, m := range p.Members {
		o.members[m.ID] = m
	}
	return o
}

func (o *offer) unhealthy(why error) *offer {
	p := o.pool
	p.Members = slices.Clone(p.Members)
	for i := range p.Members {
		p.Members[i].Wrong = cmp.Or(p.Members[i].Wrong, why.Error())
	}
	return newOffer(p)
}

func (o *offer) devices() []gate.Device {
	all := make([]gate.Device, 0, len(o.members))
	for _, m := range o.pool.Members {
		all = append(all, gateDevice(m))
	}
	return all
}

func gateDevice(m inventory.Member) gate.Device {
	return gate.Device{ID: m.ID, Healthy: m.Wrong == "", Function: m.Function.Address, PF: m.Function.PF}
}

func newResource(p *Plugin, name string) (*resource, error) {
	r := &resource{name: name, plugin: p, logger: p.logger.With("resource", name), closing: make(chan struct{}), machine: gate.NewResource()}
	r.offer.Store(newOffer(inventory.Pool{}))
	var err error
	if r.endpoint, err = newEndpoint(r); err != nil {
		return nil, err
	}
	r.ctx, r.cancel = context.WithCancel(p.ctx)
	return r, nil
}

// The machine should have stopped before.
func (r *resource) stop() {
	r.cancel()
	r.work.Wait()
	if !r.stopped {
		r.endpoint.close()
		close(r.closing)
		r.endpoint.drain()
	}
}

func (r *resource) send(e gate.ResourceEvent) { r.plugin.loop.Send(resourceEvent{e, r}) }

// The result is dropped if a newer attempt has started.
func (r *resource) register(attempt uint64) {
	err := r.plugin.cfg.Registrar.Register(r.ctx, Registration{Resource: r.name, Endpoint: r.endpoint.path, Options: options()})
	if r.attempts.Load() != attempt {
		return
	}
	r.plugin.metrics.registrations.WithLabelValues(r.name, okOrFailed(err)).Inc()
	changed := r.notices.set("registration", err)
	switch {
	case err == nil:
		r.logger.Info("registered with the kubelet", "socket", r.endpoint.path)
	case changed && r.ctx.Err() == nil:
		r.logger.Warn("registration with the kubelet failed, will retry", "err", err)
	}
	r.send(gate.Registered{Err: err})
}

// end closes the socket, so that another server can use its path.
func (r *resource) end() {
	r.stopped = true
	close(r.closing)
	r.endpoint.close()
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), drainTimeout)
		defer cancel()
		if err := r.plugin.cfg.Registrar.Forget(ctx, r.name); err != nil {
			r.logger.Warn("cannot remove kubelet registration", "err", err)
		}
		r.endpoint.drain()
	})
}
