package testkit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	health "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failing records the failures of a test.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Fatal(args ...any) { f.text = fmt.Sprint(args...); runtime.Goexit() }

func (f *failing) Errorf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

// failure returns the failure text of a function.
func failure(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	v, done := &failing{TB: t}, make(chan struct{})
	go func() { defer close(done); f(v) }()
	<-done
	return v.text
}

func TestMust(t *testing.T) {
	testkit.Must(t, nil, nil)
	if got := failure(t, func(t testing.TB) { testkit.Must(t, nil, errors.New("one"), errors.New("two")) }); got != "one\ntwo" {
		t.Errorf("Must fails with %q", got)
	}
	if n := testkit.Value(7, nil)(t); n != 7 {
		t.Errorf("Value returns %d", n)
	}
	if got := failure(t, func(t testing.TB) { testkit.Value(7, errors.New("none"))(t) }); got != "none" {
		t.Errorf("Value fails with %q", got)
	}
}

// Test programs share a program of equal flags, and build a changed one.
func TestSharedPrograms(t *testing.T) {
	t.Setenv("CLEAT_PROGRAMS", t.TempDir())
	const pkg = "./test/testkit/mountns/run"
	stat := func(program string) os.FileInfo { return testkit.Value(os.Stat(program))(t) }
	first := stat(testkit.Build(t, pkg))
	if !os.SameFile(first, stat(testkit.Build(t, pkg))) {
		t.Error("the program was built twice")
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	testkit.Must(t, os.WriteFile(overlay, []byte("{}"), 0o600))
	for _, flags := range [][]string{{"-tags", "crashpoints"}, {"-overlay=" + overlay}} {
		if os.SameFile(first, stat(testkit.Build(t, pkg, flags...))) {
			t.Errorf("the program with %v is the one without", flags)
		}
	}
}

func TestDiff(t *testing.T) {
	testkit.Diff(t, "equal", []int{1}, []int{1})
	v := &failing{TB: t}
	testkit.Diff(v, "numbers", []int{1}, []int{2})
	if !strings.HasPrefix(v.text, "numbers (-want +got):") || !strings.Contains(v.text, "2,") {
		t.Errorf("Diff reports %q", v.text)
	}
}

func TestWantError(t *testing.T) {
	err := fmt.Errorf("open x: %w", os.ErrNotExist)
	testkit.WantError(t, "open", err, os.ErrNotExist, "open", "x")
	testkit.WantError(t, "open", testkit.Err(7, err), nil)
	for want, report := range map[string]func(t *failing){
		"open: no error": func(t *failing) { testkit.WantError(t, "open", nil, os.ErrNotExist) },
		"open: open x":   func(t *failing) { testkit.WantError(t, "open", err, os.ErrClosed) },
		`with "y"`:       func(t *failing) { testkit.WantError(t, "open", err, nil, "x", "y") },
	} {
		v := &failing{TB: t}
		if report(v); !strings.Contains(v.text, want) {
			t.Errorf("WantError reports %q, want %q", v.text, want)
		}
	}
}

func TestReceive(t *testing.T) {
	c := make(chan int, 3)
	c <- 1
	c <- 2
	c <- 3
	if n := testkit.Receive(t, "a number", c); n != 1 {
		t.Errorf("received %d", n)
	}
	if n := testkit.ReceiveUntil(t, "3", c, func(n int) bool { return n == 3 }); n != 3 {
		t.Errorf("received %d", n)
	}
	close(c)
	if n := testkit.Receive(t, "the end", c); n != 0 {
		t.Errorf("received %d", n)
	}
}

func TestProcess(t *testing.T) {
	p := testkit.Start(t, exec.Command("sh", "-c", `trap 'echo bye; exit 0' TERM; echo ready $$; while :; do sleep 0.01; done`))
	if line, want := p.WaitFor(t, "ready"), fmt.Sprint("ready ", p.PID()); line != want {
		t.Errorf("the program wrote %q, want %q", line, want)
	}
	testkit.Must(t, p.Stop(), p.Stop())
	if !strings.HasSuffix(p.Log.String(), "bye\n") {
		t.Errorf("log %q", p.Log)
	}
	ended := testkit.Start(t, exec.Command("sh", "-c", "echo no; exit 3"))
	if got := failure(t, func(t testing.TB) { ended.WaitFor(t, "yes") }); !strings.Contains(got, `"yes"`) || !strings.Contains(got, "no\n") {
		t.Errorf("WaitFor fails with %q", got)
	}
	if err := ended.Until(func() error { return errors.New("not ready") }); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("Until: %v", err)
	}
	if err := ended.Stop(); err == nil {
		t.Error("Stop accepts a program that failed")
	}
	if _, err := testkit.Launch(exec.Command("/nonexistent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Launch: %v", err)
	}
}

// A program outlives the thread that started it, and starts in the network
// namespace of that thread.
func TestProcessOutlivesItsThread(t *testing.T) {
	var p *testkit.Process
	var inside string
	testkit.OnThread(func() {
		testkit.EnterNetNS(t)
		inside = testkit.Value(os.Readlink("/proc/thread-self/ns/net"))(t)
		p = testkit.Start(t, exec.Command("sh", "-c", "readlink /proc/self/ns/net; exec sleep 600"))
	})
	p.WaitFor(t, inside)
	testkit.Must(t, p.Signal(unix.Signal(0)))
	if outside := testkit.Value(os.Readlink("/proc/thread-self/ns/net"))(t); outside == inside {
		t.Error("the test is still in the namespace")
	}
}

func TestNetNS(t *testing.T) {
	n := testkit.NewNetNS(t)
	var l net.Listener
	testkit.Must(t, n.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	defer l.Close()
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("the address is reachable from outside")
	}
	testkit.Must(t, n.Do(func() error {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			err = c.Close()
		}
		return err
	}))
}

func TestServe(t *testing.T) {
	socket := filepath.Join(testkit.Dir(t), "s.sock")
	serve := func() func() {
		return testkit.Serve(t, socket, func(s grpc.ServiceRegistrar) { health.RegisterHealthServer(s, service{}) })
	}
	for range 2 {
		client := health.NewHealthClient(testkit.Dial(t, socket))
		stop := serve()
		testkit.Value(client.Check(testkit.Context(t), nil, grpc.WaitForReady(true)))(t)
		stop()
		if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	}
}

type service struct {
	health.UnimplementedHealthServer
}

func (service) Check(context.Context, *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	return &health.HealthCheckResponse{}, nil
}

func TestMetric(t *testing.T) {
	r := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "calls"}, []string{"method", "result"})
	testkit.Must(t, r.Register(c))
	c.WithLabelValues("a", "ok").Add(2)
	c.WithLabelValues("b", "ok").Add(3)
	c.WithLabelValues("b", "failed").Add(4)
	for want, labels := range map[float64][]string{9: nil, 5: {"result=ok"}, 3: {"result=ok", "method=b"}, 0: {"result=b"}} {
		if got := testkit.Metric(t, r, "calls", labels...); got != want {
			t.Errorf("calls%v is %v, want %v", labels, got, want)
		}
	}
}
