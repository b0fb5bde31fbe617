package csi

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

const name = "csi.example.com"

func register(t *testing.T, h *Handler, p watch.Plugin) {
	t.Helper()
	testkit.Must(t, h.Validate(t.Context(), p))
	testkit.Must(t, h.Register(t.Context(), p))
}

// wantEndpoint checks which endpoint serves under the name; empty means none.
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
	testkit.Diff(t, "h.Drivers()", want, h.Drivers())
	testkit.Diff(t, "d.calls", []string{"GetPluginInfo", "Probe", "GetPluginCapabilities", "NodeGetInfo"}, d.calls)
	h.Drivers()[0].Topology["example.com/zone"] = "changed" // the result is a copy
	testkit.Diff(t, "h.Drivers()", want, h.Drivers())
	testkit.Must(t, h.DeRegister(t.Context(), p))
	wantEndpoint(t, h, "")
}

func TestRegisterWaitsUntilReady(t *testing.T) {
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

// TestRegisterFails: faults of a driver and the errors for them.
func TestRegisterFails(t *testing.T) {
	hangs := func(ctx context.Context) (*spec.NodeGetInfoResponse, error) { <-ctx.Done(); return nil, ctx.Err() }
	for what, c := range map[string]struct {
		driver *driver
		words  []string
	}{
		"another name": {&driver{name: "other.example.com"}, []string{`reports the name "other.example.com" but was registered as "csi.example.com"`}},
		"never ready": {&driver{name: name, ready: func() (*wrapperspb.BoolValue, error) { return wrapperspb.Bool(false), nil }},
			[]string{"did not become ready", "ready = false", "deadline"}},
		"broken": {&driver{name: name, ready: func() (*wrapperspb.BoolValue, error) { return nil, status.Error(codes.Internal, "disk on fire") }},
			[]string{"Probe at", "disk on fire"}},
		"no node service": {&driver{name: name, noNode: true}, []string{"does not serve the node service"}},
		"no node id": {&driver{name: name, node: func(context.Context) (*spec.NodeGetInfoResponse, error) { return &spec.NodeGetInfoResponse{}, nil }},
			[]string{"empty node_id"}},
		"hangs": {&driver{name: name, node: hangs}, []string{"NodeGetInfo at", "did not answer in time"}},
	} {
		t.Run(what, func(t *testing.T) {
			p := served(t, c.driver, "1.0.0")
			p.Name = name
			testkit.WantError(t, "registerWithin", registerWithin(t, p, c.words), nil, append(c.words, p.Endpoint)...)
		})
	}
}

// registerWithin registers with a short timeout, and repeats with longer ones
// until the error contains the words, so that the load does not matter.
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
	h := New(Options{}) // without a socket Register fails at once
	testkit.WantError(t, "Register", h.Register(t.Context(), p), nil, "GetPluginInfo at "+p.Endpoint, "no process serves the endpoint")
	l := testkit.Value(net.Listen("unix", p.Endpoint))(t)
	defer func() { _ = l.Close() }()
	h = New(Options{Timeout: 200 * time.Millisecond})
	testkit.WantError(t, "Register", h.Register(t.Context(), p), nil, "did not answer in time") // the server accepts and does not answer
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the host stops"))
	testkit.WantError(t, "Register", h.Register(gone, p), nil, "GetPluginInfo at "+p.Endpoint)
}

// A driver ends during a call, and its successor registers.
func TestDriverEndsDuringCall(t *testing.T) {
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
	testkit.WantError(t, "the error", <-failed, nil, "NodeGetInfo at "+path, "exited during the call")
	wantEndpoint(t, h, "")
	(&driver{name: name}).serve(t, path)
	register(t, h, p)
	wantEndpoint(t, h, path)
}

// A failed repetition removes the stale registration.
func TestFailedRepetitionDeregisters(t *testing.T) {
	d := &driver{name: name}
	p := served(t, d, "1.0.0")
	h := New(Options{})
	register(t, h, p)
	register(t, h, p) // a repetition succeeds
	p2 := p
	p2.Socket = "/another.sock"
	register(t, h, p2)
	testkit.Must(t, os.Remove(p.Endpoint))
	testkit.WantError(t, "Register", h.Register(t.Context(), p2), nil, "no process serves")
	wantEndpoint(t, h, p.Endpoint) // registered by the other socket
	testkit.WantError(t, "Register", h.Register(t.Context(), p), nil, "no process serves")
	wantEndpoint(t, h, "")
}

func TestHigherVersionTakesOver(t *testing.T) {
	h := New(Options{})
	old, update := served(t, &driver{name: name}, "1.0.0"), served(t, &driver{name: name}, "1.1.0")
	register(t, h, old)
	register(t, h, update)
	wantEndpoint(t, h, update.Endpoint)
	testkit.WantError(t, "Register", h.Register(t.Context(), old), nil, `RegisterPlugin for CSI driver "csi.example.com" failed. Another driver`)
	wantEndpoint(t, h, update.Endpoint)

	// A late DeRegister of the old driver does not affect the new one.
	for range 2 {
		testkit.Must(t, h.DeRegister(t.Context(), old))
		wantEndpoint(t, h, update.Endpoint)
	}
	testkit.Must(t, h.DeRegister(t.Context(), update))
	wantEndpoint(t, h, "")

	// When the update goes first, the old one serves again.
	register(t, h, old)
	register(t, h, update)
	testkit.Must(t, h.DeRegister(t.Context(), update))
	wantEndpoint(t, h, old.Endpoint)
}

// Of two drivers with one name and version that register concurrently, one gets
// the name.
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
	testkit.WantError(t, "the errors", errors.Join(one, two), nil, "registered in the meantime")
	if len(h.Drivers()) != 1 {
		t.Errorf("%d drivers", len(h.Drivers()))
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// driver is a minimal CSI driver. Set its fields before it serves.
type driver struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer

	name         string
	ready        func() (*wrapperspb.BoolValue, error) // nil: ready
	capabilities []*spec.PluginCapability
	node         func(context.Context) (*spec.NodeGetInfoResponse, error) // nil: a node
	noNode       bool                                                     // the node service is not served

	mu    sync.Mutex
	calls []string
}

func (d *driver) called(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, name)
}

func (d *driver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	d.called("GetPluginInfo")
	return &spec.GetPluginInfoResponse{Name: d.name, VendorVersion: "7.1", Manifest: map[string]string{"url": "https://csi.example.com"}}, nil
}

func (d *driver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	d.called("Probe")
	if d.ready == nil {
		return &spec.ProbeResponse{}, nil
	}
	ready, err := d.ready()
	return &spec.ProbeResponse{Ready: ready}, err
}

func (d *driver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	d.called("GetPluginCapabilities")
	return &spec.GetPluginCapabilitiesResponse{Capabilities: d.capabilities}, nil
}

func (d *driver) NodeGetInfo(ctx context.Context, _ *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	d.called("NodeGetInfo")
	if d.node != nil {
		return d.node(ctx)
	}
	return &spec.NodeGetInfoResponse{NodeId: "node-of-" + d.name, MaxVolumesPerNode: 8,
		AccessibleTopology: &spec.Topology{Segments: map[string]string{"example.com/zone": "1"}}}, nil
}

// serve serves the driver at path until stop is called or the test ends.
func (d *driver) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	return testkit.Serve(t, path, func(s grpc.ServiceRegistrar) {
		spec.RegisterIdentityServer(s, d)
		if !d.noNode {
			spec.RegisterNodeServer(s, d)
		}
	})
}

// served returns a plugin whose driver runs.
func served(t *testing.T, d *driver, versions ...string) watch.Plugin {
	t.Helper()
	dir := t.TempDir()
	p := watch.Plugin{Type: Type, Name: d.name, Endpoint: filepath.Join(dir, "csi.sock"), Socket: filepath.Join(dir, "reg.sock"), Versions: versions}
	d.serve(t, p.Endpoint)
	return p
}
