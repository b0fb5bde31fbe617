package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/fencetest"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestEveryCall(t *testing.T) {
	d := fencetest.NewDriver()
	d.Clients = []*fence.ClientDetails{{Id: "node-1", Addresses: []*fence.CIDR{{Cidr: "192.0.2.1/32"}, {Cidr: "2001:db8::1/128"}}}}
	c, ctx := open(t, client.Target{Endpoint: onSocket(t, d)}), testkit.Context(t)

	who, err := c.Identity(ctx)
	if diff := cmp.Diff(client.Identity{Name: "fence.example.com", Version: "1.2", Manifest: map[string]string{"commit": "abc"}}, who); diff != "" || err != nil {
		t.Error(diff, err)
	}
	can, err := c.Capabilities(ctx)
	if diff := cmp.Diff(client.Capabilities{Controller: true, Fence: true, All: []string{"Service/CONTROLLER_SERVICE", "NetworkFence/NETWORK_FENCE"}}, can); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if ready, err := c.Probe(ctx); !ready || err != nil {
		t.Error(ready, err)
	}
	mine := client.Request{Parameters: map[string]string{"cluster": "a"}, Secrets: map[string]string{"token": "hush"}}
	blocks := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::7/128")}
	testkit.Must(t, c.Fence(ctx, mine, blocks))
	want := []fencetest.Call{{Method: "FenceClusterNetwork", Parameters: mine.Parameters, Secrets: mine.Secrets, CIDRs: []string{"192.0.2.0/24", "2001:db8::7/128"}}}
	testkit.Diff(t, "result", want, d.Calls("FenceClusterNetwork"))
	for _, r := range []client.Request{mine, {}} {
		if all, err := c.List(ctx, r); len(all) != 2 || err != nil {
			t.Error(all, err)
		}
	}
	if none, err := c.List(ctx, client.Request{Parameters: map[string]string{"cluster": "b"}}); none == nil || len(none) != 0 || err != nil {
		t.Error(none, err)
	}
	testkit.WantError(t, "Unfence", c.Unfence(ctx, client.Request{}, blocks), errs.Precondition, "UnfenceClusterNetwork", "FailedPrecondition", "another owner")
	if err := c.Unfence(ctx, mine, blocks[:1]); err != nil {
		t.Error(err)
	}
	if left := d.Fenced(); !cmp.Equal(left, []string{"2001:db8::7/128"}) {
		t.Error(left)
	}
	clients, err := c.Clients(ctx, mine)
	if diff := cmp.Diff([]client.FenceClient{{ID: "node-1", Addresses: []string{"192.0.2.1/32", "2001:db8::1/128"}}}, clients); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestCapabilitiesOfOthers(t *testing.T) {
	d := fencetest.NewDriver()
	d.NotReady = true
	d.Capabilities = []*identity.Capability{
		fencetest.ServiceCapability(identity.Capability_Service_NODE_SERVICE),
		fencetest.FenceCapability(identity.Capability_NetworkFence_GET_CLIENTS_TO_FENCE),
		{Type: &identity.Capability_ReclaimSpace_{ReclaimSpace: &identity.Capability_ReclaimSpace{Type: identity.Capability_ReclaimSpace_ONLINE}}},
		{Type: &identity.Capability_VolumeReplication_{VolumeReplication: &identity.Capability_VolumeReplication{Type: 1}}},
		{Type: &identity.Capability_VolumeGroup_{VolumeGroup: &identity.Capability_VolumeGroup{Type: 1}}},
		{Type: &identity.Capability_EncryptionKeyRotation_{EncryptionKeyRotation: &identity.Capability_EncryptionKeyRotation{Type: 1}}},
		fencetest.FenceCapability(77), // of a later release
		{},
	}
	c, ctx := open(t, client.Target{Endpoint: onSocket(t, d)}), testkit.Context(t)
	can, err := c.Capabilities(ctx)
	want := client.Capabilities{Node: true, Clients: true, All: []string{
		"Service/NODE_SERVICE", "NetworkFence/GET_CLIENTS_TO_FENCE", "ReclaimSpace/ONLINE", "VolumeReplication/VOLUME_REPLICATION",
		"VolumeGroup/VOLUME_GROUP", "EncryptionKeyRotation/ENCRYPTIONKEYROTATION", "NetworkFence/77", "unknown",
	}}
	if diff := cmp.Diff(want, can); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if ready, err := c.Probe(ctx); ready || err != nil {
		t.Error(ready, err)
	}
	_, err = c.Clients(ctx, client.Request{})
	testkit.WantError(t, "the error", err, errs.Unsupported, "GetFenceClients", "Unimplemented")
}

// No code counts as a lost connection.
func TestCodes(t *testing.T) {
	d := fencetest.NewDriver()
	c, ctx := open(t, client.Target{Endpoint: onSocket(t, d)}), testkit.Context(t)
	for code, kind := range map[codes.Code]errs.Kind{
		codes.Canceled: errs.Unavailable, codes.Unknown: errs.Internal, codes.InvalidArgument: errs.Invalid,
		codes.DeadlineExceeded: errs.Unavailable, codes.NotFound: errs.NotFound, codes.AlreadyExists: errs.Exists,
		codes.PermissionDenied: errs.Denied, codes.ResourceExhausted: errs.Exhausted, codes.FailedPrecondition: errs.Precondition,
		codes.Aborted: errs.Busy, codes.OutOfRange: errs.OutOfRange, codes.Unimplemented: errs.Unsupported,
		codes.Internal: errs.Internal, codes.Unavailable: errs.Unavailable, codes.DataLoss: errs.Internal, codes.Unauthenticated: errs.Unauthenticated,
	} {
		d.Before(func(context.Context, fencetest.Call) error { return status.Error(code, "for a test") })
		err := c.Fence(ctx, client.Request{}, block("192.0.2.1/32"))
		testkit.WantError(t, "the error", err, kind, "for a test", code.String(), "FenceClusterNetwork")
		if status.Code(err) != code || errors.Is(err, client.ErrNotServed) {
			t.Errorf("%s became %v", code, err)
		}
	}
	if n := len(d.Calls("FenceClusterNetwork")); n != 16 {
		t.Errorf("%d calls: an answered call was retried", n)
	}
}

// Messages are bounded and have no secrets.
func TestDriverMessagesAreBoundedAndRedacted(t *testing.T) {
	d := fencetest.NewDriver()
	c, ctx := open(t, client.Target{Endpoint: onSocket(t, d)}), testkit.Context(t)
	secrets := map[string]string{"token": "s3cr3t-value", "short": "e"}
	d.Before(func(_ context.Context, call fencetest.Call) error {
		return status.Errorf(codes.Unauthenticated, "token %s is wrong: %s", call.Secrets["token"], call.Secrets["token"])
	})
	err := c.Fence(ctx, client.Request{Secrets: secrets}, block("192.0.2.1/32"))
	testkit.WantError(t, "the error", err, errs.Unauthenticated, "token *** is wrong: ***")
	if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, "s3cr3t") {
		t.Error(text)
	}
	d.Before(func(context.Context, fencetest.Call) error {
		return status.Error(codes.Internal, strings.Repeat("ü", 5000))
	})
	if err := c.Fence(ctx, client.Request{}, block("192.0.2.1/32")); len(err.Error()) > 4300 || !strings.HasSuffix(err.Error(), "ü…") {
		t.Errorf("%d bytes: …%q", len(err.Error()), err.Error()[len(err.Error())-10:])
	}
}

func TestTargets(t *testing.T) {
	files := mutualtls.Files{Cert: "/c", Key: "/k", CA: "/a"}
	for endpoint, says := range map[string]string{
		"": "empty", "relative/fence.sock": "relative", "unix://relative.sock": "three slashes", "unix:///a/../b": "clean", "unix:///": "directory",
		"tcp://storage-a:9070": `scheme "tcp"`, "https://storage-a": `scheme "https"`, "storage-a": "no port", "storage-a:": "port", ":9070": "host",
		"storage-a:http": "port", "storage-a:0": "port", "storage-a:65536": "port", "2001:db8::7:9070": "brackets", "sto rage:9070": "host",
		"storage-a\n:9070": "host", "-a:9070": "host", "[::1%]:9070": "host",
	} {
		target := client.Target{Endpoint: endpoint, TLS: files}
		testkit.WantError(t, "Check", target.Check(), errs.Invalid, says)
		_, err := client.Open(target)
		testkit.WantError(t, "the error", err, errs.Invalid, says)
	}
	testkit.WantError(t, "the error", client.Target{Endpoint: "storage-a:9070"}.Check(), errs.Invalid, "mutual TLS")
	testkit.WantError(t, "the error", client.Target{Endpoint: "storage-a:9070", TLS: files}.Check(), errs.Invalid, "/c", "no such file")
	testkit.WantError(t, "the error", client.Target{Endpoint: "/run/fence.sock", TLS: files}.Check(), errs.Invalid, "does not use TLS", "HOST:PORT")
	testkit.WantError(t, "the error", client.Target{Endpoint: "/run/fence.sock", ServerName: "x"}.Check(), errs.Invalid, "does not use TLS")
	for _, good := range []string{"/run/fence.sock", "unix:/run/fence.sock", "unix:///run/fence.sock"} {
		if err := (client.Target{Endpoint: good}).Check(); err != nil {
			t.Error(err)
		}
	}
	for _, good := range []string{"storage-a:9070", "storage_a.example.com.:1", "192.0.2.7:65535", "[2001:db8::7]:9070", "[fe80::1%eth0]:9070"} {
		open(t, client.Target{Endpoint: good, TLS: files})
	}
}

// The cause is returned after Patience.
func TestNoServer(t *testing.T) {
	ctx := testkit.Context(t)
	missing := open(t, client.Target{Endpoint: t.TempDir() + "/no.sock", Patience: soon})
	err := missing.Fence(ctx, client.Request{}, block("192.0.2.1/32"))
	testkit.WantError(t, "the error", err, errs.Unavailable, "no.sock", "no fence service answers")
	if !errors.Is(err, client.ErrNotServed) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	left := t.TempDir() + "/left.sock"
	testkit.Must(t, leaveSocket(left))
	_, err = open(t, client.Target{Endpoint: left, Patience: soon}).Probe(ctx)
	if testkit.WantError(t, "the error", err, errs.Unavailable, left); !errors.Is(err, client.ErrNotServed) || !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
	noGRPC := open(t, client.Target{Endpoint: "unix://" + shut(t), Patience: soon})
	_, err = noGRPC.Probe(ctx)
	if testkit.WantError(t, "the error", err, errs.Unavailable); !errors.Is(err, client.ErrNotServed) {
		t.Errorf("%v", err)
	}
	patient := open(t, client.Target{Endpoint: left, Patience: time.Hour})
	for wait := 20 * time.Millisecond; wait < time.Minute; wait *= 2 { // long enough
		short, cancel := context.WithTimeout(t.Context(), wait)
		_, err = patient.Probe(short)
		cancel()
		if errors.Is(err, client.ErrNotServed) {
			break
		}
	}
	if testkit.WantError(t, "the error", err, errs.Unavailable); !errors.Is(err, client.ErrNotServed) {
		t.Errorf("%v", err)
	}
}

// The caller's deadline applies.
func TestSlowDriver(t *testing.T) {
	d := fencetest.NewDriver()
	c := open(t, client.Target{Endpoint: onSocket(t, d)})
	slow(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err := c.Fence(ctx, client.Request{}, block("192.0.2.1/32"))
	testkit.WantError(t, "the error", err, errs.Unavailable, "has not answered FenceClusterNetwork in time")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	d.Before(func(ctx context.Context, _ fencetest.Call) error { cancel(); <-ctx.Done(); return nil }) // the caller has canceled
	if err = c.Fence(gone, client.Request{}, block("192.0.2.1/32")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	d.Before(nil)
	if err := c.Fence(testkit.Context(t), client.Request{}, block("192.0.2.1/32")); err != nil {
		t.Error(err)
	}
}

func TestManyBlocks(t *testing.T) {
	const many = 65536
	d := fencetest.NewDriver()
	c, ctx := open(t, client.Target{Endpoint: onSocket(t, d)}), testkit.Context(t)
	var requests [2][]netip.Prefix
	for i := range requests {
		for j := range many {
			address := netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte(i), byte(j >> 8), byte(j)})
			requests[i] = append(requests[i], netip.PrefixFrom(address, 128))
		}
		testkit.Must(t, c.Fence(ctx, client.Request{}, requests[i]))
	}
	if all, err := c.List(ctx, client.Request{}); len(all) != 2*many || err != nil {
		t.Errorf("%d, %v", len(all), err)
	}
	for _, blocks := range requests {
		if err := c.Unfence(ctx, client.Request{}, blocks); err != nil {
			t.Error(err)
		}
	}
	if left := d.Fenced(); len(left) != 0 {
		t.Errorf("%d are left over", len(left))
	}
}

func TestStaleConnectionErrorIsNotReported(t *testing.T) {
	path := t.TempDir() + "/fence.sock"
	d := fencetest.NewDriver()
	c := open(t, client.Target{Endpoint: path, Patience: soon})
	slow(t, d)
	_, err := c.Probe(testkit.Context(t))
	testkit.WantError(t, "the error", err, errs.Unavailable, "no such file")
	l, err := net.Listen("unix", path)
	testkit.Must(t, err)
	d.Serve(t, l)
	ctx := testkit.Context(t)
	for len(d.Calls("Probe")) == 0 && ctx.Err() == nil { // gRPC dials again
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		_, err = c.Probe(short)
		cancel()
	}
	testkit.WantError(t, "the error", err, errs.Unavailable, "has not answered Probe in time")
}

// slow blocks all calls until the test ends.
func slow(t *testing.T, d *fencetest.Driver) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	d.Before(func(context.Context, fencetest.Call) error { <-release; return nil })
}

// An accepted endpoint is either an absolute socket path without TLS, or a host
// and a port with TLS.
func FuzzEndpoint(f *testing.F) {
	for _, seed := range []string{"unix:///run/x.sock", "/run/x.sock", "storage-a:9070", "[2001:db8::7]:9070", "[fe80::1%eth0]:1", "a:b:1", "tcp://a:1", "unix:a:1", ":1", "a/b:1", "1:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		opens := func(files mutualtls.Files) bool {
			c, err := client.Open(client.Target{Endpoint: endpoint, TLS: files})
			if err != nil {
				if errs.KindOf(err) != errs.Invalid {
					t.Errorf("%q: %v is of another kind", endpoint, err)
				}
				return false
			}
			if err := c.Close(); err != nil {
				t.Errorf("%q: %v", endpoint, err)
			}
			return true
		}
		bare, secured := opens(mutualtls.Files{}), opens(mutualtls.Files{Cert: "/c", Key: "/k", CA: "/a"})
		if bare && (secured || !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//"), "/")) {
			t.Errorf("%q is accepted as a socket", endpoint)
		}
		if !secured {
			return
		}
		host, port, err := net.SplitHostPort(endpoint)
		n, numeric := strconv.Atoi(port)
		if err != nil || host == "" || numeric != nil || n < 1 || n > 65535 {
			t.Errorf("%q is accepted as an address", endpoint)
		}
		if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, "/:@% \n\x00") {
			t.Errorf("%q is accepted as a host name", host)
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 50 * time.Millisecond

func open(t *testing.T, target client.Target) *client.Client {
	t.Helper()
	return testkit.Open(client.Open(target))(t)
}

func onSocket(t *testing.T, d *fencetest.Driver) (endpoint string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fence.sock")
	l := testkit.Value(net.Listen("unix", path))(t)
	d.Serve(t, l)
	return "unix://" + path
}

func overTLS(t *testing.T, d *fencetest.Driver, f mutualtls.Files) (endpoint string, stop func()) {
	t.Helper()
	return overTLSAt(t, d, f, "127.0.0.1:0")
}

func overTLSAt(t *testing.T, d *fencetest.Driver, f mutualtls.Files, address string) (endpoint string, stop func()) {
	t.Helper()
	raw := tcp(t, address)
	l := testkit.Value(mutualtls.Listener(raw, f, nil))(t)
	return raw.Addr().String(), d.Serve(t, l)
}

func tcp(t *testing.T, address string) net.Listener {
	t.Helper()
	return testkit.Value(net.Listen("tcp", address))(t)
}

func block(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
