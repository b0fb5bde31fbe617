package device_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestListIsWatched(t *testing.T) {
	g := newGPUs("b", "a")
	g.options.PreStartRequired = true
	h, p := served(t, g)
	want := device.Resource{Name: gpu, Endpoint: p.Endpoint, Current: true, PreStart: true, Devices: []device.Device{{ID: "a", Healthy: true}, {ID: "b", Healthy: true}}}
	testkit.Diff(t, "h.Resources()", []device.Resource{want}, h.Resources())
	near := &api.Device{ID: "c", Health: api.Healthy, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}, {ID: 0}}}}
	g.send(&api.Device{ID: "a", Health: api.Unhealthy}, near, &api.Device{ID: "d", Health: "odd"},
		&api.Device{Health: api.Healthy}, // without an ID it cannot be requested
		&api.Device{ID: "e", Health: api.Unhealthy}, &api.Device{ID: "e", Health: api.Healthy})
	r := await(t, h, has("ax c dx e"))
	testkit.Diff(t, "r.Devices[1].NUMA", []int64{1, 0}, r.Devices[1].NUMA)
	h.Devices(gpu)[1].NUMA[0] = 7 // the result is a copy
	if h.Devices(gpu)[1].NUMA[0] != 1 {
		t.Error("the handler's own list was changed from outside")
	}
	g.send()
	await(t, h, has(""))
	testkit.Must(t, h.DeRegister(t.Context(), p))
	if _, found := h.Resource(gpu); found || len(h.Resources()) != 0 {
		t.Error("the resource is still there")
	}
}

// onWord sends a list for each element of a channel, and when it is closed.
func onWord(words <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-words:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// When the list is lost, all devices are unhealthy, and the list and the
// options are requested again: another process might serve the endpoint.
func TestListLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpu.sock")
	h, g := begin(t), newGPUs("a", "b")
	lists := make(chan struct{}, 1) // one element per list, so that none comes before the loss was observed
	g.opened = onWord(lists)
	stop := g.serve(t, path)
	lists <- struct{}{}
	register(t, h, at(path))
	await(t, h, has("a b"))
	g.hangUp()
	await(t, h, func(r device.Resource) bool { return !r.Current })
	lists <- struct{}{}
	await(t, h, has("a b"))
	stop()
	r := await(t, h, has("ax bx"))
	if r.Current || r.Error == "" || r.Endpoint != path {
		t.Errorf("got %+v", r)
	}
	_, err := h.Allocate(t.Context(), gpu, "me", "a")
	if testkit.WantError(t, "the error", err, nil, "device list is out of date"); !errors.Is(err, device.ErrUnhealthy) {
		t.Errorf("got %v", err)
	}
	g = newGPUs("c")
	g.options.GetPreferredAllocationAvailable = true
	g.serve(t, path)
	if r = await(t, h, has("c")); !r.Prefers || r.Error != "" {
		t.Errorf("got %+v", r)
	}
}

// An update runs beside the old plugin and takes over when its list has
// arrived; either can end first without affecting the other (kubernetes
// #127803).
func TestUpdateTakesOver(t *testing.T) {
	dir, h := t.TempDir(), begin(t)
	old, update := newGPUs("a"), newGPUs("a", "b")
	listed := make(chan struct{})
	update.opened = onWord(listed)
	one, two := at(filepath.Join(dir, "1.sock")), at(filepath.Join(dir, "2.sock"))
	stopOld, stopUpdate := old.serve(t, one.Endpoint), update.serve(t, two.Endpoint)
	register(t, h, one)
	await(t, h, has("a"))
	register(t, h, two)
	if r, _ := h.Resource(gpu); r.Endpoint != one.Endpoint || !r.Current {
		t.Errorf("the update serves before its list has arrived: %+v", r)
	}
	close(listed)
	await(t, h, func(r device.Resource) bool { return r.Endpoint == two.Endpoint && ids(r) == "a b" })

	stopOld()
	for range 2 {
		testkit.Must(t, h.DeRegister(t.Context(), one))
	}
	if r, _ := h.Resource(gpu); r.Endpoint != two.Endpoint || ids(r) != "a b" {
		t.Errorf("the old plugin's end changed its successor: %+v", r)
	}
	if _, err := h.Allocate(t.Context(), gpu, "me", "b"); err != nil {
		t.Error(err)
	}

	old.serve(t, one.Endpoint) // back to the old plugin
	register(t, h, one)
	await(t, h, func(r device.Resource) bool { return r.Endpoint == one.Endpoint && r.Current })
	stopUpdate()
	testkit.Must(t, h.DeRegister(t.Context(), two))
	if r, _ := h.Resource(gpu); r.Endpoint != one.Endpoint || ids(r) != "a" {
		t.Errorf("got %+v", r)
	}
	if diff := cmp.Diff(map[string]string{"b": "me"}, h.Held(gpu)); diff != "" {
		t.Error(diff) // allocated, whichever plugin lists it
	}
}

// The newest plugin is killed; the older one serves until it is back.
func TestOlderServesWhileNewerIsDead(t *testing.T) {
	dir, h := t.TempDir(), begin(t)
	older, newer := at(filepath.Join(dir, "1.sock")), at(filepath.Join(dir, "2.sock"))
	newGPUs("old").serve(t, older.Endpoint)
	stop := newGPUs("new").serve(t, newer.Endpoint)
	register(t, h, older)
	await(t, h, has("old"))
	register(t, h, newer)
	await(t, h, has("new"))
	stop()
	await(t, h, has("old"))
	newGPUs("newer").serve(t, newer.Endpoint)
	await(t, h, has("newer"))
}

// A repeated registration starts over, because another process can serve the
// socket.
func TestRegisterAgain(t *testing.T) {
	g := newGPUs("a")
	h, p := served(t, g)
	for range 3 {
		register(t, h, p)
	}
	await(t, h, has("a"))
	another := p
	another.Socket = "/another-reg"
	register(t, h, another)
	testkit.Must(t, h.DeRegister(t.Context(), p)) // the old registrar ends
	await(t, h, has("a"))
	testkit.Must(t, h.DeRegister(t.Context(), another))
	if len(h.Resources()) != 0 {
		t.Error("the resource is still there")
	}
}

func TestRegisterFails(t *testing.T) {
	h, p := begin(t), at(filepath.Join(t.TempDir(), "gpu.sock"))
	testkit.WantError(t, "Register", h.Register(t.Context(), p), nil, "GetDevicePluginOptions at "+p.Endpoint, "no process serves the endpoint")
	l := testkit.Value(net.Listen("unix", p.Endpoint))(t)
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	testkit.WantError(t, "Register", h.Register(ctx, p), nil, "did not answer in time")
	h.Close()
	if len(h.Resources()) != 0 {
		t.Error("a plugin that failed is kept")
	}
	g := newGPUs()
	p2 := at(filepath.Join(t.TempDir(), "gpu.sock"))
	g.serve(t, p2.Endpoint)
	testkit.WantError(t, "Register", h.Register(t.Context(), p2), nil, "closed")
}

// A plugin that refuses ListAndWatch stays registered, and the resource shows
// the error; attempts have a delay.
func TestListAndWatchRefused(t *testing.T) {
	h, g := begin(t), newGPUs("a")
	attempts := make(chan struct{}, 100)
	g.opened = func(context.Context) error {
		if attempts <- struct{}{}; len(attempts) < 4 {
			return status.Error(codes.Internal, "driver not loaded")
		}
		return nil
	}
	p := at(filepath.Join(t.TempDir(), "gpu.sock"))
	g.serve(t, p.Endpoint)
	register(t, h, p)
	await(t, h, func(r device.Resource) bool { return r.Current })
	if len(attempts) != 4 {
		t.Errorf("%d attempts", len(attempts))
	}
}

func TestCloseEndsHangingStreams(t *testing.T) {
	h, g := begin(t), newGPUs("a")
	hangs := make(chan struct{})
	g.opened = func(ctx context.Context) error { close(hangs); <-ctx.Done(); return ctx.Err() }
	p := at(filepath.Join(t.TempDir(), "gpu.sock"))
	g.serve(t, p.Endpoint)
	register(t, h, p)
	<-hangs
	if r, found := h.Resource(gpu); !found || r.Current || r.Error != "the plugin has not sent its list of devices yet" {
		t.Errorf("got %+v", r)
	}
	changes := h.Changes(t.Context())
	h.Close()
	h.Close()
	for r := range changes {
		if r.Endpoint != "" {
			t.Errorf("got %+v", r)
		}
		break
	}
}

func TestValidate(t *testing.T) {
	h := begin(t)
	for want, change := range map[string]func(*watch.Plugin){
		"manager version, v1beta1, is not among plugin supported versions [v1 v1alpha]": func(p *watch.Plugin) { p.Versions = []string{"v1", "v1alpha"} },
		"manager version, v1beta1, is not among plugin supported versions []":           func(p *watch.Plugin) { p.Versions = nil },
		`invalid name of device plugin socket: the ResourceName "gpu" is invalid`:       func(p *watch.Plugin) { p.Name = "gpu" },
		`announce "/run/gpu.sock"`: func(p *watch.Plugin) { p.Endpoint = "unix:///run/gpu.sock" },
	} {
		p := at("/run/gpu.sock")
		change(&p)
		testkit.WantError(t, "Validate", h.Validate(t.Context(), p), nil, want)
		testkit.WantError(t, "Register", h.Register(t.Context(), p), nil, want)
	}
	p := at("/run/gpu.sock")
	p.Versions = []string{"v1", api.Version}
	if err := h.Validate(t.Context(), p); err != nil {
		t.Error(err)
	}
}

// Plugins can call Register before they serve their socket.
func TestRegisterBeforeServing(t *testing.T) {
	request := &api.RegisterRequest{Version: api.Version, Endpoint: "gpu.sock", ResourceName: gpu}
	short := device.New(device.Options{Timeout: 50 * time.Millisecond})
	t.Cleanup(short.Close)
	if _, err := device.NewRegistration(t.TempDir(), short).Register(t.Context(), request); err == nil || !strings.Contains(err.Error(), "no process serves the endpoint") {
		t.Errorf("a plugin that never serves: %v", err)
	}
	dir := t.TempDir()
	r := device.NewRegistration(dir, begin(t))
	result := make(chan error, 1)
	go func() {
		_, err := r.Register(t.Context(), request)
		result <- err
	}()
	select { // 200 ms only helps to detect a refusal; the result does not depend on it
	case err := <-result:
		t.Fatalf("refused before the plugin serves: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	newGPUs("a").serve(t, filepath.Join(dir, "gpu.sock"))
	testkit.Must(t, <-result)
}
