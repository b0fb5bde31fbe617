package control

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/monitor"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

func renewing(t *testing.T, socket string) (*Renewer, func()) {
	t.Helper()
	k := testkit.Value(NewRenewer(RenewerConfig{Socket: socket, Metrics: prometheus.NewRegistry()}))(t)
	return k, testkit.Go(t, k.Run)
}

func disabling(t *testing.T, k *Renewer) <-chan error {
	done := make(chan error, 1)
	go func() {
		got, err := k.Disable(testkit.Context(t))
		if err == nil && !got.Acknowledged {
			err = errors.New(got.Reason)
		}
		done <- err
	}()
	return done
}

func figure(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families := testkit.Value(r.Gather())(t)
	sum := 0.0
	for _, f := range families {
		for _, m := range f.Metric {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func untilState(t *testing.T, k *Renewer, want RenewerState) RenewerStatus {
	t.Helper()
	testkit.Eventually(t, "the renewer is "+string(want), func() bool { return k.Status().State == want })
	return k.Status()
}

func untilServing(t *testing.T, d *double, generation int64) {
	t.Helper()
	testkit.Eventually(t, "the plugin serves", func() bool {
		s := d.Status()
		return s.State == gate.Serving && s.Generation == generation && s.Holding == gate.Live
	})
}

var acknowledged = gate.Withdrawal{Acknowledged: true, Confirmed: true, InUse: []gate.Held{
	{Resource: "example.com/a", ID: "0000:01:00.1"},
	{Resource: "example.com/a", ID: "0000:01:00.2", Namespace: "ns", Pod: "p", Container: "c"},
}}

func TestRenewerEnablesAndDisables(t *testing.T) {
	t.Parallel()
	d, s := start(t, socketOf(t))
	k, _ := renewing(t, s.socket)
	const lease = 15 * time.Second // renewals might be seconds late
	k.Enable(gate.Claim{UID: "u", Generation: 1, Hash: "h1", Node: "n", Lease: lease, Hold: time.Minute})
	untilServing(t, d, 1)
	testkit.Eventually(t, "the renewer gets the status", func() bool { return k.Status().Plugin.State == gate.Serving })
	if st := k.Status(); st.State != StateHeld || st.Held.UID != "u" || st.Plugin.Devices != 2 || figure(t, k.held) != 1 {
		t.Errorf("status %+v", st)
	}
	k.Enable(gate.Claim{UID: "u", Generation: 2, Lease: lease, Hold: time.Minute})
	untilServing(t, d, 2)
	testkit.Eventually(t, "the renewer holds it", func() bool { h := k.Status().Held; return h != nil && h.Generation == 2 })
	if d.opened() != 1 {
		t.Errorf("the resource was opened %d times", d.opened())
	}
	ends := d.Status().LeaseEnds
	testkit.Eventually(t, "the lease is renewed", func() bool { return d.Status().LeaseEnds.After(ends) })
	select {
	case <-k.Changed():
	default:
	}
	renewals := 0
	testkit.Eventually(t, "the lease is renewed several times", func() bool {
		if now := d.Status().LeaseEnds; now.After(ends) {
			renewals, ends = renewals+1, now
		}
		return renewals > 1
	})
	if len(k.Changed()) > 0 {
		t.Errorf("a heartbeat is reported as a change: %+v", k.Status())
	}
	got, err := k.Disable(testkit.Context(t))
	if diff := cmp.Diff(acknowledged, got); err != nil || diff != "" {
		t.Errorf("%v, want -, got +:\n%s", err, diff)
	}
	if st := d.Status(); st.Holding != gate.Waiting || st.Devices != 0 { // no hold time
		t.Errorf("the plugin: %+v", st)
	}
	untilState(t, k, StateIdle)
	if got, err := k.Disable(testkit.Context(t)); err != nil || !got.Acknowledged {
		t.Errorf("again: %+v, %v", got, err)
	}
	if n := figure(t, k.losses); n != 0 || figure(t, k.held) != 0 {
		t.Errorf("%v losses counted", n)
	}
}

func TestRenewerOverRestarts(t *testing.T) {
	t.Parallel()
	socket := socketOf(t)
	k, _ := renewing(t, socket)
	k.Enable(gate.Claim{Generation: 4, Lease: time.Minute})
	untilState(t, k, StateNotServed)
	for range 3 {
		d, s := start(t, socket)
		untilServing(t, d, 4)
		untilState(t, k, StateHeld)
		s.stop()
		untilState(t, k, StateNotServed)
	}
	if n := figure(t, k.losses.WithLabelValues("connection")); n != 3 {
		t.Errorf("%v losses counted", n)
	}
	if figure(t, k.reconnects) < 3 {
		t.Error("no reconnects counted")
	}
	start(t, socket)
	untilState(t, k, StateHeld)
}

// The hold time covers the gap until the next daemon.
func TestRenewerEnds(t *testing.T) {
	d, s := start(t, socketOf(t))
	k, end := renewing(t, s.socket)
	k.Enable(gate.Claim{Generation: 1, Hold: time.Minute})
	untilServing(t, d, 1)
	end()
	testkit.Eventually(t, "the hold time runs", func() bool { return d.Status().Holding == gate.Lost })
	if err := k.monitor.Await(testkit.Context(t), func() bool { return false }); !errors.Is(err, monitor.ErrClosed) {
		t.Fatal(err)
	}
	testkit.WantError(t, "Disable of a renewer that has ended", testkit.Err(k.Disable(testkit.Context(t))), nil, "the renewer has stopped")
	testkit.WantError(t, "it runs twice", k.Run(t.Context()), nil)
	next, _ := renewing(t, s.socket)
	next.Enable(gate.Claim{Generation: 1})
	untilServing(t, d, 1)
	if d.opened() != 1 {
		t.Errorf("the devices were withdrawn between: opened %d times", d.opened())
	}
}

func TestRenewerSuperseded(t *testing.T) {
	d, s := start(t, socketOf(t))
	one, _ := renewing(t, s.socket)
	other, _ := renewing(t, s.socket)
	one.Enable(gate.Claim{Generation: 1})
	untilState(t, one, StateHeld)
	other.Enable(gate.Claim{Generation: 2})
	if st := untilState(t, one, StateSuperseded); st.Code != codes.Aborted || !strings.Contains(st.Reason, "generation 2") || st.Desired == nil {
		t.Errorf("status %+v", st)
	}
	untilServing(t, d, 2)
	// The caller is about to change the functions.
	if got, err := one.Disable(testkit.Context(t)); err != nil || !got.Acknowledged {
		t.Errorf("%+v, %v", got, err)
	}
	untilState(t, other, StateDisabled)
	one.Enable(gate.Claim{Generation: 1})
	untilServing(t, d, 1)
	if st := other.Status(); st.State != StateDisabled {
		t.Errorf("the other is %+v", st)
	}
}

func TestRenewerWaitsForTheConfiguration(t *testing.T) {
	d, s := start(t, socketOf(t))
	k, _ := renewing(t, s.socket)
	k.Enable(gate.Claim{Generation: 1, Hash: "h2"})
	var st RenewerStatus
	testkit.Eventually(t, "the plugin refuses", func() bool { st = k.Status(); return st.State == StateRefused })
	if st.Code != codes.FailedPrecondition || !strings.Contains(st.Reason, `"h2"`) {
		t.Errorf("status %+v", st)
	}
	d.configure("h2")
	untilState(t, k, StateHeld)
	// Not a takeover.
	d.configure("h3")
	if st := untilState(t, k, StateRefused); st.Code != codes.Aborted && st.Code != codes.FailedPrecondition {
		t.Errorf("status %+v", st)
	}
	for len(k.Changed()) > 0 {
		<-k.Changed()
	}
	k.Enable(gate.Claim{Generation: 1, Hash: "h3"})
	untilServing(t, d, 1)
	testkit.Receive(t, "the change", k.Changed())
}

func TestRenewerDisableRetriesUntilAcknowledged(t *testing.T) {
	socket := socketOf(t)
	d := newDouble(t, gate.Config{Controlled: true, WithdrawTimeout: 100 * time.Millisecond})
	serve(t, d, socket)
	k, _ := renewing(t, socket)
	k.Enable(gate.Claim{Generation: 1})
	untilServing(t, d, 1)
	d.stick(true)
	for within, reported := time.Second, false; !reported; within *= 2 { // for the plugin's answer
		ctx, cancel := context.WithTimeout(t.Context(), within)
		got, err := k.Disable(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || got.Acknowledged || within > testkit.Timeout {
			t.Fatalf("%+v, %v", got, err)
		}
		reported = strings.Contains(err.Error(), "not withdrawn within 100ms")
	}
	done := disabling(t, k)
	testkit.Eventually(t, "it waits", func() bool { return k.Status().State == StateDisabling })
	d.stick(false)
	testkit.Must(t, <-done)
}

func TestRenewerRestartWhileDisabling(t *testing.T) {
	socket := socketOf(t)
	d, s := start(t, socket)
	k, _ := renewing(t, socket)
	k.Enable(gate.Claim{Generation: 1, Hold: time.Minute})
	untilServing(t, d, 1)
	d.stick(true)
	done := disabling(t, k)
	testkit.Eventually(t, "it waits", func() bool { return d.disables.Load() > 0 })
	s.stop()
	untilReason := func() bool { return strings.Contains(k.Status().Reason, "no process serves") }
	testkit.Eventually(t, "the renewer sees that the socket is not served", untilReason)
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	start(t, socket)
	testkit.Must(t, <-done)
}

func TestRenewerDisableWithoutAPlugin(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: dead}))(t)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for _, socket := range []string{filepath.Join(dir, "none.sock"), filepath.Join(dir, "no", "directory.sock"), dead} {
		k, _ := renewing(t, socket)
		got, err := k.Disable(testkit.Context(t))
		if err != nil || got.Acknowledged || !strings.Contains(got.Reason, "no process serves") || !strings.Contains(got.Reason, socket) {
			t.Errorf("%s: %+v, %v", socket, got, err)
		}
	}
	uncontrolled := newDouble(t, gate.Config{})
	s := serve(t, uncontrolled, filepath.Join(dir, "s", "legacy.sock"))
	k, _ := renewing(t, s.socket)
	if got, err := k.Disable(testkit.Context(t)); err != nil || got.Acknowledged || !strings.Contains(got.Reason, "not in controlled mode") {
		t.Errorf("%+v, %v", got, err)
	}
	k.Enable(gate.Claim{Generation: 1})
	if st := untilState(t, k, StateRefused); !strings.Contains(st.Reason, "--controlled-mode") {
		t.Errorf("%+v", st)
	}
}

func TestRenewerOfAFrozenPlugin(t *testing.T) {
	socket := socketOf(t)
	l := testkit.Value(net.Listen("unix", socket))(t)
	k, _ := renewing(t, socket)
	k.Enable(gate.Claim{Generation: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got, err := k.Disable(ctx); !errors.Is(err, context.DeadlineExceeded) || got.Acknowledged {
		t.Errorf("%+v, %v", got, err)
	}
	_ = l.Close()
	d, _ := start(t, socket)
	k.Enable(gate.Claim{Generation: 2})
	untilServing(t, d, 2)
}

func TestRenewerLosesItsLease(t *testing.T) {
	d, s := start(t, socketOf(t))
	k, _ := renewing(t, s.socket)
	k.Enable(gate.Claim{Generation: 1, Lease: 20 * time.Second})
	untilServing(t, d, 1)
	d.step(func(now time.Time) { d.gate.Tick(now.Add(time.Minute)) })
	testkit.Eventually(t, "the loss is counted", func() bool {
		return figure(t, k.losses.WithLabelValues("DeadlineExceeded")) == 1
	})
	testkit.Eventually(t, "it was opened again", func() bool { return d.opened() >= 2 })
}

func TestRenewerConfig(t *testing.T) {
	for _, socket := range []string{"", "relative", "tcp://1.2.3.4:5", "/a/../b"} {
		if _, err := NewRenewer(RenewerConfig{Socket: socket}); err == nil || !strings.HasPrefix(err.Error(), "control socket: ") {
			t.Errorf("%q: %v", socket, err)
		}
		if _, err := Dial(t.Context(), socket); err == nil {
			t.Errorf("%q is dialled", socket)
		}
	}
	r := prometheus.NewRegistry()
	for i := range 2 {
		if _, err := NewRenewer(RenewerConfig{Socket: "unix:///x", Metrics: r}); (err != nil) != (i == 1) {
			t.Errorf("%d: %v", i, err)
		}
	}
	k := testkit.Value(NewRenewer(RenewerConfig{Socket: "/x"}))(t)
	ctx := testkit.Canceled(t)
	k.Enable(gate.Claim{Generation: 1})
	testkit.WantError(t, "Disable", testkit.Err(k.Disable(ctx)), context.Canceled)
}

func TestClient(t *testing.T) {
	d, s := start(t, socketOf(t))
	c := testkit.Open(Dial(testkit.Context(t), "unix://"+s.socket))(t)
	now, err := c.Status(testkit.Context(t))
	want := d.Status()
	if diff := cmp.Diff(want, now); err != nil || diff != "" {
		t.Errorf("%v, want -, got +:\n%s", err, diff)
	}
	if v, err := c.Version(testkit.Context(t)); err != nil || v != (Version{"cleat", "1.2", Extensions}) {
		t.Errorf("%v, %v", v, err)
	}
	_, err = c.Disable(testkit.Context(t), "a b")
	if end, ok := errors.AsType[*gate.End](err); !ok || end.Code != codes.InvalidArgument || !strings.HasPrefix(err.Error(), "DisableDevices at "+s.socket) {
		t.Error(err)
	}
	s.stop()
	_, err = c.Status(testkit.Context(t))
	if _, said := errors.AsType[*gate.End](err); err == nil || said {
		t.Errorf("not served: %v", err)
	}
	if _, err := Dial(testkit.Context(t), s.socket); !errors.Is(err, ErrNotServed) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	testkit.WantError(t, "the socket is left", testkit.Err(os.Stat(s.socket)), nil)
}
