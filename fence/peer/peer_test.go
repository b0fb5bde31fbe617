package peer_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-addons/spec/lib/go/identity"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/fencetest"
	"github.com/cleatproject/cleat/fence/peer"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const via = "csi.example.com"

// storage is a peer behind TLS, and what a client needs.
type storage struct {
	driver   *fencetest.Driver
	endpoint string
	files    mutualtls.Files
	stop     func()
}

func newStorage(t *testing.T, changes ...func(*fencetest.Driver)) *storage {
	t.Helper()
	a := testkit.NewAuthority(t, "a")
	raw := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := testkit.Value(mutualtls.Listener(raw, a.Files(t, nil, "127.0.0.1"), nil))(t)
	s := &storage{driver: fencetest.NewDriver(), endpoint: raw.Addr().String(), files: a.Files(t, nil, "controller")}
	for _, change := range changes {
		change(s.driver)
	}
	s.stop = s.driver.Serve(t, l)
	return s
}

func (s *storage) peer(t *testing.T, name string) *peer.Peer {
	t.Helper()
	return open(t, peer.Config{Name: name, Via: name, Target: client.Target{Endpoint: s.endpoint, TLS: s.files, Patience: 50 * time.Millisecond}})
}

func open(t *testing.T, c peer.Config) *peer.Peer {
	t.Helper()
	return testkit.Open(peer.Open(c))(t)
}

func req(parameters map[string]string, cidrs ...string) plan.Request {
	a := plan.Request{Owner: request.Owner(parameters)}
	for _, c := range cidrs {
		a.Blocks = append(a.Blocks, netip.MustParsePrefix(c))
	}
	return a
}

// The peer gets only a digest of the owner, different for callers and drivers.
func TestOwners(t *testing.T) {
	s, ctx := newStorage(t), t.Context()
	p, other := s.peer(t, via), s.peer(t, "csi.other.com")
	one := req(map[string]string{"clusterID": "s3cr3t-1"}, "192.0.2.0/24", "2001:db8::7/128")
	two := req(map[string]string{"clusterID": "s3cr3t-2"}, "198.51.100.0/24")
	two.Force = true
	for _, a := range []plan.Request{one, two, one} {
		testkit.Must(t, p.Fence(ctx, a))
	}
	for i, c := range s.driver.Calls("FenceClusterNetwork") {
		if text := fmt.Sprint(c); strings.Contains(text, "s3cr3t") || len(c.Secrets) != 0 {
			t.Errorf("call %d contains %s", i, text)
		}
	}
	want := fencetest.Call{Method: "FenceClusterNetwork", CIDRs: []string{"198.51.100.0/24"}, Parameters: map[string]string{
		"fence.cleat.dev/via": via, "fence.cleat.dev/owner": two.Owner.Digest, "fence.cleat.dev/force": "true",
	}}
	testkit.Diff(t, "result", want, s.driver.Calls("FenceClusterNetwork")[1])
	lists := func(p *peer.Peer, a plan.Request, want ...netip.Prefix) {
		t.Helper()
		got, err := p.List(ctx, a.Owner)
		if !slices.Equal(got, want) || err != nil {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
	lists(p, one, one.Blocks...)
	lists(p, two, two.Blocks...)
	lists(other, one)
	testkit.WantError(t, "Unfence", other.Unfence(ctx, one), errs.Precondition, "another owner")
	testkit.WantError(t, "Unfence", p.Unfence(ctx, req(nil, "192.0.2.0/24")), errs.Precondition)
	if err := errors.Join(p.Unfence(ctx, two), p.Unfence(ctx, one), p.Unfence(ctx, one)); err != nil {
		t.Error(err)
	}
	if left := s.driver.Fenced(); len(left) != 0 {
		t.Error(left)
	}
	for _, c := range s.driver.Calls("UnfenceClusterNetwork") {
		if c.Parameters["fence.cleat.dev/force"] != "" {
			t.Errorf("forced again: %+v", c)
		}
	}
}

// Only refusals are final; any other answer can be retried.
func TestCodes(t *testing.T) {
	s := newStorage(t)
	p := s.peer(t, via)
	a := req(nil, "192.0.2.0/24")
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		s.driver.Before(func(context.Context, fencetest.Call) error { return status.Error(code, "for a test") })
		want := errs.Unavailable
		switch code {
		case codes.InvalidArgument:
			want = errs.Invalid
		case codes.FailedPrecondition:
			want = errs.Precondition
		}
		_, listed := p.List(t.Context(), a.Owner)
		for _, err := range []error{p.Fence(t.Context(), a), p.Unfence(t.Context(), a), listed} {
			testkit.WantError(t, "the error", err, want, "for a test", s.endpoint, code.String())
		}
	}
}

func TestReady(t *testing.T) {
	s := newStorage(t)
	p := s.peer(t, via)
	if err := p.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	clients := newStorage(t, func(d *fencetest.Driver) {
		d.Capabilities = []*identity.Capability{fencetest.FenceCapability(identity.Capability_NetworkFence_GET_CLIENTS_TO_FENCE)}
	})
	testkit.WantError(t, "peer", clients.peer(t, via).Ready(t.Context()), errs.Unavailable, "NETWORK_FENCE", "GET_CLIENTS_TO_FENCE")
	starting := newStorage(t, func(d *fencetest.Driver) { d.NotReady = true })
	testkit.WantError(t, "peer", starting.peer(t, via).Ready(t.Context()), errs.Unavailable, "not ready")
	for _, method := range []string{"GetCapabilities", "Probe"} {
		s.driver.Before(func(_ context.Context, c fencetest.Call) error {
			if c.Method == method {
				return status.Error(codes.InvalidArgument, "out of order")
			}
			return nil
		})
		if err := p.Ready(t.Context()); err == nil {
			t.Errorf("ready without %s", method)
		}
	}
}

// A list that cannot be parsed proves nothing.
func TestInvalidList(t *testing.T) {
	s := newStorage(t)
	p := s.peer(t, via)
	for _, text := range []string{"192.0.2.7/24", "cidr:192.0.2.7:0/32", ""} {
		s.driver.Answer(text)
		_, err := p.List(t.Context(), request.Owner(nil))
		testkit.WantError(t, "the error", err, errs.Unavailable, "returned an invalid block")
		if errors.Is(err, errs.Invalid) {
			t.Errorf("%v counts as a refusal", err)
		}
	}
	s.driver.Answer("192.0.2.7", "2001:db8::/32", "192.0.2.7/32", "10.0.0.0/8")
	got, err := p.List(t.Context(), request.Owner(nil))
	if want := "[10.0.0.0/8 192.0.2.7/32 2001:db8::/32]"; fmt.Sprint(got) != want || err != nil {
		t.Errorf("%v, %v, want %s", got, err, want)
	}
}

// They time out, and are called again later.
func TestDeadAndSlowPeers(t *testing.T) {
	s := newStorage(t)
	p, a := s.peer(t, via), req(nil, "192.0.2.0/24")
	release := make(chan struct{})
	s.driver.Before(func(context.Context, fencetest.Call) error { <-release; return nil })
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := p.Fence(short, a)
	testkit.WantError(t, "the error", err, errs.Unavailable, s.endpoint, "in time")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	close(release)
	s.driver.Before(nil)
	if err := p.Fence(t.Context(), a); err != nil {
		t.Error(err)
	}
	s.stop()
	err = p.Fence(t.Context(), a)
	if testkit.WantError(t, "the error", err, errs.Unavailable, s.endpoint); !errors.Is(err, client.ErrNotServed) {
		t.Errorf("%v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	s := newStorage(t)
	p := s.peer(t, via)
	const callers, many = 4, 10000
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			a := req(map[string]string{"caller": fmt.Sprint(i)})
			for j := range many {
				a.Blocks = append(a.Blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j >> 8), byte(j)}), 32))
			}
			if err := p.Fence(t.Context(), a); err != nil {
				t.Error(err)
			}
			if got, err := p.List(t.Context(), a.Owner); !slices.Equal(got, a.Blocks) || err != nil {
				t.Errorf("%d blocks, %v", len(got), err)
			}
		})
	}
	all.Wait()
	if n := len(s.driver.Fenced()); n != callers*many {
		t.Errorf("%d blocks are fenced", n)
	}
}

// enforcer records the requests that cleat's service received.
type enforcer struct {
	fenced, unfenced []plan.Request
	owner            *volume.FenceOwner
}

func (e *enforcer) Fence(_ context.Context, a plan.Request) error {
	e.fenced = append(e.fenced, a)
	return nil
}

func (e *enforcer) Unfence(_ context.Context, a plan.Request) error {
	e.unfenced = append(e.unfenced, a)
	return errs.Errorf(errs.Precondition, "of another")
}

func (e *enforcer) List(_ context.Context, owner *volume.FenceOwner) ([]netip.Prefix, error) {
	e.owner = owner
	return e.fenced[0].Blocks, nil
}

func (e *enforcer) Ending(context.Context) ([]volume.Session, error) { return nil, nil }
func (e *enforcer) Unseen(context.Context) ([]string, error)         { return []string{"node a"}, nil }
func (e *enforcer) Recorded(context.Context, volume.FenceOwner) ([]netip.Prefix, error) {
	return nil, nil
}
func (e *enforcer) RecordedClients(context.Context) ([]volume.RecordedClient, error) {
	return nil, nil
}

func (e *enforcer) Coverage(_ context.Context, blocks []netip.Prefix, onlyLocal bool) ([]volume.Coverage, error) {
	if !onlyLocal || len(blocks) != 1 {
		return nil, errs.Errorf(errs.Internal, "%v, only local: %t", blocks, onlyLocal)
	}
	return everyCoverage(), nil
}

// everyCoverage has something in each field that is sent.
func everyCoverage() []volume.Coverage {
	listeners := func(address string) []volume.Listener {
		return []volume.Listener{{Address: netip.MustParseAddrPort(address), Holder: "a " + address}, {Holder: "no address"}}
	}
	sessions := func(server string) []volume.Session {
		return []volume.Session{{Client: netip.MustParseAddrPort("192.0.2.7:1024"), Server: netip.MustParseAddrPort(server), Holder: "b " + server}}
	}
	return []volume.Coverage{{
		Enforcer: "host", Servers: listeners("[::]:4420"), Unfenced: listeners("0.0.0.0:3260"), Uncovered: listeners("[2001:db8::1]:4420"),
		Sessions: sessions("192.0.2.1:1"), Unprotected: sessions("192.0.2.1:2"), Forwarded: sessions("192.0.2.1:3"), Others: sessions("192.0.2.1:4"),
		Problems: []string{"one", "two"},
	}}
}

// cleat's service accepts forwarded fences and knows their owner.
func TestForwardToCleatServer(t *testing.T) {
	e := &enforcer{}
	handler := testkit.Value(service.New(service.Config{Name: "fence.cleat.dev", Offer: service.Offer{Fence: true}, Enforcer: e}))(t)
	srv := testkit.Value(server.NewGRPC(server.GRPCConfig{Code: errs.Code}))(t)
	handler.Register(srv)
	raw := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	files := testkit.NewAuthority(t, "a").Files(t, nil, "127.0.0.1")
	l := testkit.Value(mutualtls.Listener(raw, files, nil))(t)
	testkit.Go(t, func(ctx context.Context) error { return srv.Serve(ctx, l) })
	p := open(t, peer.Config{Name: "storage-b", Via: via, Target: client.Target{Endpoint: raw.Addr().String(), TLS: files}})
	if err := p.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	first := req(map[string]string{"cluster": "a"}, "0.0.0.0/0", "192.0.2.0/24")
	first.Force = true
	testkit.Must(t, p.Fence(t.Context(), first))
	got := e.fenced[0]
	if !slices.Equal(got.Blocks, first.Blocks) || !got.Force || !slices.Equal(got.Owner.Keys, []string{request.OwnerParameter, request.ViaParameter}) {
		t.Errorf("received: %+v", got)
	}
	first.Restarted = true
	testkit.WantError(t, "Unfence", p.Unfence(t.Context(), first), errs.Precondition, "of another")
	if un := e.unfenced[0]; un.Owner.Digest != got.Owner.Digest || un.Force || !un.Restarted {
		t.Errorf("unfenced: %+v", un)
	}
	if held, err := p.List(t.Context(), first.Owner); !slices.Equal(held, first.Blocks) || err != nil || e.owner == nil || e.owner.Digest != got.Owner.Digest {
		t.Errorf("%v, %v, of %+v", held, err, e.owner)
	}
	testkit.WantError(t, "Fence", p.Fence(t.Context(), plan.Request{Owner: first.Owner}), errs.Invalid, "cidrs is empty")
	covered := testkit.Value(p.Coverage(t.Context(), first.Blocks[:1]))(t)
	if !reflect.DeepEqual(covered, everyCoverage()) {
		t.Errorf("coverage: %+v, want %+v", covered, everyCoverage())
	}
	c := testkit.Value(client.Open(client.Target{Endpoint: raw.Addr().String(), TLS: files}))(t)
	defer func() { testkit.Must(t, c.Close()) }()
	if _, waiting, err := c.ListAll(t.Context(), client.Request{}); err != nil || !slices.Equal(waiting.Unseen, []string{"node a"}) {
		t.Errorf("waiting: %+v, %v", waiting, err)
	}
}

func TestWrongPeers(t *testing.T) {
	a := testkit.NewAuthority(t, "a")
	good := peer.Config{Name: "storage-b", Via: via, Target: client.Target{Endpoint: "storage-b:9070", TLS: a.Files(t, nil, "controller")}}
	if p := open(t, good); p.Name() != "storage-b" || p.Endpoint() != "storage-b:9070" {
		t.Errorf("%s at %s", p.Name(), p.Endpoint())
	}
	for says, spoil := range map[string]func(*peer.Config){
		"invalid peer name":                      func(c *peer.Config) { c.Name = "storage b" },
		"letters, digits":                        func(c *peer.Config) { c.Name = "" },
		"Via, the name of the forwarding driver": func(c *peer.Config) { c.Via = "" },
		"no port":                                func(c *peer.Config) { c.Target.Endpoint = "storage-b" },
		"mutual TLS":                             func(c *peer.Config) { c.Target.TLS = mutualtls.Files{} },
		"expired":                                func(c *peer.Config) { c.Target.TLS = a.Files(t, testkit.Expired, "controller") },
	} {
		c := good
		spoil(&c)
		_, err := peer.Open(c)
		testkit.WantError(t, "the error", err, errs.Invalid, says)
	}
	for text, want := range map[string][2]string{
		"storage-b=192.0.2.7:9070": {"storage-b", "192.0.2.7:9070"}, "b=unix:///run/a=b.sock": {"b", "unix:///run/a=b.sock"},
	} {
		name, endpoint, err := peer.Parse(text)
		if name != want[0] || endpoint != want[1] || err != nil {
			t.Errorf("%s: %s, %s, %v", text, name, endpoint, err)
		}
	}
	for _, text := range []string{"", "192.0.2.7:9070", "=192.0.2.7:9070", "b=", "a b=c:1", "-b=c:1"} {
		_, _, err := peer.Parse(text)
		testkit.WantError(t, "the error", err, errs.Invalid)
	}
}

// An accepted peer survives a round trip, and has a name that is safe in logs.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"storage-b=192.0.2.7:9070", "b=unix:///run/a=b.sock", "=x", "b=", "a b=c", "b", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, endpoint, err := peer.Parse(text)
		switch {
		case err != nil && errs.KindOf(err) != errs.Invalid:
			t.Errorf("%q: %v is of another kind", text, err)
		case err == nil && (name+"="+endpoint != text || name == "" || endpoint == "" || strings.ContainsAny(name, "= \n\"")):
			t.Errorf("%q is %q at %q", text, name, endpoint)
		}
	})
}
