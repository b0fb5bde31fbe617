package plugin

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// resource serves one resource to the kubelet. One goroutine, run, owns the
// machine that decides; all others tell it by letters.
type resource struct {
	v1beta1.UnsafeDevicePluginServer // all of its calls are here

	name   string
	deps   *deps
	logger *slog.Logger
	mail   *mailbox[letter]
	ids    atomic.Uint64         // of calls and streams
	offer  atomic.Pointer[offer] // what there is now
	report func(gate.Report)
	tries  atomic.Uint64 // registrations that were begun
	heard  atomic.Bool   // the kubelet has listened to it at some time
	odd    troubles      // what people are told once

	ctx     context.Context // of everything that runs for it
	cancel  context.CancelFunc
	work    sync.WaitGroup
	closing chan struct{} // streams end
	ended   chan struct{} // nobody answers letters any more

	// Owned by run.
	machine *gate.Resource
	alarms  *alarms
	calls   map[uint64]*call
	streams map[uint64]*stream
	stopped bool

	endpoint *endpoint
}

// offer is what a resource consists of, as one scan found it. It is not changed
// after it was made.
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

// spoilt is an offer none of whose devices may be given out.
func (o *offer) spoilt(why error) *offer {
	p := o.pool
	p.Members = slices.Clone(p.Members)
	for i := range p.Members {
		p.Members[i].Wrong = cmp.Or(p.Members[i].Wrong, why.Error())
	}
	return newOffer(p)
}

// devices are what the machine is told.
func (o *offer) devices() []gate.Device {
	all := make([]gate.Device, 0, len(o.members))
	for _, m := range o.pool.Members {
		all = append(all, gate.Device{ID: m.ID, Healthy: m.Wrong == ""})
	}
	return all
}

// letter is an event with the moment at which it came about, and who waits for
// what becomes of it.
type letter struct {
	at     time.Time
	event  gate.ResourceEvent
	call   *call
	stream *stream
}

// call is one that the kubelet makes, of Allocate or GetPreferredAllocation.
type call struct {
	id      uint64
	verdict chan error // nil: go on
}

// stream is a ListAndWatch under way.
type stream struct {
	id   uint64
	next chan gate.Send // the newest list only
	drop context.CancelFunc
}

// refusal is an error whose code the machine has chosen.
type refusal struct {
	code   codes.Code
	reason string
}

func (r *refusal) Error() string { return r.reason }

// newResource makes a resource that runs until stop. Reports go to report, one
// after another.
func newResource(ctx context.Context, name string, d *deps, report func(gate.Report)) (*resource, error) {
	r := &resource{
		name: name, deps: d, logger: d.logger.With("resource", name), mail: newMailbox[letter](), report: report,
		closing: make(chan struct{}), ended: make(chan struct{}),
		machine: gate.NewResource(), alarms: newAlarms(), calls: map[uint64]*call{}, streams: map[uint64]*stream{},
	}
	r.offer.Store(newOffer(inventory.Pool{}))
	var err error
	if r.endpoint, err = newEndpoint(d, r); err != nil {
		return nil, err
	}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.work.Go(r.run)
	return r, nil
}

// stop ends everything that runs for the resource; its machine should have
// stopped before.
func (r *resource) stop() {
	r.cancel()
	r.work.Wait()
	if !r.stopped {
		r.endpoint.close()
		close(r.closing)
		r.endpoint.drain()
	}
}

// tell is for events that nobody waits for.
func (r *resource) tell(e gate.ResourceEvent) { r.post(letter{event: e}) }

func (r *resource) post(l letter) {
	l.at = time.Now()
	r.mail.put(l)
}

// renew gives the resource what a scan found.
func (r *resource) renew(o *offer) {
	r.offer.Store(o)
	r.tell(gate.Snapshot{Devices: o.devices()})
}

func (r *resource) run() {
	defer close(r.ended)
	defer r.alarms.timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.mail.bell:
			for _, l := range r.mail.take() {
				r.admitLetter(l)
				r.do(r.machine.Step(l.at, l.event))
				r.forget(l.event)
			}
		case <-r.alarms.timer.C:
			now := time.Now()
			for _, name := range r.alarms.due(now) {
				r.do(r.machine.Step(now, gate.Fired{Timer: name}))
			}
		}
	}
}

func (r *resource) admitLetter(l letter) {
	if l.call != nil {
		r.calls[l.call.id] = l.call
	}
	if l.stream != nil {
		r.streams[l.stream.id] = l.stream
	}
}

func (r *resource) forget(e gate.ResourceEvent) {
	switch e := e.(type) {
	case gate.AllocateEnd:
		delete(r.calls, e.Call)
	case gate.StreamDown:
		delete(r.streams, e.Stream)
	}
}

func (r *resource) do(actions []gate.ResourceAction) {
	for _, a := range actions {
		switch a := a.(type) {
		case gate.Serve:
			r.work.Go(func() { r.tell(gate.Served{Err: r.endpoint.ensure(r.ctx)}) })
		case gate.Register:
			try := r.tries.Add(1)
			r.work.Go(func() { r.register(try) })
		case gate.Send:
			r.send(a)
		case gate.Admit:
			r.answer(a.Call, nil)
		case gate.Approve:
			r.answer(a.Call, nil)
		case gate.Refuse:
			r.answer(a.Call, &refusal{a.Code, a.Reason})
		case gate.Confirm:
			r.work.Go(func() { r.tell(r.confirm(a.Epoch)) })
		case gate.Tell:
			r.report(a.Report)
		case gate.Arm:
			r.alarms.set(a.Timer, a.At)
		case gate.Stop:
			r.end()
		}
	}
}

// register makes the resource known to the kubelet. What becomes of a try says
// nothing once there is another: by the watcher it ends with the next one.
func (r *resource) register(try uint64) {
	err := r.deps.registrar.Register(r.ctx, Registration{Resource: r.name, Endpoint: r.endpoint.path, Options: options()})
	if r.tries.Load() != try {
		return
	}
	r.deps.metrics.registered(r.name, err)
	news := r.odd.set("registration", err)
	switch {
	case err == nil:
		r.logger.Info("the kubelet knows the resource", "endpoint", r.endpoint.path)
	case news && r.ctx.Err() == nil:
		r.logger.Warn("the kubelet could not be told of the resource; it is tried again", "error", err)
	}
	r.tell(gate.Registered{Err: err})
}

// confirm asks the kubelet what it has of the resource. What it offers and was
// never told by us is another plugin's, and no withdrawal of ours will end it.
func (r *resource) confirm(epoch uint64) gate.Confirmed {
	if !r.heard.Load() {
		return gate.Confirmed{Epoch: epoch}
	}
	return r.deps.census.confirm(r.ctx, r.name, epoch)
}

// send puts a list into a stream's box, in the place of one that was not taken.
func (r *resource) send(a gate.Send) {
	s := r.streams[a.Stream]
	if s == nil {
		return
	}
	select {
	case <-s.next:
	default:
	}
	s.next <- a
}

func (r *resource) answer(id uint64, verdict error) {
	if c := r.calls[id]; c != nil {
		c.verdict <- verdict
	}
}

// end closes the socket, so that another server may take its place, and lets
// the streams end.
func (r *resource) end() {
	r.stopped = true
	close(r.closing)
	r.endpoint.close()
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), drainBound)
		defer cancel()
		if err := r.deps.registrar.Forget(ctx, r.name); err != nil {
			r.logger.Warn("the registration with the kubelet could not be taken back", "error", err)
		}
		r.endpoint.drain()
	})
}
