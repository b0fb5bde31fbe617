package csi

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/kubelet/watch"
)

const name = "csi.example.com"

func register(t *testing.T, h *Handler, p watch.Plugin) {
	t.Helper()
	if err := h.Validate(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := h.Register(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want one with %q", words)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("got %q, want something with %q", err, word)
		}
	}
}

// wantEndpoint: who serves under the name; empty: nobody.
func wantEndpoint(t *testing.T, h *Handler, want string) {
	t.Helper()
	d, found := h.Driver(name)
	if d.Endpoint != want || found != (want != "") || len(h.Drivers()) > 1 {
		t.Errorf("serving: %q, %v of %v; want %q", d.Endpoint, found, h.Drivers(), want)
	}
}

func TestDriverIsRead(t *testing.T) {
	d := &driver{name: name, capabilities: []*spec.PluginCapability{
		{Type: &spec.PluginCapability_VolumeExpansion_{VolumeExpansion: &spec.PluginCapability_VolumeExpansion{Type: spec.PluginCapability_VolumeExpansion_ONLINE}}},
		{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: spec.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{}, // of a later version of CSI
	}}
	p := served(t, d, "1.0.0", "1.13")
	h := New(Options{})
	register(t, h, p)
	want := []Driver{{
		Name: name, Endpoint: p.Endpoint, Contract: "1.13", VendorVersion: "7.1", Manifest: map[string]string{"url": "https://csi.example.com"},
		Capabilities: []string{"CONTROLLER_SERVICE", "VolumeExpansion_ONLINE"},
		NodeID:       "node-of-" + name, MaxVolumes: 8, Topology: map[string]string{"example.com/zone": "1"},
	}}
	if diff := cmp.Diff(want, h.Drivers()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"GetPluginInfo", "Probe", "GetPluginCapabilities", "NodeGetInfo"}, d.calls); diff != "" {
		t.Error(diff)
	}
	h.Drivers()[0].Topology["example.com/zone"] = "changed" // an answer is a copy
	if diff := cmp.Diff(want, h.Drivers()); diff != "" {
		t.Error(diff)
	}
	if err := h.DeRegister(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	wantEndpoint(t, h, "")
}

func TestNotReadyYet(t *testing.T) {
	answers := []func() (*wrapperspb.BoolValue, error){
		func() (*wrapperspb.BoolValue, error) { return nil, status.Error(codes.FailedPrecondition, "starting") },
		func() (*wrapperspb.BoolValue, error) { return wrapperspb.Bool(false), nil },
		func() (*wrapperspb.BoolValue, error) { return wrapperspb.Bool(true), nil },
	}
	d := &driver{name: name}
	d.ready = func() (*wrapperspb.BoolValue, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		next := answers[0]
		answers = answers[1:]
		return next()
	}
	p := served(t, d, "1.0.0")
	h := New(Options{})
	register(t, h, p)
	if len(answers) != 0 {
		t.Errorf("registered %d answers too early", len(answers))
	}
	wantEndpoint(t, h, p.Endpoint)
}

// What a driver does wrong, and what is said about it.
func TestRegisterFails(t *testing.T) {
	hangs := func(ctx context.Context) (*spec.NodeGetInfoResponse, error) { <-ctx.Done(); return nil, ctx.Err() }
	for what, c := range map[string]struct {
		driver *driver
		words  []string
	}{
		"another name": {&driver{name: "other.example.com"}, []string{`calls itself "other.example.com" but was registered as "csi.example.com"`}},
		"never ready": {&driver{name: name, ready: func() (*wrapperspb.BoolValue, error) { return wrapperspb.Bool(false), nil }},
			[]string{"did not become ready", "ready = false", "deadline"}},
		"broken": {&driver{name: name, ready: func() (*wrapperspb.BoolValue, error) { return nil, status.Error(codes.Internal, "disk on fire") }},
			[]string{"Probe at", "disk on fire"}},
		"no node service": {&driver{name: name, noNode: true}, []string{"does not serve the node service"}},
		"no node id": {&driver{name: name, node: func(context.Context) (*spec.NodeGetInfoResponse, error) { return &spec.NodeGetInfoResponse{}, nil }},
			[]string{"no node_id"}},
		"hangs": {&driver{name: name, node: hangs}, []string{"NodeGetInfo at", "did not answer in time"}},
	} {
		t.Run(what, func(t *testing.T) {
			p := served(t, c.driver, "1.0.0")
			p.Name = name
			wantError(t, registerWithin(t, p, c.words), append(c.words, p.Endpoint)...)
		})
	}
}

// registerWithin registers with a short timeout, and with longer ones as long as
// the machine is too slow to come as far as the words within it.
func registerWithin(t *testing.T, p watch.Plugin, words []string) (err error) {
	t.Helper()
	for timeout := 300 * time.Millisecond; timeout < time.Minute; timeout *= 2 {
		h := New(Options{Timeout: timeout})
		err = h.Register(t.Context(), p)
		wantEndpoint(t, h, "")
		if err == nil || !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(err.Error(), w) }) {
			break
		}
	}
	return err
}

func TestEndpointWithoutDriver(t *testing.T) {
	dir := t.TempDir()
	p := watch.Plugin{Type: Type, Name: name, Endpoint: filepath.Join(dir, "csi.sock"), Versions: []string{"1.0.0"}}
	h := New(Options{}) // nobody is waited for
	wantError(t, h.Register(t.Context(), p), "GetPluginInfo at "+p.Endpoint, "nobody serves the endpoint")
	l, err := net.Listen("unix", p.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	h = New(Options{Timeout: 200 * time.Millisecond})
	wantError(t, h.Register(t.Context(), p), "did not answer in time") // it connects, and stays silent
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the host stops"))
	wantError(t, h.Register(gone, p), "GetPluginInfo at "+p.Endpoint)
}

// A driver dies in the middle of a call, and its successor registers.
func TestDriverDiesInTheMiddle(t *testing.T) {
	d := &driver{name: name}
	asked := make(chan struct{})
	d.node = func(ctx context.Context) (*spec.NodeGetInfoResponse, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	path := filepath.Join(t.TempDir(), "csi.sock")
	p := watch.Plugin{Type: Type, Name: name, Endpoint: path, Socket: "/reg.sock", Versions: []string{"1.0.0"}}
	stop := d.serve(t, path)
	h := New(Options{Timeout: time.Minute})
	failed := make(chan error, 1)
	go func() { failed <- h.Register(t.Context(), p) }()
	<-asked
	stop()
	wantError(t, <-failed, "NodeGetInfo at "+path, "went away during the call")
	wantEndpoint(t, h, "")
	(&driver{name: name}).serve(t, path)
	register(t, h, p)
	wantEndpoint(t, h, path)
}

// What is not true any more is not told any more.
func TestFailedRepeatForgets(t *testing.T) {
	d := &driver{name: name}
	p := served(t, d, "1.0.0")
	h := New(Options{})
	register(t, h, p)
	register(t, h, p) // a repeat is fine
	p2 := p
	p2.Socket = "/another.sock"
	register(t, h, p2)
	if err := os.Remove(p.Endpoint); err != nil {
		t.Fatal(err)
	}
	wantError(t, h.Register(t.Context(), p2), "nobody serves")
	wantEndpoint(t, h, p.Endpoint) // as the other socket registered it
	wantError(t, h.Register(t.Context(), p), "nobody serves")
	wantEndpoint(t, h, "")
}

func TestHigherVersionTakesOver(t *testing.T) {
	h := New(Options{})
	old, update := served(t, &driver{name: name}, "1.0.0"), served(t, &driver{name: name}, "1.1.0")
	register(t, h, old)
	register(t, h, update)
	wantEndpoint(t, h, update.Endpoint)
	wantError(t, h.Register(t.Context(), old), `RegisterPlugin for CSI driver "csi.example.com" failed. Another driver`)
	wantEndpoint(t, h, update.Endpoint)

	// The end of the old one, told late, harms nobody.
	for range 2 {
		if err := h.DeRegister(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		wantEndpoint(t, h, update.Endpoint)
	}
	if err := h.DeRegister(t.Context(), update); err != nil {
		t.Fatal(err)
	}
	wantEndpoint(t, h, "")

	// When the update goes first, the old one serves again.
	register(t, h, old)
	register(t, h, update)
	if err := h.DeRegister(t.Context(), update); err != nil {
		t.Fatal(err)
	}
	wantEndpoint(t, h, old.Endpoint)
}

// Two drivers of one name and version register at the same moment: one of them
// gets the name.
func TestRaceForAName(t *testing.T) {
	meet := make(chan struct{}, 2)
	both := make(chan struct{})
	node := func(ctx context.Context) (*spec.NodeGetInfoResponse, error) {
		meet <- struct{}{}
		<-both
		return &spec.NodeGetInfoResponse{NodeId: "n"}, nil
	}
	h := New(Options{})
	results := make(chan error, 2)
	for range 2 {
		p := served(t, &driver{name: name, node: node}, "1.0.0")
		go func() { results <- h.Register(t.Context(), p) }()
	}
	<-meet
	<-meet
	close(both)
	one, two := <-results, <-results
	if (one == nil) == (two == nil) {
		t.Errorf("got %v and %v", one, two)
	}
	wantError(t, errors.Join(one, two), "registered meanwhile")
	if len(h.Drivers()) != 1 {
		t.Errorf("%d drivers", len(h.Drivers()))
	}
}
