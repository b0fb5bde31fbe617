package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestRegisterAndDeregister(t *testing.T) {
	r := startRig(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	events := r.Subscribe(ctx)
	p := newPlugin(t, r.path("sub/a.sock"), "T", "n", nil)
	got := testkit.Value(r.Wait(ctx, "T", "n"))(t)
	want := Status{Phase: Registered, Plugin: Plugin{
		Type: "T", Name: "n", Endpoint: r.path("sub/a.sock"), Versions: []string{"1.0.0"}, Socket: r.path("sub/a.sock"),
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Status{}, "Found", "Since", "Attempts")); diff != "" || got.Found.IsZero() {
		t.Errorf("want-, got+:\n%s", diff)
	}
	if got := p.notifications(); !slices.Equal(got, []string{"true "}) {
		t.Errorf("the plugin was notified of %q", got)
	}
	testkit.Must(t, os.Remove(p.path))
	var phases []Phase
	for e := range events {
		if e.Serial != uint64(len(phases)+1) || e.Lost {
			t.Errorf("event %+v", e)
		}
		if phases = append(phases, e.Status.Phase); e.Status.Phase == Gone {
			break
		}
	}
	all := []Phase{Waiting, Asking, Validating, Registering, Notifying, Registered, DeRegistering, Gone}
	testkit.Diff(t, "phases", all, phases)
	if got := r.made(); got != "Validate n, Register n, DeRegister n" {
		t.Errorf("calls: %s", got)
	}
	if left := r.List(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestPresentAtStart(t *testing.T) {
	r := newRig(t, nil)
	for i := range 20 {
		newPlugin(t, r.path(fmt.Sprintf("%d.sock", i)), "T", fmt.Sprint("n", i), nil)
	}
	r.start()
	for i := range 20 {
		r.phase(fmt.Sprintf("%d.sock", i), Registered)
	}
	serial, all := r.Snapshot()
	if len(all) != 20 || !slices.IsSortedFunc(all, func(a, b Status) int { return strings.Compare(a.Socket, b.Socket) }) || serial < 100 {
		t.Errorf("%d: %+v", serial, all)
	}
}

// The plugin is notified with the kubelet's error texts.
func TestNotified(t *testing.T) {
	no := func(context.Context, Plugin) error { return errors.New("no") }
	for name, c := range map[string]struct {
		kind     string
		set      func(*recorder)
		notified string
		calls    string
		step     Phase
		reason   string
	}{
		"type": {kind: "U", set: func(*recorder) {}, notified: "no handler registered for plugin type: U at socket SOCKET",
			step: Validating, reason: "this host handles T;"},
		"Validate": {kind: "T", set: func(r *recorder) { r.validate = no }, notified: "plugin validation failed with err: no",
			calls: "Validate n", step: Validating, reason: "the handler for T refused"},
		"Register": {kind: "T", set: func(r *recorder) { r.register = no }, notified: "plugin registration failed with err: no",
			calls: "Validate n, Register n", step: Registering, reason: "the handler for T refused"},
		"panic": {kind: "T", set: func(r *recorder) { r.register = func(context.Context, Plugin) error { panic("no") } },
			notified: "plugin registration failed with err: panic: no", calls: "Validate n, Register n, DeRegister n",
			step: Registering, reason: "a bug in the handler"},
		"timeout": {kind: "T", set: func(r *recorder) {
			r.register = func(ctx context.Context, _ Plugin) error { <-ctx.Done(); return ctx.Err() }
		}, notified: "plugin registration failed with err: context deadline exceeded", calls: "Validate n, Register n, DeRegister n",
			step: Registering, reason: "its limit is 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) {
				o.BackOff.First = time.Minute
				if name == "timeout" {
					o.Timeouts.Register = 50 * time.Millisecond
				}
			})
			c.set(r.recorder)
			r.start()
			p := newPlugin(t, r.path("a.sock"), c.kind, "n", nil)
			_, text, _ := strings.Cut(c.notified, "with err: ") // the prefix is only for the plugin
			r.failed("a.sock", c.step, text, c.reason)
			want := "false RegisterPlugin error -- " + strings.ReplaceAll(c.notified, "SOCKET", p.path)
			if got := p.notifications(); !slices.Equal(got, []string{want}) {
				t.Errorf("notified of %q, want %q", got, want)
			}
			if got := r.made(); got != c.calls {
				t.Errorf("calls: %s, want %s", got, c.calls)
			}
		})
	}
}

func TestHandlerLater(t *testing.T) {
	r := startRig(t, func(o *Options) { o.BackOff.First = time.Minute })
	newPlugin(t, r.path("a.sock"), "Late", "n", nil)
	r.failed("a.sock", Validating, "no handler registered for plugin type: Late", "this host handles T")
	late := newRecorder()
	testkit.Must(t, r.Handle("Late", late))
	r.phase("a.sock", Registered)
	for kind, handler := range map[string]Handler{"": late, "nil": nil, "Late": late} {
		if err := r.Handle(kind, handler); err == nil {
			t.Errorf("a handler %v for %q was taken", handler, kind)
		}
	}
}

// During a long handler call the plugin's server can close the idle connection;
// the plugin is then notified over a new one.
func TestNotifiedOverAnotherConnection(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Peer = func(Peer) error { return nil } })
	aside := filepath.Join(filepath.Dir(r.dir), "a")
	p := newPlugin(t, aside, "T", "n", nil)
	r.register = func(context.Context, Plugin) error { p.closeConn(); return nil }
	r.start()
	testkit.Must(t, os.Rename(aside, r.path("a.sock")))
	if s := r.phase("a.sock", Registered); s.Attempts != 1 {
		t.Errorf("after %d attempts", s.Attempts)
	}
	if got := p.notifications(); !slices.Equal(got, []string{"true "}) {
		t.Errorf("notified of %q", got)
	}
}

func TestNotifyFails(t *testing.T) {
	for name, c := range map[string]struct {
		notify func(context.Context) error
		reason string
	}{
		"error": {func(context.Context) error { return status.Error(codes.Internal, "not now") }, "answered NotifyRegistrationStatus with this error"},
		"hangs": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "did not answer NotifyRegistrationStatus within 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t, func(o *Options) {
				if o.BackOff.First = time.Minute; name == "hangs" {
					o.Timeouts.Notify = time.Second
				}
			})
			newPlugin(t, r.path("a.sock"), "T", "n", func(p *plugin) {
				p.notify = func(ctx context.Context, _ *registration.RegistrationStatus) error { return c.notify(ctx) }
			})
			r.failed("a.sock", Notifying, "NotifyRegistrationStatus: ", c.reason)
			if got := r.made(); got != "Validate n, Register n, DeRegister n" {
				t.Errorf("calls: %s", got)
			}
		})
	}
}

func TestOptionsRefused(t *testing.T) {
	handler := newRecorder()
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no directory":   {func(o *Options) { o.Dir = "" }, "/var/lib/kubelet/plugins_registry"},
		"relative":       {func(o *Options) { o.Dir = "plugins" }, `"plugins" must be an absolute`},
		"not clean":      {func(o *Options) { o.Dir = "/a/../b" }, "clean"},
		"everything":     {func(o *Options) { o.Dir = "/" }, "root directory"},
		"NUL":            {func(o *Options) { o.Dir = "/a\x00" }, "NUL"},
		"no type":        {func(o *Options) { o.Handlers = map[string]Handler{"": handler} }, "CSIPlugin"},
		"nil handler":    {func(o *Options) { o.Handlers = map[string]Handler{"T": nil} }, "for T is nil"},
		"negative":       {func(o *Options) { o.Timeouts.GetInfo = -1 }, "Timeouts.GetInfo is -1ns"},
		"pauses":         {func(o *Options) { o.BackOff.First = time.Hour }, "BackOff.First is 1h0m0s"},
		"jitter":         {func(o *Options) { o.BackOff.Jitter = 1.5 }, "1.5"},
		"concurrency":    {func(o *Options) { o.Concurrency = -3 }, "-3"},
		"negative grace": {func(o *Options) { o.Grace = -time.Second }, "Grace is -1s"},
	} {
		o := Options{Dir: "/run/x"}
		c.change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	o := testkit.Value(Options{Dir: "/run/x", BackOff: BackOff{Jitter: -1}}.complete())(t)
	want := Timeouts{10 * time.Second, time.Second, 30 * time.Second, 5 * time.Minute, 5 * time.Second, time.Minute}
	if o.Timeouts != want || o.BackOff != (BackOff{500 * time.Millisecond, 122 * time.Second, 0}) || o.Concurrency != 64 || o.Rescan != time.Minute || o.Grace != 0 {
		t.Errorf("defaults: %+v", o)
	}
}

func TestStartRefuses(t *testing.T) {
	r := newRig(t, nil)
	testkit.Must(t, os.WriteFile(r.dir, nil, 0o600))
	if err := r.Start(t.Context()); err == nil || !strings.Contains(err.Error(), r.dir) {
		t.Errorf("a file: %v", err)
	}
	if err := r.Health(); err == nil {
		t.Error("healthy without a start")
	}
	testkit.Must(t, os.Remove(r.dir))
	r.start() // Start can be retried
	testkit.Must(t, r.Health())
	if err := r.Start(t.Context()); err == nil {
		t.Error("started twice")
	}
	if info, err := os.Stat(r.dir); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("made: %v, %v", info, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newRig(t, nil).Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestHealth(t *testing.T) {
	r := startRig(t, nil)
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Registered)
	testkit.Must(t, os.RemoveAll(r.dir))
	r.phase("a.sock", Gone)
	testkit.Eventually(t, "the missing directory is reported", func() bool {
		err := r.Health()
		return err != nil && strings.Contains(err.Error(), r.dir)
	})
	newPlugin(t, filepath.Join(r.dir, "b.sock"), "T", "n", nil)
	r.phase("b.sock", Registered)
	testkit.Must(t, r.Health())
}
