package register

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

// directoryRig is a Directory that a host can watch.
type directoryRig struct {
	*Directory
	t        *testing.T
	dir      string
	handler  *handler
	registry *prometheus.Registry
	logs     *testkit.Log
}

func newDirectoryRig(t *testing.T) *directoryRig {
	t.Helper()
	r := &directoryRig{t: t, dir: testkit.Dir(t), handler: &handler{}, registry: prometheus.NewRegistry(), logs: testkit.NewLog(t)}
	r.Directory = NewDirectory(r.dir, r.logs.Logger(), r.registry)
	t.Cleanup(func() {
		testkit.Must(t, r.Close(testkit.Context(t)))
		if left, err := os.ReadDir(r.dir); err != nil || len(left) > 0 {
			t.Errorf("left over: %v, %v", left, err)
		}
	})
	return r
}

// watch starts a host that watches the directory.
func (r *directoryRig) watch() {
	r.t.Helper()
	host := testkit.Value(watch.New(watch.Options{Dir: r.dir, Handlers: map[string]watch.Handler{Device: r.handler}}))(r.t)
	testkit.Must(r.t, host.Start(r.t.Context()))
	r.t.Cleanup(func() { testkit.Must(r.t, host.Close(testkit.Context(r.t), false)) })
}

func device(resource string) Plugin {
	return Plugin{Type: Device, Name: resource, Endpoint: "/" + resource, Versions: []string{"v1beta1"}}
}

func (r *directoryRig) register(resource string) error {
	return r.Register(testkit.Context(r.t), device(resource))
}

// start registers in the background, and returns once the socket exists.
func (r *directoryRig) start(ctx context.Context, resource string) (result <-chan error) {
	r.t.Helper()
	before, _ := os.Lstat(r.socket(resource))
	ended := make(chan error, 1)
	go func() { ended <- r.Register(ctx, device(resource)) }()
	testkit.Eventually(r.t, "a new socket", func() bool {
		now, err := os.Lstat(r.socket(resource))
		return err == nil && (before == nil || now.ModTime().After(before.ModTime())) // inode numbers are reused
	})
	return ended
}

func (r *directoryRig) socket(resource string) string {
	return filepath.Join(r.dir, strings.ReplaceAll(resource, "/", "_")+"-reg.sock")
}

func (r *directoryRig) hasSocket(resource string) bool {
	_, err := os.Lstat(r.socket(resource))
	return err == nil
}

// wantMetrics checks the number of registrations in the metrics.
func (r *directoryRig) wantMetrics(want int) {
	r.t.Helper()
	got := 0
	for _, f := range testkit.Value(r.registry.Gather())(r.t) {
		if f.GetName() == "cleat_registration_questions_total" {
			got = len(f.GetMetric())
		}
	}
	if got != want {
		r.t.Errorf("the metrics have %d registrations, want %d", got, want)
	}
}

func TestDirectory(t *testing.T) {
	r := newDirectoryRig(t)
	r.watch()
	testkit.Must(t, r.register("example.com/a"))
	testkit.Must(t, r.register("example.com/b"))
	want := []string{"register example.com/a /example.com/a", "register example.com/b /example.com/b"}
	if got := r.handler.said(); !slices.Equal(got, want) {
		t.Errorf("the host received %v, want %v", got, want)
	}
	r.wantMetrics(2)
	// After a loss: the host registers again only if the socket is new.
	testkit.Must(t, r.register("example.com/a"))
	if got := r.handler.said(); len(got) != 4 || got[2] != "deregister example.com/a /example.com/a" || got[3] != want[0] {
		t.Errorf("after one registered again, the host received %v", got)
	}
	r.wantMetrics(2)
	testkit.Must(t, r.Forget(t.Context(), "example.com/a"))
	if r.hasSocket("example.com/a") || !r.hasSocket("example.com/b") {
		t.Error("not exactly the socket of the forgotten plugin is gone")
	}
	testkit.Eventually(t, "the host deregistered it", func() bool { return len(r.handler.said()) == 5 })
	r.wantMetrics(1)
	testkit.Must(t, r.Forget(t.Context(), "example.com/a"))
}

// An error of the host is returned, and a later registration succeeds.
func TestDirectoryIsRefused(t *testing.T) {
	r := newDirectoryRig(t)
	r.watch()
	r.handler.refuses(errors.New("not this one"))
	testkit.WantError(t, "refused", r.register("example.com/a"), nil, "the kubelet refused the registration", "not this one")
	r.handler.refuses(nil)
	testkit.Must(t, r.register("example.com/a"))
}

// Register waits for a host that starts later.
func TestDirectoryWaits(t *testing.T) {
	r := newDirectoryRig(t)
	result := r.start(testkit.Context(t), "example.com/a")
	select {
	case err := <-result:
		t.Fatalf("it returned %v without a host", err)
	default:
	}
	r.watch()
	testkit.Must(t, testkit.Receive(t, "the registration", result))
}

// Register ends with the caller, another Register, Forget and Close.
func TestDirectoryWaitEnds(t *testing.T) {
	stopped := errors.New("the caller has stopped")
	for name, c := range map[string]struct {
		end  func(r *directoryRig, cancel context.CancelCauseFunc)
		want string
	}{
		"caller": {func(_ *directoryRig, cancel context.CancelCauseFunc) { cancel(stopped) }, stopped.Error()},
		"again": {func(r *directoryRig, _ context.CancelCauseFunc) {
			ctx, cancel := context.WithCancel(r.t.Context())
			again := r.start(ctx, "example.com/a")
			cancel()
			testkit.WantError(r.t, "the second", testkit.Receive(r.t, "the second registration", again), context.Canceled)
		}, "no longer served"},
		"forget": {func(r *directoryRig, _ context.CancelCauseFunc) {
			testkit.Must(r.t, r.Forget(testkit.Context(r.t), "example.com/a"))
		}, "no longer served"},
		"close": {func(r *directoryRig, _ context.CancelCauseFunc) { testkit.Must(r.t, r.Close(testkit.Context(r.t))) }, "no longer served"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newDirectoryRig(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			result := r.start(ctx, "example.com/a")
			c.end(r, cancel)
			testkit.WantError(t, "ended", testkit.Receive(t, "the registration", result), nil, c.want)
		})
	}
}

func TestClosedDirectory(t *testing.T) {
	r := newDirectoryRig(t)
	testkit.Must(t, r.Close(t.Context()))
	testkit.WantError(t, "closed", r.register("example.com/a"), nil, "closed")
	if r.hasSocket("example.com/a") {
		t.Error("a socket was created")
	}
	r.wantMetrics(0)
}

// Invalid names are refused before a socket is created.
func TestDirectoryRefusesNames(t *testing.T) {
	r := newDirectoryRig(t)
	testkit.WantError(t, "an invalid name", r.register("no resource"), nil, `"no resource"`)
	r.wantMetrics(0)
}

// otherPlugin serves the registration of another process.
type otherPlugin struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
	err  error
}

func (p otherPlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return p.info, p.err
}

func (r *directoryRig) serve(file string, p otherPlugin) (stop func()) {
	r.t.Helper()
	return testkit.Serve(r.t, filepath.Join(r.dir, file), func(s grpc.ServiceRegistrar) { registration.RegisterRegistrationServer(s, p) })
}

// A plugin registered by another process is not registered until that process ends.
// Other plugins, dead sockets, and what registers no plugin do not matter.
func TestDirectoryYieldsToOtherPlugin(t *testing.T) {
	r := newDirectoryRig(t)
	r.watch()
	file := func(name string) string {
		path := filepath.Join(r.dir, name)
		t.Cleanup(func() { _ = os.Remove(path) })
		return path
	}
	r.serve("name.sock", otherPlugin{info: &registration.PluginInfo{Type: Device, Name: "example.com/other"}})
	r.serve("type.sock", otherPlugin{info: &registration.PluginInfo{Type: DRA, Name: "example.com/a"}})
	r.serve(".hidden.sock", otherPlugin{info: &registration.PluginInfo{Type: Device, Name: "example.com/a"}})
	testkit.Serve(t, filepath.Join(r.dir, "csi.sock"), func(grpc.ServiceRegistrar) {}) // Unimplemented
	testkit.Must(t, testkit.Listen(t, file("dead.sock")).Close())
	datagrams := testkit.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: file("datagrams.sock"), Net: "unixgram"}))(t)
	defer datagrams.Close()
	testkit.Must(t, os.WriteFile(file("file"), nil, 0o600))
	stop := r.serve("example.com_a.sock", otherPlugin{info: &registration.PluginInfo{Type: Device, Name: "example.com/a"}})
	for range 2 {
		testkit.WantError(t, "with another plugin", r.register("example.com/a"), nil, "another device plugin is registered for example.com/a", filepath.Join(r.dir, "example.com_a.sock"))
		if r.hasSocket("example.com/a") {
			t.Fatal("both register")
		}
	}
	testkit.Must(t, r.register("example.com/b"))
	stop()
	testkit.Must(t, r.register("example.com/a"))
}

// While a live process does not answer GetInfo, it is not known whether it registers the
// plugin, and a second registration would replace that one.
func TestDirectoryWaitsForAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(r *directoryRig, file string) (stop func())
		why   string
	}{
		"hangs": {func(r *directoryRig, file string) func() {
			l := testkit.Listen(t, filepath.Join(r.dir, file))
			return func() { testkit.Must(t, l.Close()) }
		}, "DeadlineExceeded"},
		"hangs, with a full queue": {func(r *directoryRig, file string) func() {
			fd := testkit.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(r.t)
			path := filepath.Join(r.dir, file)
			testkit.Must(r.t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0))
			c := testkit.Value(net.Dial("unix", path))(r.t)
			return func() { testkit.Must(r.t, unix.Close(fd), c.Close()) }
		}, "resource temporarily unavailable"},
		"hangs up": {func(r *directoryRig, file string) func() {
			l := testkit.Listen(t, filepath.Join(r.dir, file))
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_ = c.Close()
				}
			}()
			return func() { testkit.Must(t, l.Close()) }
		}, "Unavailable"},
		"fails": {func(r *directoryRig, file string) func() {
			return r.serve(file, otherPlugin{err: status.Error(codes.Internal, "it is not ready")})
		}, "it is not ready"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newDirectoryRig(t)
			r.watch()
			socket := filepath.Join(r.dir, "other.sock")
			stop := c.serve(r, "other.sock")
			defer os.Remove(socket)
			testkit.WantError(t, "without an answer", r.register("example.com/a"), nil, "not known", "example.com/a", socket, c.why)
			if got := r.handler.said(); r.hasSocket("example.com/a") || len(got) > 0 {
				t.Errorf("it registered: %v", got)
			}
			stop() // the socket of a hanging process is left
			testkit.Must(t, r.register("example.com/a"))
		})
	}
}
