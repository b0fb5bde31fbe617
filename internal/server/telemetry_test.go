package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	l := testkit.Value(NewLogger(&out, "json", "info"))(t)
	ctx := withID(t.Context(), "r-1")
	l.DebugContext(ctx, "hidden")
	l.With("a", 1).WithGroup("g").InfoContext(ctx, "shown", "b", 2)
	l.Info("without")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"request_id":"r-1"`) || strings.Contains(lines[1], "request_id") {
		t.Errorf("got %q", lines)
	}
	out.Reset()
	l = testkit.Value(NewLogger(&out, "text", "debug"))(t)
	l.DebugContext(ctx, "shown")
	if !strings.Contains(out.String(), "request_id=r-1") {
		t.Errorf("got %q", out.String())
	}
	for _, c := range [][3]string{{"jsn", "info", `mean "json"`}, {"text", "inof", `mean "info"`}, {"", "info", "text, json"}, {"text", "", "debug, info"}} {
		if _, err := NewLogger(&out, c[0], c[1]); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%v: got %v", c, err)
		}
	}
}

func TestEveryWordMakesALogger(t *testing.T) {
	for _, f := range []string{"text", "json"} {
		for _, l := range []string{"debug", "info", "warn", "error"} {
			if _, err := NewLogger(io.Discard, f, l); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestRequestID(t *testing.T) {
	if id := RequestID(t.Context()); id != "" {
		t.Errorf("got %q", id)
	}
	if a, b := newRequestID(), newRequestID(); a == b || len(a) != 16 {
		t.Errorf("got %q, %q", a, b)
	}
}

func newServer(t *testing.T) *telemetry {
	t.Helper()
	return newTelemetry(newRegistry(Build{Version: "v1", Commit: "c0ffee"}), slog.New(slog.DiscardHandler))
}

func served(t *testing.T, s *telemetry, address string) func(path string) (int, string) {
	t.Helper()
	testkit.Must(t, s.listen(t.Context(), address))
	ended := make(chan error, 1)
	go func() { ended <- s.serve(context.WithoutCancel(t.Context())) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, s.listeners[0].Addr().Network(), s.listeners[0].Addr().String())
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(s.stop(ctx), <-ended); err != nil {
			t.Error(err)
		}
	})
	client := &http.Client{Transport: transport}
	return func(path string) (int, string) {
		t.Helper()
		r := testkit.Value(client.Get("http://cleat" + path))(t)
		defer func() { _ = r.Body.Close() }()
		body := testkit.Value(io.ReadAll(r.Body))(t)
		return r.StatusCode, string(body)
	}
}

func TestServerOnBothKindsOfAddress(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "own", "metrics.sock")
	for _, address := range []string{"127.0.0.1:0", socket, "unix://" + socket} {
		t.Run(address, func(t *testing.T) {
			get := served(t, newServer(t), address)
			if code, body := get("/healthz"); code != 200 || body != "ok\n" {
				t.Errorf("healthz: %d %q", code, body)
			}
			code, body := get("/metrics")
			for _, name := range []string{"go_goroutines", "process_resident_memory_bytes", `cleat_build_info{commit="c0ffee",go="go`, `version="v1"`} {
				if code != 200 || !strings.Contains(body, name) {
					t.Errorf("metrics: %d, no %s", code, name)
				}
			}
			if code, _ := get("/else"); code != 404 {
				t.Errorf("unknown path: %d", code)
			}
		})
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Stop: %v", err)
	}
}

func TestReadyz(t *testing.T) {
	s := newServer(t)
	get := served(t, s, "127.0.0.1:0")
	ask := func() (int, readiness) {
		t.Helper()
		code, body := get("/readyz")
		var answer readiness
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%v in %q", err, body)
		}
		return code, answer
	}
	if code, answer := ask(); code != 200 || !answer.Ready {
		t.Errorf("without checks: %d %+v", code, answer)
	}
	var pool error
	s.Check("pool", func(context.Context) error { return pool })
	for i := range 30 { // in any order
		s.Check(fmt.Sprint("csi", i), func(context.Context) error { return nil })
	}
	if code, answer := ask(); code != 200 || !answer.Ready || answer.Checks["pool"] != "ok" {
		t.Errorf("all well: %d %+v", code, answer)
	}
	pool = errors.New("the pool is not mounted")
	if code, answer := ask(); code != 503 || answer.Ready || answer.Checks["pool"] != "the pool is not mounted" || answer.Checks["csi0"] != "ok" {
		t.Errorf("one fails: %d %+v", code, answer)
	}
	s.Check("pool", func(context.Context) error { panic("secret") })
	if code, answer := ask(); code != 503 || answer.Checks["pool"] == "ok" || strings.Contains(answer.Checks["pool"], "secret") {
		t.Errorf("one panics: %d %+v", code, answer)
	}
	s.CheckOnly("csi1")
	if code, answer := ask(); code != 200 || len(answer.Checks) != 1 || answer.Checks["csi1"] != "ok" {
		t.Errorf("one counts: %d %+v", code, answer)
	}
	s.CheckOnly("")
	if code, _ := ask(); code != 503 {
		t.Errorf("all count again: %d", code)
	}
}

func TestStatus(t *testing.T) {
	s := newServer(t)
	get := served(t, s, "127.0.0.1:0")
	s.Status("operations", func(context.Context) (any, error) { return []string{"CreateVolume"}, nil })
	s.Status("pool", func(context.Context) (any, error) { return nil, errors.New("not mounted") })
	s.Status("bad", func(context.Context) (any, error) { panic("secret") })
	code, body := get("/status")
	var answer struct {
		Operations []string
		Pool, Bad  struct{ Error string }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != 200 {
		t.Fatalf("%d %v in %q", code, err, body)
	}
	if len(answer.Operations) != 1 || answer.Pool.Error != "not mounted" || answer.Bad.Error == "" || strings.Contains(body, "secret") {
		t.Errorf("got %s", body)
	}
	s.Status("bad", func(context.Context) (any, error) { return func() {}, nil })
	if code, _ := get("/status"); code != 500 {
		t.Errorf("what does not fit into JSON: %d", code)
	}
}

func TestBrokenCollectorLeavesTheOthers(t *testing.T) {
	r := newRegistry(Build{})
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cleat_fine"}, func() float64 { return 1 }), broken{})
	get := served(t, newTelemetry(r, slog.New(slog.DiscardHandler)), "127.0.0.1:0")
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, "cleat_fine 1") {
		t.Errorf("%d %s", code, body)
	}
}

type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}

func (broken) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.NewInvalidMetric(prometheus.NewDesc("cleat_broken", "", nil, nil), errors.New("broken"))
}

func TestNoAddressServesNothing(t *testing.T) {
	s := newServer(t)
	if err := errors.Join(s.listen(t.Context(), ""), s.serve(t.Context()), s.stop(t.Context())); err != nil || len(s.listeners) != 0 {
		t.Errorf("got %v, %v", err, s.listeners)
	}
}

func TestBadAddresses(t *testing.T) {
	for address, want := range map[string]string{"nonsense": "host:port", "127.0.0.1:99999": "invalid port", "unix://x": "relative", "/a/../b": "clean"} {
		s := newServer(t)
		if err := s.listen(t.Context(), address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

func TestAskOnSeveralAddresses(t *testing.T) {
	s := newServer(t)
	s.Status("csi", func(context.Context) (any, error) { return "well", nil })
	s.Check("pool", func(context.Context) error { return errors.New("not mounted") })
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100), "status.sock")
	testkit.Must(t, os.Mkdir(filepath.Dir(long), 0o700))
	testkit.Must(t, s.listenSocket(t.Context(), unixsock.Address{Path: long, SharedDir: true, AnyLength: true}))
	plain := filepath.Join(t.TempDir(), "m.sock")
	testkit.Must(t, s.listen(t.Context(), plain))
	served(t, s, "127.0.0.1:0")
	for _, address := range []string{long, "unix://" + plain, s.listeners[2].Addr().String()} {
		var document struct{ CSI string }
		var ready readiness
		err := errors.Join(Ask(t.Context(), address, "/status", &document), Ask(t.Context(), address, "/readyz", &ready))
		if err != nil || document.CSI != "well" || ready.Ready || ready.Checks["pool"] != "not mounted" {
			t.Errorf("%s: %v, %+v, %+v", address, err, document, ready)
		}
	}
	var document any
	for address, want := range map[string]string{plain + "2": "no such file", "unix://x": "relative", "127.0.0.1:99999": "invalid port"} {
		if err := Ask(t.Context(), address, "/status", &document); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := Ask(t.Context(), plain, "/else", &document); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no document: %v", err)
	}
}

func TestStopWithoutServe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.sock")
	s := newServer(t)
	if err := errors.Join(s.listen(t.Context(), path), s.stop(t.Context())); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stayed: %v", err)
	}
}

func TestEndOfTheContextStopsServe(t *testing.T) {
	s := newServer(t)
	testkit.Must(t, s.listen(t.Context(), "127.0.0.1:0"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.serve(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// JSON has no durations: slog writes them without a unit.
func TestDurationsAreInSeconds(t *testing.T) {
	for format, want := range map[string]string{"json": `"duration":"0.0125s","g":{"next":"90s"}`, "text": "duration=0.0125s g.next=90s"} {
		var out bytes.Buffer
		l := testkit.Value(NewLogger(&out, format, "info"))(t)
		l.Info("call", "duration", 12500*time.Microsecond, slog.Group("g", "next", 90*time.Second))
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: got %q, want %q in it", format, out.String(), want)
		}
	}
}
