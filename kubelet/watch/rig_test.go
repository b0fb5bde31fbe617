package watch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a host for an empty directory, with a handler for type T.
type rig struct {
	*Host
	t   *testing.T
	dir string
	log *testkit.Log
	*recorder
}

// newRig creates the host; start starts it.
func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	dir := testkit.Dir(t) // short, because socket paths are limited
	r := &rig{t: t, dir: filepath.Join(dir, "d"), log: testkit.NewLog(t), recorder: newRecorder()}
	o := Options{
		Dir: r.dir, Handlers: map[string]Handler{"T": r.recorder}, Rescan: time.Hour,
		Timeouts: Timeouts{Dial: time.Minute, GetInfo: time.Minute, Notify: time.Minute}, // long, to be independent of the load
		Logger:   slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	if change != nil {
		change(&o)
	}
	r.Host = testkit.Value(New(o))(t)
	return r
}

func startRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	r := newRig(t, change)
	r.start()
	return r
}

func (r *rig) start() {
	r.t.Helper()
	testkit.Must(r.t, r.Start(r.t.Context()))
	r.t.Cleanup(func() {
		ctx := testkit.Context(r.t)
		if err := r.Close(ctx, false); err != nil && !strings.Contains(err.Error(), "were cancelled") {
			r.t.Errorf("Close: %v", err)
		}
	})
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// until waits for a status of a socket.
func (r *rig) until(name string, is func(Status) bool) Status {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testkit.Timeout)
	defer cancel()
	events := r.Subscribe(ctx)
	there := false
	for _, s := range r.List() {
		if s.Socket != r.path(name) {
			continue
		}
		if there = true; is(s) {
			return s
		}
	}
	if last := (Status{Phase: Gone}); !there && is(last) {
		return last
	}
	for e := range events {
		if e.Status.Socket == r.path(name) && is(e.Status) {
			return e.Status
		}
	}
	r.t.Fatalf("%s did not come to that: %+v", name, r.Find(name))
	return Status{}
}

func (r *rig) phase(name string, want Phase) Status {
	r.t.Helper()
	return r.until(name, func(s Status) bool { return s.Phase == want })
}

// failed waits for an attempt to fail and checks its error and reason.
func (r *rig) failed(name string, step Phase, text, reason string) {
	r.t.Helper()
	s := r.phase(name, Failed)
	if s.Step != step || !strings.Contains(s.Error, text) || !strings.Contains(s.Reason, reason) {
		r.t.Errorf("%s failed when %s: %s (%s)\nwant %s: %s (%s)", name, s.Step, s.Error, s.Reason, step, text, reason)
	}
}

// recorder is a handler that records its calls, and runs functions that a test
// sets.
type recorder struct {
	mu                             sync.Mutex
	calls                          []string
	called                         chan struct{} // has an element after a call
	validate, register, deRegister func(context.Context, Plugin) error
}

func newRecorder() *recorder { return &recorder{called: make(chan struct{}, 1)} }

func (r *recorder) Validate(ctx context.Context, p Plugin) error {
	return r.call(ctx, "Validate", p, &r.validate)
}
func (r *recorder) Register(ctx context.Context, p Plugin) error {
	return r.call(ctx, "Register", p, &r.register)
}
func (r *recorder) DeRegister(ctx context.Context, p Plugin) error {
	return r.call(ctx, "DeRegister", p, &r.deRegister)
}

func (r *recorder) call(ctx context.Context, what string, p Plugin, do *func(context.Context, Plugin) error) error {
	r.mu.Lock()
	r.calls = append(r.calls, what+" "+p.Name)
	f := *do
	r.mu.Unlock()
	select {
	case r.called <- struct{}{}:
	default:
	}
	if f != nil {
		return f(ctx, p)
	}
	return nil
}

func (r *recorder) made() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.calls, ", ")
}

// plugin serves the registration API.
type plugin struct {
	registration.UnimplementedRegistrationServer
	info   func(context.Context) (*registration.PluginInfo, error)
	notify func(context.Context, *registration.RegistrationStatus) error
	server *grpc.Server
	path   string

	mu       sync.Mutex
	notified []string
	conns    []net.Conn
	ended    int // of conns
	pongs    int // answers to pings of the server
}

func (p *plugin) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	return p.info(ctx)
}

func (p *plugin) NotifyRegistrationStatus(ctx context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.mu.Lock()
	p.notified = append(p.notified, fmt.Sprint(s.PluginRegistered, " ", s.Error))
	p.mu.Unlock()
	if p.notify != nil {
		if err := p.notify(ctx, s); err != nil {
			return nil, err
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (p *plugin) notifications() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.notified...)
}

// newPlugin serves at a path; change can modify its behaviour.
func newPlugin(t testing.TB, path, kind, name string, change func(*plugin), options ...grpc.ServerOption) *plugin {
	t.Helper()
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o750))
	p := &plugin{path: path, server: grpc.NewServer(options...)}
	p.info = func(context.Context) (*registration.PluginInfo, error) {
		return &registration.PluginInfo{Type: kind, Name: name, SupportedVersions: []string{"1.0.0"}}, nil
	}
	if change != nil {
		change(p)
	}
	registration.RegisterRegistrationServer(p.server, p)
	p.serve(t)
	return p
}

func (p *plugin) serve(t testing.TB) {
	l := listen(t, p.path)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.server.Serve(trackedListener{l, p})
	}()
	t.Cleanup(func() {
		p.server.Stop()
		<-ended
	})
}

// closeConn closes all connections and continues to accept new ones.
func (p *plugin) closeConn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// connections returns how many connections there were, and how many are open.
func (p *plugin) connections() (accepted, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns), len(p.conns) - p.ended
}

// trackedListener is a listener that tracks its connections.
type trackedListener struct {
	net.Listener
	p *plugin
}

func (o trackedListener) Accept() (net.Conn, error) {
	c, err := o.Listener.Accept()
	if err != nil {
		return nil, err
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	o.p.conns = append(o.p.conns, c)
	return &trackedConn{Conn: c, p: o.p}, nil
}

type trackedConn struct {
	net.Conn
	p    *plugin
	once sync.Once
}

// Close is called by the server, also if the client closed first.
func (o *trackedConn) Close() error {
	o.once.Do(func() {
		o.p.mu.Lock()
		defer o.p.mu.Unlock()
		o.p.ended++
	})
	return o.Conn.Close()
}

// Read counts the answers to pings, which arrive one by one on an idle
// connection.
func (o *trackedConn) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	o.p.pongs += bytes.Count(b[:n], []byte("\x00\x00\x08\x06\x01\x00\x00\x00\x00"))
	return n, err
}

// kill ends the plugin like SIGKILL: the file remains.
func (p *plugin) kill() { p.server.Stop() }

// listen creates a socket whose file remains after Close.
func listen(t testing.TB, path string) *net.UnixListener {
	t.Helper()
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	return l
}
