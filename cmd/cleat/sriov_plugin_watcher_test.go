package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/test/testkit"
)

// fakeHandler is a fake of the kubelet's device plugin handler.
type fakeHandler struct {
	mu     sync.Mutex
	refuse error
	calls  []string
}

func (h *fakeHandler) record(call string, p watch.Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, call+" "+p.Name+" "+p.Endpoint)
	return h.refuse
}

func (h *fakeHandler) Validate(context.Context, watch.Plugin) error { return nil }

func (h *fakeHandler) Register(_ context.Context, p watch.Plugin) error {
	return h.record("register", p)
}

func (h *fakeHandler) DeRegister(_ context.Context, p watch.Plugin) error {
	_ = h.record("deregister", p)
	return nil
}

func (h *fakeHandler) recorded() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

func (h *fakeHandler) refuses(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = err
}

// watcherRig is a registrar with a directory that a host can watch.
type watcherRig struct {
	watchedDirectory
	t        *testing.T
	dir      string
	handler  *fakeHandler
	registry *prometheus.Registry
	log      *testkit.Log
}

func newWatcherRig(t *testing.T) *watcherRig {
	t.Helper()
	r := &watcherRig{t: t, dir: testkit.Dir(t), handler: &fakeHandler{}, registry: prometheus.NewRegistry(), log: &testkit.Log{}}
	r.watchedDirectory = watchedDirectory{register.NewDirectory(r.dir, slog.New(slog.NewTextHandler(r.log, nil)), r.registry)}
	t.Cleanup(func() {
		if err := r.Close(r.context()); err != nil {
			t.Errorf("close: %v", err)
		}
		entries, err := os.ReadDir(r.dir)
		if err != nil || len(entries) > 0 {
			t.Errorf("left over: %v, %v", entries, err)
		}
	})
	return r
}

func (r *watcherRig) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

// watch starts a host that watches the directory.
func (r *watcherRig) watch() (end func()) {
	r.t.Helper()
	host, err := watch.New(watch.Options{Dir: r.dir, Handlers: map[string]watch.Handler{register.Device: r.handler}})
	if err == nil {
		err = host.Start(r.t.Context())
	}
	testkit.Must(r.t, err)
	var once sync.Once
	end = func() {
		once.Do(func() {
			if err := host.Close(r.context(), false); err != nil {
				r.t.Error(err)
			}
		})
	}
	r.t.Cleanup(end)
	return end
}

func (r *watcherRig) registration(resource string) plugin.Registration {
	return plugin.Registration{Resource: resource, Endpoint: filepath.Join(r.dir, "."+plugin.SocketName(resource))}
}

// created returns the creation time of the registration socket, zero if it does not
// exist. Inode numbers are reused.
func (r *watcherRig) created(resource string) time.Time {
	info, err := os.Lstat(filepath.Join(r.dir, strings.ReplaceAll(resource, "/", "_")+"-reg.sock"))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// countRegistrations returns the number of registrations in the metrics.
func (r *watcherRig) countRegistrations() int {
	r.t.Helper()
	families := testkit.Value(r.registry.Gather())(r.t)
	for _, f := range families {
		if f.GetName() == "cleat_registration_questions_total" {
			return len(f.GetMetric())
		}
	}
	return 0
}

func TestWatcherRegisters(t *testing.T) {
	r := newWatcherRig(t)
	r.watch()
	a := r.registration("example.com/a")
	testkit.Must(t, r.Register(r.context(), a))
	testkit.Must(t, r.Register(r.context(), r.registration("example.com/b")))
	if got, want := r.handler.recorded(), []string{"register example.com/a " + a.Endpoint, "register example.com/b " + r.registration("example.com/b").Endpoint}; !slices.Equal(got, want) {
		t.Errorf("the host received %v, want %v", got, want)
	}
	if n := r.countRegistrations(); n != 2 {
		t.Errorf("the metrics have %d registrations, want 2", n)
	}
	// After a loss: the host registers again only if the socket is new.
	testkit.Must(t, r.Register(r.context(), a))
	testkit.Eventually(t, "the host registered it again", func() bool {
		n := 0
		for _, call := range r.handler.recorded() {
			if strings.HasPrefix(call, "register example.com/a ") {
				n++
			}
		}
		return n == 2
	})
	if n := r.countRegistrations(); n != 2 {
		t.Errorf("the metrics have %d registrations after one was made again, want 2", n)
	}
	testkit.Must(t, r.Forget(r.context(), "example.com/a"))
	if !r.created("example.com/a").IsZero() || r.created("example.com/b").IsZero() {
		t.Error("not exactly the socket of the resource that was forgotten is gone")
	}
	testkit.Eventually(t, "the host deregistered it", func() bool {
		calls := r.handler.recorded()
		return calls[len(calls)-1] == "deregister example.com/a "+a.Endpoint
	})
	if n := r.countRegistrations(); n != 1 {
		t.Errorf("the metrics have %d registrations after one was forgotten, want 1", n)
	}
	if err := r.Forget(r.context(), "example.com/a"); err != nil {
		t.Errorf("forget again: %v", err)
	}
}

// An error of the host is returned, and a later registration succeeds.
func TestWatcherIsRefused(t *testing.T) {
	r := newWatcherRig(t)
	r.watch()
	r.handler.refuses(errors.New("not this one"))
	if err := r.Register(r.context(), r.registration("example.com/a")); err == nil || !strings.Contains(err.Error(), "not this one") {
		t.Errorf("refused: %v, want why", err)
	}
	r.handler.refuses(nil)
	if err := r.Register(r.context(), r.registration("example.com/a")); err != nil {
		t.Error(err)
	}
}

// Register waits for a host that starts later.
func TestWatcherWaits(t *testing.T) {
	r := newWatcherRig(t)
	result := make(chan error, 1)
	go func() { result <- r.Register(r.context(), r.registration("example.com/a")) }()
	testkit.Eventually(t, "the socket is there", func() bool { return !r.created("example.com/a").IsZero() })
	select {
	case err := <-result:
		t.Fatalf("it returned %v without a host", err)
	default:
	}
	r.watch()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// Register ends with the caller, another Register, Forget and Close.
func TestWatcherWaitEnds(t *testing.T) {
	for name, end := range map[string]func(*watcherRig, context.CancelFunc) error{
		"caller": func(_ *watcherRig, cancel context.CancelFunc) error { cancel(); return nil },
		"again": func(r *watcherRig, _ context.CancelFunc) error {
			ctx, cancel := context.WithCancel(context.Background())
			before := r.created("example.com/a")
			again := make(chan error, 1)
			go func() { again <- r.Register(ctx, r.registration("example.com/a")) }()
			testkit.Eventually(r.t, "a new socket", func() bool { return r.created("example.com/a").After(before) })
			cancel()
			if err := <-again; !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
		"forget": func(r *watcherRig, _ context.CancelFunc) error { return r.Forget(r.context(), "example.com/a") },
		"close":  func(r *watcherRig, _ context.CancelFunc) error { return r.Close(r.context()) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newWatcherRig(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan error, 1)
			go func() { result <- r.Register(ctx, r.registration("example.com/a")) }()
			testkit.Eventually(t, "the socket is there", func() bool { return !r.created("example.com/a").IsZero() })
			if err := end(r, cancel); err != nil {
				t.Error(err)
			}
			if err := <-result; err == nil {
				t.Error("a canceled registration succeeds")
			}
		})
	}
}

func TestWatcherIsClosed(t *testing.T) {
	r := newWatcherRig(t)
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := r.Register(r.context(), r.registration("example.com/a")); err == nil {
		t.Error("a closed watcher registers")
	}
	if !r.created("example.com/a").IsZero() || r.countRegistrations() != 0 {
		t.Error("a closed watcher left a socket or metrics")
	}
}

// Invalid names are refused before a socket is created.
func TestWatcherRefusesNames(t *testing.T) {
	r := newWatcherRig(t)
	if err := r.Register(r.context(), r.registration("no resource")); err == nil || !strings.Contains(err.Error(), "no resource") {
		t.Errorf("an invalid name: %v", err)
	}
	if n := r.countRegistrations(); n != 0 {
		t.Errorf("the metrics have %d registrations", n)
	}
}

// upstreamPlugin serves registration and devices on one socket with the resource's
// name, like the upstream plugin.
func (r *watcherRig) upstreamPlugin(resource string) (stop func()) {
	r.t.Helper()
	l := testkit.Value(net.Listen("unix", filepath.Join(r.dir, plugin.SocketName(resource))))(r.t)
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &fakePlugin{notified: make(chan *registration.RegistrationStatus, 16),
		info: &registration.PluginInfo{Type: register.Device, Name: resource, Endpoint: l.Addr().String(), SupportedVersions: []string{"v1alpha1", "v1beta1"}}})
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	stop = sync.OnceFunc(func() { server.Stop(); <-ended })
	r.t.Cleanup(stop)
	return stop
}

// A resource registered by another plugin is not registered until that plugin ends.
// Plugins of other resources and dead plugins do not matter.
func TestWatcherYieldsToOtherPlugin(t *testing.T) {
	r := newWatcherRig(t)
	r.watch()
	r.upstreamPlugin("example.com/other")
	dead := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(r.dir, "dead.sock")}))(t)
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	defer os.Remove(filepath.Join(r.dir, "dead.sock"))
	stop := r.upstreamPlugin("example.com/a")
	for range 2 {
		if err := r.Register(r.context(), r.registration("example.com/a")); !saysAll(err, "another device plugin is registered for example.com/a", "example.com_a.sock") {
			t.Fatalf("with another plugin: %v", err)
		}
		if !r.created("example.com/a").IsZero() {
			t.Fatal("both register")
		}
	}
	if err := r.Register(r.context(), r.registration("example.com/b")); err != nil {
		t.Error(err)
	}
	stop()
	if err := r.Register(r.context(), r.registration("example.com/a")); err != nil {
		t.Errorf("after the other has ended: %v", err)
	}
}
