package device_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/test/testkit"
)

func wantHeld(t *testing.T, h *device.Handler, want map[string]string) {
	t.Helper()
	testkit.Diff(t, "h.Held(gpu)", want, h.Held(gpu))
}

func TestAllocateAndRelease(t *testing.T) {
	g := newGPUs("a", "b", "c")
	h, p := served(t, g)
	ctx := t.Context()
	answer, err := h.Allocate(ctx, gpu, "me", "b", "a")
	if err != nil || answer.GetEnvs()["GPUS"] != "b,a" {
		t.Fatalf("got %v, %v", answer, err)
	}
	if answer, err = h.Allocate(ctx, gpu, "me", "a", "c"); err != nil || answer.GetEnvs()["GPUS"] != "a,c" { // a repetition with one more device
		t.Fatalf("got %v, %v", answer, err)
	}
	wantHeld(t, h, map[string]string{"a": "me", "b": "me", "c": "me"})
	if d := h.Devices(gpu)[0]; d.Holder != "me" {
		t.Errorf("got %+v", d)
	}
	_, err = h.Allocate(ctx, gpu, "you", "a")
	if testkit.WantError(t, "the error", err, nil, `already allocated to "me"`); !errors.Is(err, device.ErrHeld) {
		t.Errorf("got %v", err)
	}

	// Allocations outlive the plugin.
	testkit.Must(t, h.DeRegister(ctx, p))
	_, err = h.Allocate(ctx, gpu, "me", "a")
	if testkit.WantError(t, "the error", err, nil, "registered resources: []"); !errors.Is(err, device.ErrUnknown) {
		t.Errorf("got %v", err)
	}
	register(t, h, p)
	await(t, h, has("a b c"))
	if _, err = h.Allocate(ctx, gpu, "you", "b"); !errors.Is(err, device.ErrHeld) {
		t.Errorf("got %v", err)
	}
	for range 2 {
		if err := h.Release(gpu, "me"); err != nil {
			t.Error(err)
		}
	}
	if err := h.Release("example.com/unknown", "me"); err != nil {
		t.Error(err)
	}
	if _, err = h.Allocate(ctx, gpu, "you", "b"); err != nil {
		t.Error(err)
	}
	wantHeld(t, h, map[string]string{"b": "you"})
}

func TestAllocateRefusesBadRequests(t *testing.T) {
	g := newGPUs("a", "b")
	h, _ := served(t, g)
	g.send(&api.Device{ID: "a", Health: api.Healthy}, &api.Device{ID: "b", Health: api.Unhealthy})
	await(t, h, has("a bx"))
	for _, c := range []struct {
		resource, holder, ids string
		kind                  error
		word                  string
	}{
		{"example.com/other", "me", "a", device.ErrUnknown, `resource "example.com/other": unknown; registered resources: [example.com/gpu]`},
		{gpu, "", "a", nil, "the holder is empty"},
		{gpu, "me", "", nil, "no device requested"},
		{gpu, "me", "a a", nil, "device a is requested twice"},
		{gpu, "me", "a z", device.ErrUnknown, `device "z": unknown`},
		{gpu, "me", "a b", device.ErrUnhealthy, "device b: not healthy"},
	} {
		_, err := h.Allocate(t.Context(), c.resource, c.holder, strings.Fields(c.ids)...)
		if testkit.WantError(t, "the error", err, nil, c.word); c.kind != nil && !errors.Is(err, c.kind) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	wantHeld(t, h, map[string]string{})
}

// If the plugin fails, only earlier allocations remain.
func TestAllocateFails(t *testing.T) {
	for word, answer := range map[string]func(context.Context, []string) (*api.AllocateResponse, error){
		"no more power": func(context.Context, []string) (*api.AllocateResponse, error) {
			return nil, status.Error(codes.ResourceExhausted, "no more power")
		},
		"returned 0 container responses": func(context.Context, []string) (*api.AllocateResponse, error) { return &api.AllocateResponse{}, nil },
		"returned 2 container responses": func(context.Context, []string) (*api.AllocateResponse, error) {
			return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{}, {}}}, nil
		},
	} {
		g := newGPUs("a", "b")
		h, _ := served(t, g)
		testkit.Value(h.Allocate(t.Context(), gpu, "me", "a"))(t)
		g.allocate = answer
		_, err := h.Allocate(t.Context(), gpu, "me", "a", "b")
		testkit.WantError(t, "the error", err, nil, "allocate example.com/gpu", word)
		wantHeld(t, h, map[string]string{"a": "me"})
	}
}

// During a call to the plugin the devices are reserved; if the call is
// cancelled or the plugin ends, they are released.
func TestAllocateInFlight(t *testing.T) {
	g := newGPUs("a", "b")
	inside := make(chan struct{})
	g.allocate = func(ctx context.Context, _ []string) (*api.AllocateResponse, error) {
		inside <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	h, p := served(t, g)
	for what, interrupt := range map[string]func(context.CancelFunc){
		"cancelled":    func(cancel context.CancelFunc) { cancel() },
		"deregistered": func(context.CancelFunc) { _ = h.DeRegister(t.Context(), p) },
	} {
		register(t, h, p)
		await(t, h, func(r device.Resource) bool { return r.Current })
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() { _, err := h.Allocate(ctx, gpu, "me", "a"); failed <- err }()
		<-inside
		for _, holder := range []string{"me", "you"} {
			if _, err := h.Allocate(t.Context(), gpu, holder, "a"); !errors.Is(err, device.ErrBusy) {
				t.Errorf("%s: %q: %v", what, holder, err)
			}
		}
		if err := h.Release(gpu, "me"); !errors.Is(err, device.ErrBusy) {
			t.Errorf("%s: %v", what, err)
		}
		interrupt(cancel)
		if err := <-failed; err == nil {
			t.Errorf("%s: no error", what)
		}
		cancel()
		wantHeld(t, h, map[string]string{})
	}
}

// Of many concurrent requests for a device, one succeeds.
func TestOneHolderWins(t *testing.T) {
	g := newGPUs("a", "b", "c")
	h, _ := served(t, g)
	var callers sync.WaitGroup
	var mu sync.Mutex
	var winners []string
	for i := range 20 {
		callers.Go(func() {
			holder := fmt.Sprint("holder ", i)
			_, err := h.Allocate(t.Context(), gpu, holder, "a", "b")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				winners = append(winners, holder)
			} else if !errors.Is(err, device.ErrHeld) && !errors.Is(err, device.ErrBusy) {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if len(winners) != 1 {
		t.Fatalf("holders: %q", winners)
	}
	wantHeld(t, h, map[string]string{"a": winners[0], "b": winners[0]})
}

func TestPreStart(t *testing.T) {
	g := newGPUs("a", "b")
	var prepared []string
	h, p := served(t, g)
	ctx := t.Context()
	testkit.WantError(t, "PreStart", h.PreStart(ctx, gpu, "me"), nil, `"me" holds no device of the resource`)
	testkit.Value(h.Allocate(ctx, gpu, "me", "b", "a"))(t)
	if err := h.PreStart(ctx, gpu, "me"); err != nil { // the plugin does not require it
		t.Error(err)
	}
	g.options.PreStartRequired = true
	g.prepare = func(ids []string) error { prepared = ids; return nil }
	register(t, h, p)
	await(t, h, func(r device.Resource) bool { return r.Current && r.PreStart })
	if err := h.PreStart(ctx, gpu, "me"); err != nil {
		t.Error(err)
	}
	testkit.Diff(t, "prepared", []string{"a", "b"}, prepared)
	g.prepare = func([]string) error { return status.Error(codes.Internal, "reset failed") }
	testkit.WantError(t, "PreStart", h.PreStart(ctx, gpu, "me"), nil, "PreStartContainer at", "reset failed")
	wantHeld(t, h, map[string]string{"a": "me", "b": "me"})
	testkit.WantError(t, "PreStart", h.PreStart(ctx, "example.com/other", "me"), nil, "unknown")
}

func TestPreferred(t *testing.T) {
	g := newGPUs("a", "b", "c", "d")
	h, p := served(t, g)
	ctx := t.Context()
	testkit.Value(h.Allocate(ctx, gpu, "you", "a"))(t)
	chosen, err := h.Preferred(ctx, gpu, 2, "d") // the plugin has no preference
	if diff := cmp.Diff([]string{"d", "b"}, chosen); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for word, ask := range map[string]func() ([]string, error){
		"request at least one device":                func() ([]string, error) { return h.Preferred(ctx, gpu, 0) },
		"at least as many as are named":              func() ([]string, error) { return h.Preferred(ctx, gpu, 1, "b", "c") },
		"only 3 of 4 are free":                       func() ([]string, error) { return h.Preferred(ctx, gpu, 4) },
		`device a: already allocated to "you"`:       func() ([]string, error) { return h.Preferred(ctx, gpu, 1, "a") },
		`device "z": unknown`:                        func() ([]string, error) { return h.Preferred(ctx, gpu, 1, "z") },
		"device b is requested twice":                func() ([]string, error) { return h.Preferred(ctx, gpu, 2, "b", "b") },
		`resource "example.com/other": unknown; reg`: func() ([]string, error) { return h.Preferred(ctx, "example.com/other", 1) },
	} {
		_, err := ask()
		testkit.WantError(t, "the error", err, nil, word)
	}

	g.options.GetPreferredAllocationAvailable = true
	var answer []string
	var got *api.ContainerPreferredAllocationRequest
	g.prefer = func(r *api.ContainerPreferredAllocationRequest) *api.PreferredAllocationResponse {
		got = r
		return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{{DeviceIDs: answer}}}
	}
	register(t, h, p)
	await(t, h, func(r device.Resource) bool { return r.Current && r.Prefers })
	for word, choice := range map[string]string{
		"got 1 devices, want 2":                   "c",
		`"c" is listed twice`:                     "c c",
		`"a" is not one of the available devices`: "c a",
		`"c" is missing, although it`:             "b d",
		"":                                        "d c",
	} {
		answer = strings.Fields(choice)
		chosen, err := h.Preferred(ctx, gpu, 2, "c")
		if word != "" {
			testkit.WantError(t, "the error", err, nil, word, p.Endpoint)
			continue
		}
		if diff := cmp.Diff([]string{"d", "c"}, chosen); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
	if !slices.Equal(got.GetAvailableDeviceIDs(), []string{"b", "c", "d"}) || !slices.Equal(got.GetMustIncludeDeviceIDs(), []string{"c"}) || got.GetAllocationSize() != 2 {
		t.Errorf("the plugin was asked %v", got)
	}
	g.prefer = nil
	_, err = h.Preferred(ctx, gpu, 1)
	testkit.WantError(t, "the error", err, nil, "GetPreferredAllocation at", "no preference")
}
