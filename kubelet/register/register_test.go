package register

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/testing/protocmp"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestRegistrationLifecycle(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.Chmod(dir, 0o755)) // a new directory would have 0750
	r := serve(t, config(dir))
	s := r.reaches(Waiting)
	if s.Socket != filepath.Join(dir, "csi.cleat.dev-reg.sock") || s.Placed.IsZero() || !s.Asked.IsZero() || s.Losses != 0 {
		t.Errorf("status %+v", s)
	}
	alone(t, s.Socket)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory became %v, %v", info.Mode(), err)
	}
	h := dial(t, s.Socket)
	info, err := h.getInfo(t.Context())
	want := &registration.PluginInfo{Type: "CSIPlugin", Name: "csi.cleat.dev", Endpoint: "/run/cleat/csi/csi.sock", SupportedVersions: []string{"1.0.0"}}
	if diff := cmp.Diff(want, info, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("GetInfo: %v, %s", err, diff)
	}
	if s := r.Status(); s.State != Asked || s.Questions != 1 || r.Check(t.Context()) == nil {
		t.Errorf("after a question: %+v", s)
	}
	const text = "plugin validation failed with err: no"
	if err := h.notify(t.Context(), false, text); err != nil {
		t.Errorf("a refusal is answered with %v", err)
	}
	if s := r.Status(); s.State != Refused || s.Error != text || s.Refusals != 1 {
		t.Errorf("after a refusal: %+v", s)
	}
	if err := r.Check(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("readiness: %v", err)
	}
	for range 2 { // the host retries, and registers again after a restart
		h = dial(t, s.Socket)
		_, err = h.getInfo(t.Context())
		if err = errors.Join(err, h.notify(t.Context(), true, "")); err != nil {
			t.Error(err)
		}
		if s := r.Status(); s.State != Registered || s.Error != "" || r.Check(t.Context()) != nil {
			t.Errorf("after a yes: %+v", s)
		}
	}
	r.end()
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
	for _, line := range []string{`level=INFO msg="registration socket created"`, `level=WARN msg="plugin registration refused by host"`, `err="` + text, `level=INFO msg="plugin registered"`} {
		if strings.Count(r.logs.String(), line) != 1 {
			t.Errorf("the log holds not once %s:\n%s", line, r.logs.String())
		}
	}
}

func TestHostErrorIsTruncated(t *testing.T) {
	r := serve(t, config(t.TempDir()))
	r.reaches(Waiting)
	h := dial(t, r.socket)
	_, err := h.getInfo(t.Context())
	testkit.Must(t, errors.Join(err, h.notify(t.Context(), false, strings.Repeat("ä", 1<<19))))
	if s := r.Status(); s.State != Refused || len(s.Error) > maxText || !strings.HasPrefix(s.Error, "ää") {
		t.Errorf("%s, %d bytes", s.State, len(s.Error))
	}
}

// Concurrent calls of several hosts.
func TestConcurrentHosts(t *testing.T) {
	r := serve(t, config(t.TempDir()))
	r.reaches(Waiting)
	const hosts, rounds = 8, 20
	var running sync.WaitGroup
	for i := range hosts {
		h := dial(t, r.socket)
		running.Go(func() {
			for j := range rounds {
				info, err := h.getInfo(t.Context())
				if err != nil || info.GetName() != "csi.cleat.dev" {
					t.Errorf("GetInfo: %v, %v", info, err)
				}
				if err := h.notify(t.Context(), (i+j)%2 == 0, "no"); err != nil {
					t.Errorf("NotifyRegistrationStatus: %v", err)
				}
				_, _ = r.Status(), r.Check(t.Context())
			}
		})
	}
	running.Wait()
	if s := r.Status(); s.Questions != hosts*rounds || s.Refusals != hosts*rounds/2 || s.State != Registered && s.State != Refused {
		t.Errorf("%+v", s)
	}
}

func TestSilence(t *testing.T) {
	c := config(t.TempDir())
	c.Silence = 50 * time.Millisecond
	r := serve(t, c)
	s := r.reaches(Silent)
	if s.Since.Sub(s.Placed) != c.Silence || r.Check(t.Context()) == nil {
		t.Errorf("%+v", s)
	}
	r.until("a warning", func() bool { return strings.Contains(r.logs.String(), "state=silent") })
	for _, words := range []string{"level=WARN", "no kubelet watches this directory", "No other visible process"} {
		if log := r.logs.String(); !strings.Contains(log, words) {
			t.Errorf("the log lacks %q:\n%s", words, log)
		}
	}
	r.register() // a host can register late
}

// Even with a tiny Silence, the first warning contains the watching processes;
// the next warning comes a minute later.
func TestSilenceIsLoggedWithWatchers(t *testing.T) {
	c := config(t.TempDir())
	c.Silence = time.Nanosecond // elapsed before the state of the new socket is logged
	r := serve(t, c)
	r.until("a warning", func() bool { return strings.Contains(r.logs.String(), "state=silent") })
	if log := r.logs.String(); !strings.Contains(log, "No other visible process") {
		t.Errorf("the log lacks the watching processes:\n%s", log)
	}
}

func TestStopBeforeServe(t *testing.T) {
	dir := t.TempDir()
	r := testkit.Value(New(config(dir)))(t)
	if err := errors.Join(r.Stop(t.Context()), r.Stop(t.Context()), r.Serve(t.Context())); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestServeEndsWithContext(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	r := serveUntil(ctx, t, config(dir))
	r.reaches(Waiting)
	if _, err := dial(t, r.socket).getInfo(t.Context()); err != nil { // the connection stays open
		t.Error(err)
	}
	cancel()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	r.ended <- nil
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Stop and the removal of the socket race with GetInfo calls.
func TestStopDuringGetInfo(t *testing.T) {
	for range 10 {
		r := serve(t, config(t.TempDir()))
		r.reaches(Waiting)
		h := dial(t, r.socket)
		testkit.Value(h.getInfo(t.Context()))(t)
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() {
				for {
					_, err := h.getInfo(t.Context())
					if err = errors.Join(err, h.notify(t.Context(), true, "")); err != nil {
						return // the registrar has stopped
					}
				}
			})
		}
		r.end()
		running.Wait()
	}
}

func TestCollector(t *testing.T) {
	r := serve(t, config(t.TempDir()))
	r.reaches(Waiting)
	h := dial(t, r.socket)
	_, err := h.getInfo(t.Context())
	testkit.Must(t, errors.Join(err, h.notify(t.Context(), false, "no")))
	c := config("/x")
	c.Plugin.Name = "other.cleat.dev"
	other := testkit.Value(New(c))(t)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.Collector(), other.Collector())
	families := testkit.Value(registry.Gather())(t)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for key, want := range map[string]float64{
		"cleat_registration_state csi.cleat.dev refused CSIPlugin":      1,
		"cleat_registration_state csi.cleat.dev registered CSIPlugin":   0,
		"cleat_registration_state other.cleat.dev absent CSIPlugin":     1,
		"cleat_registration_questions_total csi.cleat.dev CSIPlugin":    1,
		"cleat_registration_refusals_total csi.cleat.dev CSIPlugin":     1,
		"cleat_registration_sockets_lost_total csi.cleat.dev CSIPlugin": 0,
		"cleat_registration_questions_total other.cleat.dev CSIPlugin":  0,
	} {
		if value, there := got[key]; !there || value != want {
			t.Errorf("%s is %v, %v; want %v", key, value, there, want)
		}
	}
	if _, there := got["cleat_registration_last_question_seconds other.cleat.dev CSIPlugin"]; there {
		t.Error("the age of a question at a socket that is not there")
	}
	if len(states()) != 7 {
		t.Errorf("%d states", len(states()))
	}
}

// OnResult is not called for a result about an earlier socket.
func TestOnResult(t *testing.T) {
	var mu sync.Mutex
	var words []string
	c := config(t.TempDir())
	c.OnResult = func(registered bool, text string) {
		mu.Lock()
		defer mu.Unlock()
		words = append(words, fmt.Sprintf("%t %s", registered, text))
	}
	r := serve(t, c)
	r.reaches(Waiting)
	h := dial(t, r.socket)
	testkit.Must(t, h.notify(t.Context(), true, "")) // without GetInfo on this socket
	testkit.Value(h.getInfo(t.Context()))(t)
	long := strings.Repeat("x", maxText+1)
	for _, word := range []struct {
		yes  bool
		text string
	}{{false, "no"}, {false, "no"}, {true, ""}, {false, long}} {
		testkit.Must(t, h.notify(t.Context(), word.yes, word.text))
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"false no", "false no", "true ", "false " + long[:maxText]}; !slices.Equal(words, want) {
		t.Errorf("got %.80q, want %.80q", words, want)
	}
}
