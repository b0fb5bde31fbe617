package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/fencetest"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/test/testkit"
)

// fenceRig is a fake driver with the commands that call it.
type fenceRig struct {
	commands
	driver *fencetest.Driver
}

func fenceCommands(endpoint string) commands { return commands{"fence", "CLEAT_ENDPOINT", endpoint} }

func newFenceRig(t *testing.T, change ...func(*fencetest.Driver)) *fenceRig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fence.sock")
	l := testkit.Value(net.Listen("unix", path))(t)
	r := &fenceRig{fenceCommands("unix://" + path), fencetest.NewDriver()}
	for _, f := range change {
		f(r.driver)
	}
	r.driver.Serve(t, l)
	return r
}

func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestFenceAndUnfence(t *testing.T) {
	r := newFenceRig(t)
	r.says(t, "fenced 192.0.2.7/32, 198.51.100.0/24, 2001:db8::7/128\n", "add", "2001:db8::7", "192.0.2.7", "::ffff:192.0.2.7", "198.51.100.0/24")
	r.says(t, "CIDR\n192.0.2.7/32\n198.51.100.0/24\n2001:db8::7/128\n", "list")
	r.says(t, "- cidr: 192.0.2.7/32\n- cidr: 198.51.100.0/24\n- cidr: 2001:db8::7/128\n", "ls", "-o", "yaml")
	r.says(t, "unfenced 192.0.2.7/32\n", "rm", "192.0.2.7")
	r.says(t, "{\n  \"endpoint\": \""+r.server+"\",\n  \"unfenced\": [\n    \"198.51.100.0/24\"\n  ]\n}\n", "remove", "198.51.100.0/24", "-o", "json")
	r.says(t, "{\n  \"endpoint\": \""+r.server+"\",\n  \"fenced\": [\n    \"10.0.0.0/8\"\n  ]\n}\n", "add", "10.0.0.0/8", "-o", "json")
	if left := r.driver.Fenced(); !slices.Equal(left, []string{"10.0.0.0/8", "2001:db8::7/128"}) {
		t.Error(left)
	}
	r.says(t, "unfenced 10.0.0.0/8, 203.0.113.1/32, 2001:db8::7/128\n", "rm", "2001:db8::7", "10.0.0.0/8", "203.0.113.1")
	r.says(t, "[]\n", "list", "-o", "json")
}

// Parameters and secrets reach the driver; secrets come from files and appear in no
// output.
func TestFenceParametersAndSecrets(t *testing.T) {
	r := newFenceRig(t)
	key := write(t, "hush-hush\n")
	args := []string{"-p", "clusterID=a", "--parameter", "pool=b=c", "--secret", "userKey=" + key}
	r.says(t, "fenced 192.0.2.7/32\n", append(args, "add", "--force", "192.0.2.7")...)
	want := []fencetest.Call{{
		Method: "FenceClusterNetwork", CIDRs: []string{"192.0.2.7/32"}, Secrets: map[string]string{"userKey": "hush-hush"},
		Parameters: map[string]string{"clusterID": "a", "pool": "b=c", "fence.cleat.dev/force": "true"},
	}}
	if diff := cmp.Diff(want, r.driver.Calls("FenceClusterNetwork")); diff != "" {
		t.Error(diff)
	}
	r.says(t, "unfenced 203.0.113.1/32\n", "rm", "--force", "203.0.113.1")
	if c := r.driver.Calls("UnfenceClusterNetwork"); len(c) != 1 || !cmp.Equal(c[0].Parameters, map[string]string{"fence.cleat.dev/force": "true"}) {
		t.Errorf("%v", c)
	}
	r.says(t, "CIDR\n", "list", "-p", "clusterID=b")
	r.says(t, "CIDR\n192.0.2.7/32\n", append(args, "list")...)
	r.refuses(t, []string{"not unfenced", "FailedPrecondition", "another owner"}, "rm", "192.0.2.7")
	r.driver.Before(func(_ context.Context, c fencetest.Call) error {
		return status.Errorf(codes.Unauthenticated, "%v are wrong", c.Secrets)
	})
	for _, word := range []string{"add", "rm"} {
		err := r.refuses(t, []string{"Unauthenticated", "--secret KEY=FILE"}, append(args, word, "192.0.2.7")...)
		if strings.Contains(err.Error(), "hush") {
			t.Error(err)
		}
	}
	r.driver.Before(func(context.Context, fencetest.Call) error {
		return status.Error(codes.InvalidArgument, "insist with the parameter fence.cleat.dev/force=true")
	})
	r.refuses(t, []string{"not fenced", "use --force"}, "add", "192.0.2.0/24")
	r.driver.Before(nil)
	r.says(t, "unfenced 192.0.2.7/32\n", append(args, "rm", "192.0.2.7")...)
}

func TestFenceFromAFile(t *testing.T) {
	r := newFenceRig(t)
	var many strings.Builder
	var want []string
	for i := range 10000 {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 32).String()
		fmt.Fprintf(&many, "  %s # host %d\r\n\n", block, i)
		want = append(want, block)
	}
	path := write(t, many.String())
	r.says(t, "fenced 10000 blocks: 10.1.0.0/32, 10.1.0.1/32, 10.1.0.2/32, 10.1.0.3/32, 10.1.0.4/32, 10.1.0.5/32, 10.1.0.6/32, 10.1.0.7/32 and 9992 more\n", "add", "--from", path)
	slices.Sort(want)
	if got := r.driver.Fenced(); !slices.Equal(got, want) {
		t.Errorf("%d are fenced", len(got))
	}
	out, _, err := r.run(t, "", "list", "-o", "json")
	var listed []struct{ CIDR string }
	if err := errors.Join(err, json.Unmarshal([]byte(out), &listed)); err != nil || len(listed) != 10000 {
		t.Errorf("%d are listed: %v", len(listed), err)
	}
	out, _, err = r.run(t, many.String(), "rm", "--from", "-", "192.0.2.1", "-o", "json")
	var done struct{ Unfenced []string }
	if err := errors.Join(err, json.Unmarshal([]byte(out), &done)); err != nil || len(done.Unfenced) != 10001 || len(r.driver.Fenced()) != 0 {
		t.Errorf("%d: %v", len(done.Unfenced), err)
	}
}

// A command with wrong arguments calls nothing, and reports all mistakes at once.
func TestFenceRefusesWrongArguments(t *testing.T) {
	r := newFenceRig(t)
	files := testkit.NewAuthority(t, "a").Files(t, nil, "x")
	bad := write(t, "192.0.2.0/24\n\n# a comment\n192.0.2.7/24\nhost-a\n")
	var tooMany strings.Builder
	for i := range 65537 {
		fmt.Fprintf(&tooMany, "10.%d.%d.%d\n", i>>16, i>>8&255, i&255)
	}
	for line, words := range map[string][]string{
		"ad 192.0.2.7":                             {`did you mean "add"?`},
		"add":                                      {"at least one CIDR", "--from"},
		"rm":                                       {"at least one CIDR"},
		"add 192.0.2.7/24 010.0.0.1 x ::/129":      {"nothing was sent", "192.0.2.0/24", "010.0.0.1", `"x"`, "::/129"},
		"add a b c d e f g h i j k":                {`"h"`, "and 3 more"},
		"add 192.0.2.1 --from " + bad:              {bad + ":4: ", "192.0.2.0/24", bad + ":5: ", "host-a"},
		"rm --from " + bad:                         {bad + ":4: "},
		"add --from " + write(t, "# none\n"):       {"contains no CIDR"},
		"add --from /nonexistent":                  {"--from /nonexistent", "no such file"},
		"add --from " + write(t, tooMany.String()): {"65537 CIDRs", "65536"},
		"add 192.0.2.7 -p clusterID":               {"key=value"},
		"add 192.0.2.7 -p a=1 -p a=2":              {"twice"},
		"add 192.0.2.7 --force -p fence.cleat.dev/force=false":             {"twice"},
		"add 192.0.2.7 --secret userKey":                                   {"KEY=FILE"},
		"add 192.0.2.7 --secret =x":                                        {"KEY=FILE"},
		"add 192.0.2.7 --secret k=/nonexistent":                            {"--secret k", "no such file"},
		"add 192.0.2.7 --secret k=" + write(t, "\n"):                       {"--secret k", "empty"},
		"add 192.0.2.7 --secret k=" + write(t, strings.Repeat("x", 1<<17)): {"--secret k", "more than"},
		"add 192.0.2.7 --secret k=" + bad + " --secret k=" + bad:           {"--secret k", "twice"},
		"add 192.0.2.7 --timeout -1s":                                      {"negative"},
		"add 192.0.2.7 -o xml":                                             {"xml"},
		"add 192.0.2.7 --endpoint storage-a:9070":                          {"mutual TLS"},
		"add 192.0.2.7 --endpoint tcp://storage-a:9070":                    {"unix:///", "HOST:PORT"},
		"add 192.0.2.7 --endpoint relative":                                {"no port"},
		"add 192.0.2.7 --tls-cert " + files.Cert:                           {"is a UNIX socket"},
		"add 192.0.2.7 --endpoint storage-a:9070 --tls-cert " + files.Cert: {"private key"},
		"add 192.0.2.7 --endpoint storage-a:9070 --tls-cert " + files.Cert + " --tls-key x --tls-ca " + files.CA: {"private key", "no such file"},
		"list x":    {"no arguments"},
		"clients x": {"no arguments"},
		"driver x":  {"no arguments"},
	} {
		r.refuses(t, words, strings.Fields(line)...)
	}
	if err := r.refuses(t, nil, "add", "192.0.2.7", "--secret", "k=the-value-itself"); strings.Contains(err.Error(), "the-value-itself") {
		t.Error(err)
	}
	if err := r.refuses(t, nil, "add", "192.0.2.7", "--secret", "the-value-itself"); strings.Contains(err.Error(), "the-value-itself") {
		t.Error(err)
	}
	if calls := r.driver.Calls("FenceClusterNetwork", "UnfenceClusterNetwork", "ListClusterFence", "GetFenceClients"); len(calls) != 0 {
		t.Errorf("%v", calls)
	}
}

func TestFenceClientsAndDriver(t *testing.T) {
	r := newFenceRig(t)
	r.refuses(t, []string{"Unimplemented", "cleat fence driver"}, "clients")
	r.says(t, `DRIVER              fence.example.com
Version             1.2
Ready               yes
Fences              yes
Lists its clients   no
Announces           Service/CONTROLLER_SERVICE, NetworkFence/NETWORK_FENCE
`, "driver")
	out, _, err := r.run(t, "", "driver", "-o", "json")
	var d fenceDriver
	if err := errors.Join(err, json.Unmarshal([]byte(out), &d)); err != nil || d.Name != "fence.example.com" || !d.Ready || !d.Capabilities.Fence {
		t.Errorf("%+v, %v", d, err)
	}
	known := &fenceRig{driver: fencetest.NewDriver()}
	known.driver.Clients = []*fence.ClientDetails{
		{Id: "node-1", Addresses: []*fence.CIDR{{Cidr: "192.0.2.1/32"}, {Cidr: "2001:db8::1/128"}}}, {Id: "node\x1b[2J"},
	}
	path := filepath.Join(t.TempDir(), "fence.sock")
	l := testkit.Value(net.Listen("unix", path))(t)
	known.driver.Serve(t, l)
	known.commands = fenceCommands(path)
	known.says(t, "CLIENT        ADDRESSES\nnode-1        192.0.2.1/32, 2001:db8::1/128\nnode\\x1b[2J   -\n", "clients")
	known.says(t, "- addresses:\n  - 192.0.2.1/32\n  - 2001:db8::1/128\n  id: node-1\n- addresses: []\n  id: \"node\\e[2J\"\n", "clients", "-o", "yaml")
}

// Other drivers list CIDRs in any notation and order.
func TestFenceListOfOtherDriver(t *testing.T) {
	r := newFenceRig(t)
	r.driver.Answer("host-b", "2001:db8::/32", "192.0.2.77/24", "10.0.0.1", "9.0.0.0/8", "")
	r.says(t, "CIDR\n9.0.0.0/8\n10.0.0.1\n2001:db8::/32\n-\n192.0.2.77/24\nhost-b\n", "list")
}

// A fence is retried until the service has completed it; each new error is reported
// once.
func TestFenceRetriesUntilDone(t *testing.T) {
	r := newFenceRig(t)
	var calls atomic.Int32
	r.driver.Before(func(context.Context, fencetest.Call) error {
		switch calls.Add(1) {
		case 1, 2, 3, 4:
			return status.Error(codes.Unavailable, "peer b does not answer")
		case 5:
			return status.Error(codes.Aborted, "another operation runs")
		}
		return nil
	})
	out, notices, err := r.run(t, "", "add", "192.0.2.7")
	if err != nil || out != "fenced 192.0.2.7/32\n" || calls.Load() != 6 {
		t.Errorf("%q, %v after %d calls", out, err, calls.Load())
	}
	for _, want := range []string{"peer b does not answer; retrying", "another operation runs; retrying"} {
		if strings.Count(notices, want) != 1 {
			t.Errorf("%q, want %q once", notices, want)
		}
	}
	for _, code := range []codes.Code{codes.Internal, codes.Unknown, codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied} {
		calls.Store(0)
		r.driver.Before(func(context.Context, fencetest.Call) error { calls.Add(1); return status.Error(code, "for good") })
		words := []string{"for good", code.String(), "not certainly fenced, repeat the command"}
		if code == codes.InvalidArgument || code == codes.FailedPrecondition {
			words[2] = "not fenced: "
		}
		r.refuses(t, words, "add", "192.0.2.7")
		if calls.Load() != 1 {
			t.Errorf("%s: %d calls", code, calls.Load())
		}
	}
}

// The error after a timeout has the last error of the service, and says that the
// result is uncertain.
func TestFenceTimeout(t *testing.T) {
	r := newFenceRig(t)
	r.driver.Before(func(context.Context, fencetest.Call) error {
		return status.Error(codes.Unavailable, "nbd-server (process 12) holds 3 sessions")
	})
	inTime(t, "the last error of the service", 300*time.Millisecond, func(timeout string) bool {
		err := r.refuses(t, []string{"not certainly fenced", "repeat"}, "add", "192.0.2.7", "--timeout", timeout)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return saysAll(err, "nbd-server (process 12) holds 3 sessions", "gave up")
	})
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	var calls atomic.Int32
	r.driver.Before(func(context.Context, fencetest.Call) error {
		if calls.Add(1) > 1 { // the error of the first call is kept
			<-release
		}
		return status.Error(codes.Unavailable, "still 3 sessions")
	})
	inTime(t, "the error of the first call", 500*time.Millisecond, func(timeout string) bool {
		calls.Store(0)
		return saysAll(r.refuses(t, []string{"not certainly unfenced"}, "rm", "192.0.2.7", "--timeout", timeout), "still 3 sessions", "gave up")
	})
	r.refuses(t, []string{"has not answered ListClusterFence in time"}, "list", "--timeout", "50ms")
}

// An unreachable service fails after a short time by default, and is awaited with
// --timeout.
func TestFenceServiceUnreachable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fence.sock")
	absent := fenceCommands("unix://" + path)
	type outcome struct {
		out string
		err error
	}
	ended := make(chan outcome, 1)
	go func() {
		c := newRootCommand()
		var out bytes.Buffer
		c.SetArgs([]string{"fence", "add", "192.0.2.7", "--endpoint", path, "--timeout", "1h"})
		c.SetOut(&out)
		c.SetErr(io.Discard)
		err := c.ExecuteContext(t.Context())
		ended <- outcome{out.String(), err}
	}()
	begun := time.Now()
	err := absent.refuses(t, []string{"not fenced: ", path, "is cleat fence serve running?", "--endpoint"}, "add", "192.0.2.7")
	if !errors.Is(err, client.ErrNotServed) || errs.KindOf(err) != errs.Unavailable {
		t.Errorf("%v", err)
	}
	if past := time.Since(begun); past > time.Minute {
		t.Errorf("given up after %s", past)
	}
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path}))(t)
	l.SetUnlinkOnClose(false)
	testkit.Must(t, l.Close())
	inTime(t, "that the socket is stale", 50*time.Millisecond, func(timeout string) bool {
		return saysAll(absent.refuses(t, nil, "list", "--timeout", timeout), "the socket is stale", "cleat fence serve")
	})
	testkit.Must(t, os.Remove(path))

	select { // the command without a timeout has given up, and began later
	case o := <-ended:
		t.Fatalf("before the service was started: %+v", o)
	default:
	}
	late := testkit.Value(net.Listen("unix", path))(t)
	fencetest.NewDriver().Serve(t, late)
	if o := <-ended; o.err != nil || o.out != "fenced 192.0.2.7/32\n" {
		t.Errorf("%+v", o)
	}
}

// A CSI socket does not serve CSI-Addons.
func TestFenceOnAnotherSocket(t *testing.T) {
	h := newHost(t)
	other := fenceCommands(h.endpoint)
	other.refuses(t, []string{"Unimplemented", "a driver serves it on a different socket"}, "add", "192.0.2.7")
}

func TestFenceOverTLS(t *testing.T) {
	ours, theirs := testkit.NewAuthority(t, "ours"), testkit.NewAuthority(t, "theirs")
	raw := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := testkit.Value(mutualtls.Listener(raw, ours.Files(t, nil, "storage-a"), nil))(t)
	r := &fenceRig{fenceCommands(raw.Addr().String()), fencetest.NewDriver()}
	r.driver.Serve(t, l)
	with := func(f mutualtls.Files, args ...string) []string {
		return append(args, "--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA)
	}
	mine := ours.Files(t, nil, "admin")
	r.says(t, "fenced 192.0.2.7/32\n", with(mine, "add", "192.0.2.7", "--tls-server-name", "storage-a")...)
	rejected := func(words []string, files mutualtls.Files, args ...string) {
		t.Helper()
		inTime(t, strings.Join(words, ", "), 50*time.Millisecond, func(timeout string) bool {
			return saysAll(r.refuses(t, nil, with(files, append(args, "--timeout", timeout)...)...), words...)
		})
	}
	rejected([]string{"not fenced", "for another name"}, mine, "add", "192.0.2.8")
	untrusted := theirs.Files(t, nil, "admin")
	untrusted.CA = mine.CA
	rejected([]string{"not fenced", "rejected the client certificate"}, untrusted, "add", "192.0.2.8", "--tls-server-name", "storage-a")
	if got := r.driver.Fenced(); !slices.Equal(got, []string{"192.0.2.7/32"}) {
		t.Error(got)
	}
}

// The shell completes fenced CIDRs.
func TestFenceCompletion(t *testing.T) {
	r := newFenceRig(t)
	r.says(t, "fenced 10.0.0.0/8, 192.0.2.7/32\n", "add", "192.0.2.7", "10.0.0.0/8")
	t.Setenv("CLEAT_ENDPOINT", r.server)
	out := testkit.Value(cleat(t, "__complete", "fence", "rm", "1"))(t)
	for _, want := range []string{"192.0.2.7/32\n", "10.0.0.0/8\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
}

// FuzzFenceBlocks checks that a file is refused, or all its blocks are in the result,
// sorted and without duplicates.
func FuzzFenceBlocks(f *testing.F) {
	for _, seed := range []string{"192.0.2.7\n", "10.0.0.0/8 # a\r\n\n2001:db8::/32", "10.0.0.1/8\n", "# none", "::ffff:192.0.2.7\n192.0.2.7/32"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		blocks, err := readBlocks(strings.NewReader(text), "-", nil)
		if err != nil {
			return
		}
		if !slices.IsSortedFunc(blocks, netip.Prefix.Compare) || len(slices.Compact(slices.Clone(blocks))) != len(blocks) {
			t.Errorf("%q gives %v", text, blocks)
		}
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, "#")
			line = strings.TrimSpace(line)
			addr, err := netip.ParseAddr(strings.Split(line, "/")[0])
			if line != "" && (err != nil || !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Addr() == addr.Unmap() })) {
				t.Errorf("%q of %q is not in %v", line, text, blocks)
			}
		}
	})
}

// Transient errors are retried; missing permissions are not transient.
func TestFenceRetriesTransientErrors(t *testing.T) {
	unreachable := func(cause error) error {
		return errs.Errorf(errs.Unavailable, "%w: %w", client.ErrNotServed, cause)
	}
	for name, c := range map[string]struct {
		err  error
		past time.Duration
		want bool
	}{
		"starting":      {unreachable(fs.ErrNotExist), time.Second, true},
		"absent":        {unreachable(fs.ErrNotExist), 4 * time.Second, false},
		"no permission": {unreachable(fs.ErrPermission), 0, false},
		"incomplete":    {errs.Errorf(errs.Unavailable, "call again"), time.Minute, true},
		"busy":          {errs.Errorf(errs.Busy, "wait"), time.Minute, true},
		"refused":       {errs.Errorf(errs.Invalid, "no"), 0, false},
	} {
		if got := fenceCanChange(c.err, c.past, 3*time.Second); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
