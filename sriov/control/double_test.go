package control

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/monitor"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// double is a Plugin with the real gate; the kubelet and the node answer at once,
// unless the double is stuck: then the kubelet does not read the list.
type double struct {
	monitor *monitor.Monitor
	gate    *gate.Gate
	list    *gate.Stream
	answers []func(now time.Time)
	stuck   bool

	streams, ended, disables atomic.Int64
}

const resource = "example.com/a"

func newDouble(t *testing.T, c gate.Config) *double {
	d := &double{}
	d.gate = gate.New(c, d)
	d.monitor = monitor.New(d.gate.Next, func(now time.Time) { d.answer(now, d.gate.Tick) })
	d.configure("h1")
	t.Cleanup(d.monitor.Close)
	return d
}

func (d *double) configure(hash string) {
	d.step(func(now time.Time) { d.gate.Configure(now, hash, []string{resource}) })
}

func (d *double) step(event func(now time.Time)) {
	d.monitor.Do(func(now time.Time) { d.answer(now, event) })
}

func (d *double) answer(now time.Time, event func(now time.Time)) {
	d.answers = append(d.answers, event)
	for len(d.answers) > 0 {
		next := d.answers[0]
		d.answers = d.answers[1:]
		next(now)
		if s := d.list; s != nil && !d.stuck {
			d.gate.Sent(now, resource, s, s.Seq)
		}
	}
}

func (d *double) later(answer func(now time.Time)) { d.answers = append(d.answers, answer) }

func (d *double) Scan(seq uint64) {
	devices := []gate.Device{{ID: "0000:01:00.1", Healthy: true}, {ID: "0000:01:00.2", Healthy: true}, {ID: "0000:01:00.3"}}
	d.later(func(now time.Time) { d.gate.Scanned(now, seq, map[string][]gate.Device{resource: devices}, nil) })
}

func (d *double) Register(name string) {
	d.later(func(now time.Time) { d.list = d.gate.Listen(now, name) })
}

func (d *double) Confirm(name string, query uint64, _ []string) {
	held := []gate.Held{{Resource: resource, ID: "0000:01:00.1"}, {Resource: resource, ID: "0000:01:00.2", Namespace: "ns", Pod: "p", Container: "c"}}
	d.later(func(now time.Time) { d.gate.Confirmed(now, name, query, gate.Answer{Known: true, InUse: held}) })
}

func (d *double) Stop(string) {}

func (d *double) stick(on bool) { d.step(func(time.Time) { d.stuck = on }) }

// opened returns how often the resource was opened.
func (d *double) opened() int { return d.Status().Resources[resource].Openings }

func (d *double) Enable(ctx context.Context, session string, c gate.Claim, send func(gate.Status) error) error {
	d.streams.Add(1)
	defer d.streams.Add(-1)
	defer d.ended.Add(1)
	var s *gate.Session
	var err error = &gate.End{Code: codes.Unavailable, Reason: "the double has stopped"}
	d.step(func(now time.Time) { s, err = d.gate.Enable(now, session, c) })
	if err != nil {
		return err
	}
	defer d.step(func(now time.Time) { d.gate.Disconnect(now, s) })
	for last := (*gate.Status)(nil); ; {
		var end *gate.End
		err := d.monitor.Await(ctx, func() bool {
			now := d.gate.Status()
			changed := now != last
			last, end = now, s.End
			return changed || end != nil
		})
		switch {
		case err != nil:
			return err
		case end != nil:
			return end
		}
		if err := send(*last); err != nil {
			return err
		}
	}
}

func (d *double) Disable(ctx context.Context, session string) (gate.Withdrawal, error) {
	d.disables.Add(1)
	defer d.disables.Add(-1)
	var call *gate.Disabling
	d.step(func(now time.Time) { call = d.gate.Disable(now, session) })
	if err := d.monitor.Await(ctx, func() bool { return call.Done }); err != nil {
		d.step(func(now time.Time) { d.gate.Cancel(now, call) })
		return gate.Withdrawal{}, err
	}
	return call.Withdrawal, call.Err
}

func (d *double) Heartbeat(session string) (lease time.Duration, err error) {
	d.step(func(now time.Time) { lease, err = d.gate.Heartbeat(now, session) })
	return lease, err
}

func (d *double) Status() (s gate.Status) {
	_ = d.monitor.Await(context.Background(), func() bool { s = *d.gate.Status(); return true })
	return s
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
