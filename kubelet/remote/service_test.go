package remote

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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

// A client gets the state of the host from every call.
func TestReads(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"b", "a"} {
		serve(t, r.path(name+".sock"), csiPlugin(name))
		r.until(t, name)
	}
	info, err := r.remote.Info(t.Context())
	if diff := cmp.Diff(r.service.Info, info); err != nil || diff != "" {
		t.Errorf("info: %v %s", err, diff)
	}
	want := r.host.List()
	got, err := r.remote.List(t.Context(), "", "")
	if diff := cmp.Diff(want, got, timesEqual()); err != nil || diff != "" {
		t.Errorf("list: %v %s", err, diff)
	}
	for filter, n := range map[[2]string]int{{"CSIPlugin", ""}: 2, {"", "a"}: 1, {"CSIPlugin", "b"}: 1, {"DRAPlugin", ""}: 0, {"DRAPlugin", "a"}: 0, {"", "c"}: 0} {
		if got, err := r.remote.List(t.Context(), filter[0], filter[1]); err != nil || len(got) != n {
			t.Errorf("list of %q: %v, %v, want %d", filter, got, err, n)
		}
	}
	one, err := r.remote.Get(t.Context(), r.path("b.sock"))
	if err != nil || one.Name != "b" || one.Phase != watch.Registered || one.Endpoint != r.path("b.sock") {
		t.Errorf("get: %+v, %v", one, err)
	}
	for _, word := range []string{"a", r.path("a.sock"), "a.sock"} {
		found, _, err := r.remote.Explain(t.Context(), word)
		if err != nil || len(found) != 1 || found[0].Name != "a" {
			t.Errorf("explain %s: %+v, %v", word, found, err)
		}
	}
	if found, text, err := r.remote.Explain(t.Context(), "ab"); err != nil || len(found) != 0 || !strings.Contains(text, `did you mean "a"?`) {
		t.Errorf("Explain of an unknown name: %+v, %q, %v", found, text, err)
	}
}

// timesEqual compares times regardless of their zone.
func timesEqual() cmp.Option {
	return cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })
}

// A path that is not valid UTF-8 is found, and distinct from similar ones.
func TestOddPaths(t *testing.T) {
	r := newRig(t)
	for i, name := range []string{"\xff.sock", `\xff.sock`, "ü.sock"} {
		serve(t, r.path(name), csiPlugin(fmt.Sprint("odd-", i)))
		r.until(t, fmt.Sprint("odd-", i))
	}
	all, err := r.remote.List(t.Context(), "", "")
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, s := range all {
		if got, err := r.remote.Get(t.Context(), s.Socket); err != nil || got.Name != s.Name {
			t.Errorf("%q: %+v, %v", s.Socket, got, err)
		}
		if _, err := os.Lstat(s.Socket); err != nil {
			t.Error(err)
		}
	}
}

// With any page size, a plugin that stays is listed once while others come and
// go between the pages.
func TestPages(t *testing.T) {
	r := newRig(t)
	var want []string
	for i := range 7 {
		name := fmt.Sprintf("p%d", i)
		serve(t, r.path(name+".sock"), csiPlugin(name))
		r.until(t, name)
		want = append(want, r.path(name+".sock"))
	}
	for _, size := range []int32{0, 1, 2, 3, 7, 8, 1 << 30} {
		var got []string
		passing := r.path("p0-passing.sock") // sorted after the first one
		remove := serve(t, passing, csiPlugin("passing"))
		r.until(t, "passing")
		for request := (&hostv1.ListPluginsRequest{PageSize: size}); ; {
			page := testkit.Value(r.service.ListPlugins(t.Context(), request))(t)
			if size > 0 && len(page.GetPlugins()) > int(size) {
				t.Errorf("a page of %d, want at most %d", len(page.GetPlugins()), size)
			}
			for _, p := range page.GetPlugins() {
				if p.GetSocket() != passing {
					got = append(got, p.GetSocket())
				}
			}
			if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
				break
			}
			if remove != nil {
				remove()
				remove = nil
				untilGone(t, r, passing)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d: %s", size, diff)
		}
		_ = os.Remove(passing)
		untilGone(t, r, passing)
	}
}

func untilGone(t *testing.T, r *rig, socket string) {
	t.Helper()
	ctx := testkit.Context(t)
	there := map[string]bool{}
	for c := range Follow(ctx, r.host) {
		switch c.Kind {
		case Present:
			there[c.Plugin.Socket] = true
		case Gone:
			delete(there, c.Plugin.Socket)
		}
		if c.Kind != Present && !there[socket] {
			return
		}
	}
	t.Fatalf("%s is still there: %v", socket, ctx.Err())
}

// A page is bounded in bytes too, and never empty.
func TestPagesAreLimitedInBytes(t *testing.T) {
	r := newRig(t)
	const long, plugins = 200 << 10, 12 // bytes that a host accepts in an answer to GetInfo
	for i := range plugins {
		info := csiPlugin(fmt.Sprintf("long-%d", i))
		info.SupportedVersions = []string{strings.Repeat("1", long)}
		serve(t, r.path(info.Name), info)
		r.until(t, info.Name)
	}
	page, err := r.service.ListPlugins(t.Context(), &hostv1.ListPluginsRequest{})
	if err != nil || len(page.GetPlugins()) == plugins || proto.Size(page) > maxPageBytes+2*long {
		t.Errorf("%d plugins in %d bytes, %v", len(page.GetPlugins()), proto.Size(page), err)
	}
	if all, err := r.remote.List(t.Context(), "", ""); err != nil || len(all) != plugins {
		t.Errorf("%d plugins, %v", len(all), err)
	}
}

// Each invalid request has its code and a message that explains it.
func TestRefusals(t *testing.T) {
	r := newRig(t)
	serve(t, r.path("silent.sock"), nil)
	calls := r.remote.calls
	for name, c := range map[string]struct {
		call func(ctx context.Context) error
		code codes.Code
		says string
	}{
		"negative page": {func(ctx context.Context) error {
			_, err := calls.ListPlugins(ctx, &hostv1.ListPluginsRequest{PageSize: -1})
			return err
		}, codes.InvalidArgument, "page_size is -1"},
		"no socket": {func(ctx context.Context) error {
			_, err := calls.GetPlugin(ctx, &hostv1.GetPluginRequest{})
			return err
		}, codes.InvalidArgument, "absolute path"},
		"relative socket": {func(ctx context.Context) error {
			_, err := calls.GetPlugin(ctx, &hostv1.GetPluginRequest{Socket: "a.sock"})
			return err
		}, codes.InvalidArgument, `"a.sock"`},
		"unknown socket": {func(ctx context.Context) error {
			_, err := calls.GetPlugin(ctx, &hostv1.GetPluginRequest{Socket: r.path("other.sock")})
			return err
		}, codes.NotFound, "other.sock"},
		"no type": {func(ctx context.Context) error {
			_, err := calls.LookupPlugin(ctx, &hostv1.LookupPluginRequest{Name: "a"})
			return err
		}, codes.InvalidArgument, "both are required"},
		"unknown name": {func(ctx context.Context) error {
			_, err := calls.LookupPlugin(ctx, &hostv1.LookupPluginRequest{Type: "CSIPlugin", Name: "a"})
			return err
		}, codes.NotFound, "known names of that type: none"},
		"unknown resource": {func(ctx context.Context) error {
			_, err := r.remote.Devices(ctx, "example.com/gpu")
			return status.Error(codeOf(err), err.Error())
		}, codes.NotFound, "available resources: none"},
		"no word": {func(ctx context.Context) error {
			_, err := calls.ExplainPlugin(ctx, &hostv1.ExplainPluginRequest{})
			return err
		}, codes.InvalidArgument, "word is empty"},
		"no name": {func(ctx context.Context) error {
			_, err := calls.WaitPlugin(ctx, &hostv1.WaitPluginRequest{Type: "CSIPlugin"})
			return err
		}, codes.InvalidArgument, "name is empty"},
		"negative timeout": {func(ctx context.Context) error {
			_, err := calls.WaitPlugin(ctx, &hostv1.WaitPluginRequest{Name: "a", Timeout: durationpb.New(-time.Second)})
			return err
		}, codes.InvalidArgument, "timeout is"},
		"broken timeout": {func(ctx context.Context) error {
			_, err := calls.WaitPlugin(ctx, &hostv1.WaitPluginRequest{Name: "a", Timeout: &durationpb.Duration{Nanos: 2e9}})
			return err
		}, codes.InvalidArgument, "timeout is"},
		"timeout of a wait": {func(ctx context.Context) error {
			_, err := calls.WaitPlugin(ctx, &hostv1.WaitPluginRequest{Name: "a", Timeout: durationpb.New(50 * time.Millisecond)})
			return err
		}, codes.DeadlineExceeded, ""},
		"no time to wait": {func(ctx context.Context) error {
			_, err := calls.WaitPlugin(ctx, &hostv1.WaitPluginRequest{Name: "a", Timeout: &durationpb.Duration{}})
			return err
		}, codes.DeadlineExceeded, ""},
		"hung up": {func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			_, err := calls.WaitPlugin(ctx, &hostv1.WaitPluginRequest{Name: "a"})
			return err
		}, codes.Canceled, ""},
		"no such call": {func(ctx context.Context) error {
			return r.remote.conn.Invoke(ctx, "/cleat.host.v1.Host/Reboot", &hostv1.GetHostRequest{}, &hostv1.GetHostResponse{})
		}, codes.Unimplemented, "Reboot"},
	} {
		err := c.call(t.Context())
		if s := status.Convert(err); s.Code() != c.code || !strings.Contains(s.Message(), c.says) || s.Message() == "" {
			t.Errorf("%s: %v, want %s with %q", name, err, c.code, c.says)
		}
	}
}

// codeOf returns the code of the client's Error.
func codeOf(err error) codes.Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return codes.Unknown
}

// Wait returns when a plugin is registered, and not before.
func TestWait(t *testing.T) {
	r := newRig(t)
	got := make(chan error, 1)
	go func() {
		s, err := r.remote.Wait(t.Context(), "CSIPlugin", "late", 0)
		if err == nil && s.Phase != watch.Registered {
			err = fmt.Errorf("%+v", s)
		}
		got <- err
	}()
	serve(t, r.path("early.sock"), csiPlugin("early"))
	r.until(t, "early")
	select {
	case err := <-got:
		t.Fatalf("another plugin was enough: %v", err)
	default:
	}
	serve(t, r.path("late.sock"), csiPlugin("late"))
	if err := <-got; err != nil {
		t.Error(err)
	}
	var e *Error
	if _, err := r.remote.Wait(t.Context(), "DRAPlugin", "late", 50*time.Millisecond); !errors.As(err, &e) || e.Code != codes.DeadlineExceeded {
		t.Errorf("of another type: %v", err)
	}
	_, err := r.remote.Wait(t.Context(), "", "latte", 50*time.Millisecond)
	if !errors.As(err, &e) || !strings.Contains(e.Message, `did you mean "late"?`) || strings.Contains(e.Message, "deadline") {
		t.Errorf("of another name: %v", err)
	}
}

// Stop ends long-running calls, so that a server can be drained.
func TestStop(t *testing.T) {
	r := newRig(t)
	ended := make(chan error, 2)
	go func() {
		_, err := r.remote.Wait(t.Context(), "", "never", 0)
		ended <- err
	}()
	synced := make(chan struct{})
	go func() {
		for c, err := range r.remote.Watch(t.Context()) {
			if err != nil {
				ended <- err
				return
			}
			if c.Kind == Synced {
				close(synced)
			}
		}
	}()
	<-synced
	r.service.Stop()
	for range 2 {
		if err := <-ended; !errors.Is(err, ErrNoHost) || !strings.Contains(err.Error(), "is stopping") {
			t.Errorf("%v", err)
		}
	}
}

func TestNoHost(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	serve(t, filepath.Join(dir, "x.sock"), nil)
	testkit.Must(t, os.Link(filepath.Join(dir, "x.sock"), dead))
	for endpoint, says := range map[string]string{
		"unix://" + filepath.Join(dir, "no.sock"): "cleat host",
		"unix:///proc/self/mounts":                "",
	} {
		_, err := Dial(t.Context(), endpoint)
		if !errors.Is(err, ErrNoHost) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	if _, err := Dial(t.Context(), "tcp://1.2.3.4:5"); err == nil || !strings.Contains(err.Error(), "UNIX") {
		t.Errorf("another network: %v", err)
	}
	// Another server, without host/v1.
	h := testkit.Value(Dial(t.Context(), "unix://"+dead))(t)
	defer h.Close()
	var e *Error
	if _, err := h.Info(t.Context()); !errors.As(err, &e) || e.Code != codes.Unimplemented {
		t.Errorf("a server of something else: %v", err)
	}
}

// FuzzRequests: every request is answered or refused, and never causes a panic
// or the code Internal.
func FuzzRequests(f *testing.F) {
	r := newRig(f)
	serve(f, r.path("a.sock"), csiPlugin("a"))
	r.until(f, "a")
	f.Add("a", "CSIPlugin", int32(1), r.path("a.sock"))
	f.Add("", "", int32(-1), `\xzz`)
	f.Fuzz(func(t *testing.T, name, kind string, size int32, path string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, listed := r.service.ListPlugins(ctx, &hostv1.ListPluginsRequest{Filter: &hostv1.Filter{Type: kind, Name: name}, PageSize: size, PageToken: path})
		_, got := r.service.GetPlugin(ctx, &hostv1.GetPluginRequest{Socket: path})
		_, explained := r.service.ExplainPlugin(ctx, &hostv1.ExplainPluginRequest{Word: path})
		_, waited := r.service.WaitPlugin(ctx, &hostv1.WaitPluginRequest{Name: name, Type: kind, Timeout: &durationpb.Duration{Nanos: size}})
		for _, err := range []error{listed, got, explained, waited} {
			known := []codes.Code{codes.InvalidArgument, codes.NotFound}
			if err != nil && !slices.Contains(known, Code(err)) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%q %q %d %q: %v", name, kind, size, path, err)
			}
		}
	})
}
