package control

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// double is a Plugin with the real gate; resources complete at once, unless
// blocked.
type double struct {
	mu          sync.Mutex
	machine     *gate.Gate
	streams     map[string]*doubleStream
	calls       map[uint64]chan any
	timers      map[gate.Timer]*time.Timer
	ids         uint64
	now         gate.Status
	stuck       bool
	epoch       uint64
	restriction uint64
	opened      int
	closed      []string
	over        bool
	queue       []gate.Event
}

type doubleStream struct {
	mail chan gate.Status
	end  chan *End
}

func newDouble(t *testing.T, c gate.Config) *double {
	d := &double{machine: gate.New(c), streams: map[string]*doubleStream{}, calls: map[uint64]chan any{}, timers: map[gate.Timer]*time.Timer{}}
	d.stepGate(time.Now(), gate.Configured{Hash: "h1", Resources: []string{"example.com/a"}})
	t.Cleanup(d.stop)
	return d
}

func (d *double) stepGate(at time.Time, e gate.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over {
		d.step(at, e)
	}
}

// step needs the lock; an action's events come after the other actions.
func (d *double) step(at time.Time, e gate.Event) {
	d.queue = append(d.queue, e)
	for len(d.queue) > 0 {
		e := d.queue[0]
		d.queue = d.queue[1:]
		d.do(d.machine.Step(at, e))
	}
}

func (d *double) later(e gate.Event) { d.queue = append(d.queue, e) }

func (d *double) do(all []gate.Action) {
	for _, a := range all {
		switch a := a.(type) {
		case gate.Publish:
			d.now = a.Status
			for _, s := range d.streams {
				s.send(a.Status)
			}
		case gate.EndStream:
			if s := d.streams[a.Session]; s != nil {
				s.end <- &End{a.Code, a.Reason}
				delete(d.streams, a.Session)
			}
		case gate.HeartbeatReply:
			d.calls[a.Call] <- a
			delete(d.calls, a.Call)
		case gate.DisableReply:
			d.calls[a.Call] <- a
			delete(d.calls, a.Call)
		case gate.Scan:
			d.later(gate.Scanned{Seq: a.Seq})
		case gate.Forward:
			d.resource(a)
		case gate.Set:
			if t := d.timers[a.Timer]; t != nil {
				t.Stop()
			}
			d.timers[a.Timer] = time.AfterFunc(time.Until(a.At), func() { d.stepGate(time.Now(), gate.Expired{Timer: a.Timer}) })
		}
	}
}

func (d *double) resource(to gate.Forward) {
	switch e := to.Event.(type) {
	case gate.Open:
		d.opened++
		d.epoch = e.Epoch
		d.later(gate.Reported{Resource: to.Resource, Report: d.offered()})
	case gate.Restrict:
		d.restriction = e.Seq
		d.later(gate.Reported{Resource: to.Resource, Report: d.offered()})
	case gate.Close:
		d.epoch = e.Epoch
		d.later(gate.Reported{Resource: to.Resource, Report: gate.Report{Phase: gate.Withdrawing, Epoch: e.Epoch, Devices: 3, Streaming: true, Allocating: 1}})
		if !d.stuck {
			d.later(d.withdrawn())
		}
	}
}

func (d *double) offered() gate.Report {
	return gate.Report{Phase: gate.Offered, Epoch: d.epoch, Devices: 3, Offered: 2, Streaming: true, Restriction: d.restriction}
}

func (d *double) withdrawn() gate.Event {
	held := []gate.Held{{Resource: "example.com/a", ID: "0000:01:00.1"}, {Resource: "example.com/a", ID: "0000:01:00.2", Namespace: "ns", Pod: "p", Container: "c"}}
	return gate.Reported{Resource: "example.com/a", Report: gate.Report{Phase: gate.Withdrawn, Epoch: d.epoch, Devices: 3, Streaming: true, Confirmed: true, InUse: held}}
}

func (d *double) stick(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stuck = on
	if !on {
		d.step(time.Now(), d.withdrawn())
	}
}

func (d *double) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	for _, t := range d.timers {
		t.Stop()
	}
}

func (s *doubleStream) send(now gate.Status) {
	select {
	case <-s.mail:
	default:
	}
	s.mail <- now
}

func (d *double) Enable(ctx context.Context, session string, c gate.Claim, send func(gate.Status) error) error {
	s := &doubleStream{mail: make(chan gate.Status, 1), end: make(chan *End, 1)}
	d.mu.Lock()
	d.streams[session] = s
	d.mu.Unlock()
	d.stepGate(time.Now(), gate.Enable{Session: session, Claim: c})
	defer func() {
		d.mu.Lock()
		delete(d.streams, session)
		d.closed = append(d.closed, session)
		d.mu.Unlock()
		d.stepGate(time.Now(), gate.StreamClosed{Session: session})
	}()
	for {
		select {
		case now := <-s.mail:
			if err := send(now); err != nil {
				return err
			}
			continue
		default:
		}
		select {
		case now := <-s.mail:
			if err := send(now); err != nil {
				return err
			}
		case end := <-s.end:
			return end
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (d *double) call(at time.Time, event func(id uint64) gate.Event) (uint64, chan any) {
	answer := make(chan any, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids++
	d.calls[d.ids] = answer
	if !d.over {
		d.step(at, event(d.ids))
	}
	return d.ids, answer
}

func (d *double) Disable(ctx context.Context, session string) (gate.DisableReply, error) {
	id, answer := d.call(time.Now(), func(id uint64) gate.Event { return gate.Disable{Call: id, Session: session} })
	select {
	case a := <-answer:
		return a.(gate.DisableReply), nil
	case <-ctx.Done():
		d.stepGate(time.Now(), gate.DisableCanceled{Call: id})
		return gate.DisableReply{}, ctx.Err()
	}
}

func (d *double) Heartbeat(ctx context.Context, session string, at time.Time) (time.Duration, error) {
	_, answer := d.call(at, func(id uint64) gate.Event { return gate.Heartbeat{Call: id, Session: session} })
	select {
	case a := <-answer:
		if b := a.(gate.HeartbeatReply); b.Code != codes.OK {
			return 0, &End{b.Code, b.Reason}
		}
		return a.(gate.HeartbeatReply).Lease, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (d *double) Status() gate.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.Status()
}

type served struct {
	t      *testing.T
	socket string
	stop   func()
}

func serve(t *testing.T, p Plugin, socket string) *served {
	t.Helper()
	s := NewServer(ServerConfig{Plugin: p, Version: "1.2", Logger: slog.New(slog.DiscardHandler)})
	rpc := testkit.Value(server.NewGRPC(server.GRPCConfig{Code: Code, Quiet: Quiet, Keepalive: testkit.Timeout}))(t)
	s.Register(rpc)
	l := testkit.Value(unixsock.Listen(t.Context(), unixsock.Address{Path: socket}))(t)
	return serving(t, socket, l, rpc.Serve)
}

func serving(t *testing.T, socket string, l net.Listener, run func(context.Context, net.Listener) error) *served {
	t.Helper()
	stop := testkit.Go(t, func(ctx context.Context) error { return run(ctx, l) })
	return &served{t: t, socket: socket, stop: stop}
}

func socketOf(t *testing.T) string { return filepath.Join(t.TempDir(), "control.sock") }

func start(t *testing.T, socket string) (*double, *served) {
	t.Helper()
	d := newDouble(t, gate.Config{Controlled: true})
	return d, serve(t, d, socket)
}
