package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
)

var (
	errNotFound = errors.New("there is no such thing")
	errBusy     = errors.New("busy")
)

func TestErrorsBecomeAnswers(t *testing.T) {
	detailed := testkit.Value(status.New(codes.ResourceExhausted, "full").WithDetails(&health.HealthCheckRequest{}))(t)
	for name, c := range map[string]struct {
		err     error
		code    codes.Code
		message string
	}{
		"from the table":     {fmt.Errorf("volume v: %w", errNotFound), codes.NotFound, "volume v: there is no such thing"},
		"unknown":            {errors.New("odd"), codes.Internal, "odd"},
		"a status":           {status.Error(codes.OutOfRange, "too large"), codes.OutOfRange, "too large"},
		"details go":         {detailed.Err(), codes.ResourceExhausted, "full"},
		"status deep inside": {fmt.Errorf("peer: %w", status.Error(codes.NotFound, "x")), codes.Internal, "peer: rpc error: code = NotFound desc = x"},
		"deadline":           {fmt.Errorf("mkfs: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "mkfs: context deadline exceeded"},
		"cancelled":          {context.Canceled, codes.Canceled, "context canceled"},
		"the table is first": {fmt.Errorf("%w: %w", errBusy, context.Canceled), codes.Aborted, "busy: context canceled"},
		"never OK":           {errors.New("table says OK"), codes.Unknown, "table says OK"},
		"long":               {errors.New(strings.Repeat("ü", 5000)), codes.Internal, strings.Repeat("ü", 2046) + "…"},
		"not UTF-8":          {errors.New("a\xffb"), codes.Internal, "a\uFFFDb"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "error")
			r.service.answer = func(context.Context) error { return c.err }
			first, streamed := r.watch(t.Context())
			if first != nil {
				t.Error(first)
			}
			for _, err := range []error{r.check(t.Context()), streamed} {
				st := status.Convert(err)
				if st.Code() != c.code || st.Message() != c.message || len(st.Proto().Details) != 0 {
					t.Errorf("got %v, %.60q, details %v", st.Code(), st.Message(), st.Proto().Details)
				}
				if len(st.Message()) > maxMessage {
					t.Errorf("%d bytes", len(st.Message()))
				}
			}
		})
	}
}

func TestRequestIDs(t *testing.T) {
	r := newRig(t, "debug")
	var seen string
	r.service.answer = func(ctx context.Context) error { seen = RequestID(ctx); return nil }
	for sent, want := range map[string]string{
		"abc-1.2:3/x": "abc-1.2:3/x", "": "", "has space": "", `quo"te`: "", strings.Repeat("x", 129): "",
		strings.Repeat("y", 128): strings.Repeat("y", 128),
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), requestIDHeader, sent)
		var header metadata.MD
		testkit.Must(t, r.check(ctx, grpc.Header(&header)))
		if got := header.Get(requestIDHeader); len(got) != 1 || got[0] != seen || want != "" && seen != want || want == "" && len(seen) != 16 {
			t.Errorf("sent %q: header %v, in the context %q", sent, got, seen)
		}
		for _, line := range r.lines() {
			if line["request_id"] != seen {
				t.Errorf("log: %v", line)
			}
		}
		r.watch(ctx)
		if want != "" && seen != want {
			t.Errorf("stream: sent %q, got %q", sent, seen)
		}
		r.lines()
	}
}

func TestIDsThatWouldSpoilTheLog(t *testing.T) {
	for _, id := range []string{"", "line\nbreak", "tab\t", "nul\x00", "ünicode", "\x7f", "a b"} {
		if isSane(id) {
			t.Errorf("%q is taken", id)
		}
	}
}

func TestPanicsAreContained(t *testing.T) {
	r := newRig(t, "info")
	r.service.answer = func(context.Context) error { panic("the secret") }
	_, streamed := r.watch(t.Context())
	for _, err := range []error{r.check(t.Context()), streamed} {
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "goroutine") || !strings.Contains(err.Error(), "request ") {
			t.Errorf("got %v", err)
		}
	}
	if got := testkit.Metric(t, r.registry, "cleat_rpc_panics_total"); got != 2 {
		t.Errorf("%v panics counted", got)
	}
	stacks := 0
	for _, line := range r.lines() {
		if stack, _ := line["stack"].(string); strings.Contains(stack, "grpc_test.go") && line["value"] == "the secret" {
			stacks++
		}
	}
	if stacks != 2 {
		t.Errorf("%d stacks in the log", stacks)
	}
	r.server.metrics.panicked(t.Context(), r.server.logger, "elsewhere", 1, nil)
	if got := testkit.Metric(t, r.registry, "cleat_rpc_panics_total"); got != 3 {
		t.Errorf("%v panics counted", got)
	}
}

func TestWhatIsLogged(t *testing.T) {
	loud := func(c *GRPCConfig) { c.Quiet = func(string) bool { return false } }
	for name, c := range map[string]struct {
		level  string
		change []func(*GRPCConfig)
		err    error
		want   string // the levels of the lines; * where the request is shown
	}{
		"quiet success":          {"info", nil, nil, ""},
		"quiet success at debug": {"debug", nil, nil, "DEBUG* DEBUG"},
		"success":                {"info", []func(*GRPCConfig){loud}, nil, "INFO"},
		"success at debug":       {"debug", []func(*GRPCConfig){loud}, nil, "DEBUG* INFO"},
		"failure":                {"info", nil, errNotFound, "WARN*"},
		"fault":                  {"info", nil, errors.New("odd"), "ERROR*"},
		"cancelled":              {"info", nil, context.Canceled, "INFO*"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.level, c.change...)
			r.service.answer = func(context.Context) error { return c.err }
			for _, method := range []string{"Check", "Watch"} {
				if method == "Check" {
					_ = r.check(t.Context())
				} else {
					r.watch(t.Context())
				}
				// The peer has the response before the line is logged.
				r.awaitIdle()
				var got []string
				for _, line := range r.lines() {
					word := fmt.Sprint(line["level"])
					if strings.Contains(fmt.Sprint(line["request"]), "the-request") {
						word += "*"
					}
					if m := fmt.Sprint(line["method"]); !strings.HasSuffix(m, method) {
						t.Errorf("method %s", m)
					}
					if line["msg"] == "call" && (line["duration"] == nil || line["code"] == nil || (line["err"] != nil) != (c.err != nil)) {
						t.Errorf("line %v", line)
					}
					got = append(got, word)
				}
				if strings.Join(got, " ") != c.want {
					t.Errorf("%s: got %v, want %s", method, got, c.want)
				}
			}
		})
	}
}

func TestMetricsAreSharedAndCount(t *testing.T) {
	r := newRig(t, "error")
	if _, err := NewGRPC(GRPCConfig{Metrics: r.registry, Code: table}); err != nil {
		t.Fatalf("a second server: %v", err)
	}
	_ = r.check(t.Context())
	r.service.answer = func(context.Context) error { return errNotFound }
	_ = r.check(t.Context())
	r.watch(t.Context())
	r.awaitIdle()
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"cleat_rpc_calls_total", []string{"method=grpc.health.v1.Health/Check", "code=OK"}, 1},
		{"cleat_rpc_calls_total", []string{"method=grpc.health.v1.Health/Check", "code=NotFound"}, 1},
		{"cleat_rpc_calls_total", []string{"method=grpc.health.v1.Health/Watch", "code=NotFound"}, 1},
		{"cleat_rpc_duration_seconds", []string{"method=grpc.health.v1.Health/Check"}, 2},
		{"cleat_rpc_calls_running", nil, 0},
	} {
		if got := testkit.Metric(t, r.registry, c.name, c.labels...); got != c.want {
			t.Errorf("%s %v: %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "cleat_rpc_panics_total", Help: "another"}))
	if _, err := NewGRPC(GRPCConfig{Metrics: other, Code: table}); err == nil {
		t.Error("a clash of metrics is no error")
	}
	if _, err := NewGRPC(GRPCConfig{}); err == nil {
		t.Error("a server without a table")
	}
}

func TestLargeMessagesAreRefused(t *testing.T) {
	r := newRig(t, "error", func(c *GRPCConfig) { c.MaxReceive = 100 })
	_, err := r.client.Check(t.Context(), &health.HealthCheckRequest{Service: strings.Repeat("x", 200)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

func TestQuietMethod(t *testing.T) {
	for method, want := range map[string]bool{
		"/csi.v1.Identity/Probe": true, "/csi.v1.Identity/GetPluginInfo": true, "/csi.v1.Controller/ListVolumes": true,
		"/csi.v1.Controller/ControllerGetCapabilities": true, "/csi.v1.Node/NodeGetVolumeStats": true,
		"/csi.v1.GroupController/GroupControllerGetCapabilities": true, "/csi.v1.Controller/ValidateVolumeCapabilities": true,
		"/csi.v1.Controller/CreateVolume": false, "/csi.v1.Node/NodeStageVolume": false, "/csi.v1.Controller/ControllerModifyVolume": false,
		"odd": false,
	} {
		if got := QuietMethod(method); got != want {
			t.Errorf("%s: %v", method, got)
		}
	}
}

// A connection older than MaxAge accepts no new call; clients reconnect
// automatically.
func TestOldConnectionsAreRenewed(t *testing.T) {
	r := newRig(t, "error", func(c *GRPCConfig) { c.MaxAge = 20 * time.Millisecond })
	var dials atomic.Int64
	conn := testkit.Value(grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, "unix", r.path)
		})))(t)
	defer func() { _ = conn.Close() }()
	client := health.NewHealthClient(conn)
	for deadline := time.Now().Add(time.Minute); dials.Load() < 3; time.Sleep(time.Millisecond) {
		testkit.Value(client.Check(t.Context(), &health.HealthCheckRequest{}))(t)
		if time.Now().After(deadline) {
			t.Fatal("all calls came over one connection")
		}
	}
}
