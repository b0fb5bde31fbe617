package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// accepting answers every connection with words, and closes it if closeConn is
// set.
func accepting(t *testing.T, path, words string, closeConn bool) {
	l := listen(t, path)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var open []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				for _, c := range open {
					_ = c.Close()
				}
				return
			}
			_, _ = c.Write([]byte(words))
			if open = append(open, c); closeConn {
				_ = c.Close()
			}
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
}

// For every kind of peer the reason contains the cause.
func TestReasons(t *testing.T) {
	t.Parallel()
	answering := func(info *registration.PluginInfo, err error) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			newPlugin(t, path, "", "", func(p *plugin) {
				p.info = func(context.Context) (*registration.PluginInfo, error) { return info, err }
			})
		}
	}
	for name, c := range map[string]struct {
		put          func(t *testing.T, path string)
		text, reason string
	}{
		"dead": {func(t *testing.T, path string) { // created elsewhere, so that the host does not find it while it listens
			aside := filepath.Join(filepath.Dir(filepath.Dir(path)), "dead")
			testkit.Must(t, listen(t, aside).Close(), os.Rename(aside, path))
		}, "connection refused", "no process listens on the socket"},
		"not a stream": {func(t *testing.T, path string) {
			c := testkit.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
			t.Cleanup(func() { _ = c.Close() })
		}, "wrong type", "not a stream socket"},
		"full": {func(t *testing.T, path string) {
			fd := testkit.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
			t.Cleanup(func() { _ = unix.Close(fd) })
			aside := filepath.Join(filepath.Dir(filepath.Dir(path)), "full")
			testkit.Must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: aside}), unix.Listen(fd, 0))
			c := testkit.Value(net.Dial("unix", aside))(t)
			t.Cleanup(func() { _ = c.Close() })
			testkit.Must(t, os.Rename(aside, path))
		}, "temporarily unavailable", "backlog is full"},
		"silent":     {func(t *testing.T, path string) { accepting(t, path, "", false) }, "deadline exceeded", "sent nothing for 2s"},
		"hangs up":   {func(t *testing.T, path string) { accepting(t, path, "", true) }, "", "does not serve gRPC, or closed"},
		"HTTP/1":     {func(t *testing.T, path string) { accepting(t, path, "HTTP/1.1 400 Bad Request\r\n\r\n", false) }, "", "does not serve gRPC"},
		"other gRPC": {func(t *testing.T, path string) { foreign(t, path) }, "Unimplemented", "check whether the plugin's own socket"},
		"slow": {func(t *testing.T, path string) {
			newPlugin(t, path, "", "", func(p *plugin) {
				p.info = func(ctx context.Context) (*registration.PluginInfo, error) { <-ctx.Done(); return nil, ctx.Err() }
			})
		}, "DeadlineExceeded", "did not answer GetInfo within 1s"},
		"error":     {answering(nil, status.Error(codes.Internal, "not yet")), "not yet", "itself answered"},
		"large":     {answering(&registration.PluginInfo{Name: strings.Repeat("x", maxAnswer)}, nil), "ResourceExhausted", "larger than 256 KiB"},
		"no type":   {answering(&registration.PluginInfo{Name: "n"}, nil), "plugin type:  at", "announces no type"},
		"scheme":    {answering(&registration.PluginInfo{Type: "T", Endpoint: "unix:///run/x.sock"}, nil), "picky", "must be a path without a scheme, such as /run/x.sock"},
		"relative":  {answering(&registration.PluginInfo{Type: "T", Endpoint: "x.sock"}, nil), "picky", "absolute path"},
		"elsewhere": {answering(&registration.PluginInfo{Type: "T", Endpoint: "/none/x.sock"}, nil), "picky", "if it does not exist"},
		"long endpoint": {answering(&registration.PluginInfo{Type: "T", Endpoint: "/" + strings.Repeat("x", 107)}, nil),
			"picky", "an endpoint of 108 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *Options) {
				o.BackOff.First = time.Minute
				switch name { // the other peers do not use these names
				case "dead", "not a stream", "full", "silent":
					o.Timeouts.Dial = 2 * time.Second
				case "slow":
					o.Timeouts.GetInfo = time.Second
				}
			})
			r.validate = func(context.Context, Plugin) error {
				return errors.New("picky: no such file or directory")
			}
			r.start()
			c.put(t, r.path("a.sock"))
			step := Asking
			if strings.Contains(c.text, "picky") || strings.Contains(c.text, "plugin type") {
				step = Validating
			}
			r.failed("a.sock", step, c.text, c.reason)
			if n := strings.Count(r.log.String(), "not registered"); n != 1 {
				t.Errorf("%d lines in the log:\n%s", n, r.log)
			}
		})
	}
}

// foreign is a gRPC server without the registration service.
func foreign(t *testing.T, path string) {
	testkit.Serve(t, path, func(grpc.ServiceRegistrar) {})
}

func TestPeerRefused(t *testing.T) {
	var seen Peer
	r := startRig(t, func(o *Options) {
		o.BackOff.First = time.Minute
		o.Peer = func(p Peer) error {
			seen = p
			return fmt.Errorf("user %d is not welcome", p.UID)
		}
	})
	p := newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.failed("a.sock", Asking, "is not welcome", "certain processes")
	if seen != (Peer{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}) || len(p.notifications()) != 0 {
		t.Errorf("seen %+v, notified of %v", seen, p.notifications())
	}
}

// A socket can be bound long before a process listens on it.
func TestBoundBeforeListen(t *testing.T) {
	r := startRig(t, nil)
	fd := testkit.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	testkit.Must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: r.path("a.sock")}))
	r.until("a.sock", func(s Status) bool { return s.Phase == Asking && strings.Contains(s.Error, "refused") })
	testkit.Must(t, unix.Listen(fd, 10))
	l := testkit.Value(net.FileListener(file))(t)
	p := &plugin{server: grpc.NewServer()}
	p.info = func(context.Context) (*registration.PluginInfo, error) {
		return &registration.PluginInfo{Type: "T", Name: "n"}, nil
	}
	registration.RegisterRegistrationServer(p.server, p)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = p.server.Serve(l) }()
	defer func() { p.server.Stop(); <-ended }()
	if s := r.phase("a.sock", Registered); s.Attempts != 1 {
		t.Errorf("after %d attempts", s.Attempts)
	}
}

// A path that is too long for connect(2) is dialled through its directory.
func TestLongPath(t *testing.T) {
	r := startRig(t, nil)
	aside := filepath.Join(filepath.Dir(r.dir), "a")
	p := newPlugin(t, aside, "T", "n", nil)
	long := filepath.Join(strings.Repeat("d", 80), strings.Repeat("e", 80), "a.sock")
	testkit.Must(t, os.MkdirAll(filepath.Dir(r.path(long)), 0o750), os.Rename(aside, r.path(long)))
	r.phase(long, Registered)
	p.kill()
	r.until(long, func(s Status) bool { return s.Dead })
}

// A dead socket does not delay the next one at its path.
func TestReplacedAfterFailures(t *testing.T) {
	t.Parallel()
	r := startRig(t, func(o *Options) { o.BackOff.First, o.Timeouts.Dial = time.Second, 2*time.Second })
	_ = listen(t, r.path("a.sock")).Close()
	r.phase("a.sock", Failed)
	testkit.Must(t, os.Remove(r.path("a.sock")))
	p := newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Registered)
	other := newPlugin(t, r.path(".b"), "T", "other", nil)
	testkit.Must(t, os.Rename(other.path, p.path)) // replaces a registered one
	r.until("a.sock", func(s Status) bool { return s.Name == "other" && s.Phase == Registered })
	if got := r.made(); got != "Validate n, Register n, DeRegister n, Validate other, Register other" {
		t.Errorf("calls: %s", got)
	}
}

// Silent sockets take no slot, so that any number of them cannot hold up the first
// attempt of another plugin.
func TestSilentPeers(t *testing.T) {
	r := startRig(t, func(o *Options) { o.Concurrency = 1 })
	testkit.Must(t, r.slots.acquire(t.Context(), false))
	const silent = 20
	greeted := make(chan error, silent)
	for i := range silent {
		l := listen(t, r.path(fmt.Sprint("silent", i)))
		go func() {
			c, err := l.Accept()
			if err == nil {
				_, err = io.ReadFull(c, make([]byte, len(preface)))
				t.Cleanup(func() { _ = c.Close() })
			}
			greeted <- err
		}()
	}
	for range silent { // while the only slot is in use
		testkit.Must(t, <-greeted)
	}
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Asking)
	r.slots.release()
	r.phase("a.sock", Registered)
	for i := range silent {
		r.phase(fmt.Sprint("silent", i), Asking)
	}
}

// A server can wait for the client's preface before it sends anything.
func TestServerThatSpeaksSecond(t *testing.T) {
	r := startRig(t, nil)
	p := newPlugin(t, r.path(".hidden"), "T", "n", nil)
	l := listen(t, r.path("a.sock"))
	go func() {
		client, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = client.Close() }()
		first := make([]byte, len(preface+emptySettings))
		if _, err := io.ReadFull(client, first); err != nil {
			return
		}
		server, err := net.Dial("unix", p.path)
		if err != nil {
			return
		}
		defer func() { _ = server.Close() }()
		go func() { _, _ = io.Copy(client, server) }()
		_, _ = server.Write(first)
		_, _ = io.Copy(server, client)
	}()
	r.phase("a.sock", Registered)
}

func TestDead(t *testing.T) {
	r := startRig(t, nil)
	p := newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Registered)
	p.kill()
	s := r.until("a.sock", func(s Status) bool { return s.Dead })
	if s.Phase != Registered || !strings.Contains(s.Reason, "the plugin ended without removing it") {
		t.Errorf("%+v", s)
	}
	if _, why := r.Why("n"); !strings.Contains(why, "registered and dead") {
		t.Errorf("why: %s", why)
	}
	if got := r.made(); got != "Validate n, Register n" {
		t.Errorf("calls: %s", got)
	}
}

func TestDeadAfterGrace(t *testing.T) {
	r := startRig(t, func(o *Options) { o.Grace, o.BackOff.First = 50*time.Millisecond, time.Minute })
	p := newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Registered)
	p.kill()
	r.failed("a.sock", Registered, "connection refused", "the plugin ended")
	if got := r.made(); got != "Validate n, Register n, DeRegister n" {
		t.Errorf("calls: %s", got)
	}
}

// The registrar of a driver that ended still serves its own socket. The plugin
// is dead until its endpoint is served again, or deregistered after the grace
// time.
func TestEndpointDead(t *testing.T) {
	for _, grace := range []time.Duration{0, 50 * time.Millisecond} {
		t.Run(grace.String(), func(t *testing.T) {
			r := startRig(t, func(o *Options) {
				o.Grace, o.BackOff = grace, BackOff{First: 10 * time.Millisecond, Most: 10 * time.Millisecond}
			})
			endpoint := filepath.Join(filepath.Dir(r.dir), "e")
			stop := testkit.Serve(t, endpoint, func(grpc.ServiceRegistrar) {})
			newPlugin(t, r.path("a.sock"), "T", "n", func(p *plugin) {
				p.info = func(context.Context) (*registration.PluginInfo, error) {
					return &registration.PluginInfo{Type: "T", Name: "n", Endpoint: endpoint}, nil
				}
			})
			r.phase("a.sock", Registered)
			testkit.Must(t, os.Link(endpoint, endpoint+"2"))
			stop()
			testkit.Must(t, os.Rename(endpoint+"2", endpoint)) // like SIGKILL
			isDead := func(s Status) bool { return s.Dead }
			if grace > 0 {
				isDead = func(s Status) bool { return s.Phase == Failed && s.Attempts > 1 } // not registered again
			}
			s := r.until("a.sock", isDead)
			if !strings.Contains(s.Error, endpoint) || !strings.Contains(s.Reason, "no process serves the endpoint") {
				t.Errorf("%+v", s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if _, err := r.Wait(ctx, "T", "n"); err == nil || !strings.Contains(err.Error(), "no process serves the endpoint") {
				t.Errorf("wait: %v", err)
			}
			testkit.Must(t, os.Remove(endpoint))
			testkit.Serve(t, endpoint, func(grpc.ServiceRegistrar) {})
			r.until("a.sock", func(s Status) bool { return s.Phase == Registered && !s.Dead && s.Error == "" })
			want := "Validate n, Register n"
			if grace > 0 {
				want += ", DeRegister n, Validate n, Register n"
			}
			if got := r.made(); got != want {
				t.Errorf("calls: %s", got)
			}
		})
	}
}

// The connection to a registered plugin must not prevent its graceful stop, and
// must comply with the server's keepalive policy.
func TestConnectionAllowsGracefulStop(t *testing.T) {
	t.Parallel()
	r := startRig(t, nil)
	p := newPlugin(t, r.path("a.sock"), "T", "n", nil, grpc.KeepaliveParams(keepalive.ServerParameters{
		Time: time.Second, Timeout: time.Minute, // pings, and closes a connection that does not answer
	}))
	r.phase("a.sock", Registered)
	pongs := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.pongs
	}
	from := pongs()
	testkit.Eventually(t, "three pings are answered", func() bool { return pongs() >= from+3 })
	if accepted, open := p.connections(); accepted != 1 || open != 1 {
		t.Errorf("%d connections were accepted, %d are open", accepted, open)
	}
	testkit.Must(t, os.Remove(p.path))
	r.phase("a.sock", Gone)
	testkit.Eventually(t, "the connection is closed", func() bool { _, open := p.connections(); return open == 0 })
}

func TestGracefulStop(t *testing.T) {
	t.Parallel()
	r := startRig(t, nil)
	for n := 1; ; n++ {
		name := fmt.Sprint(n, ".sock")
		p := newPlugin(t, r.path(name), "T", name, nil)
		r.phase(name, Registered)
		began := time.Now()
		p.server.GracefulStop()
		took := time.Since(began)
		r.until(name, func(s Status) bool { return s.Dead })
		if took < 4*time.Second { // gRPC waits 5 s for a client that does not close its connection
			return
		}
		if n == 5 { // once can be due to load
			t.Fatalf("the idle connection delayed the end of the plugin by %s", took)
		}
	}
}

// A plugin whose server closes idle connections is not dead.
func TestIdleConnectionsClosed(t *testing.T) {
	t.Parallel()
	r := startRig(t, nil)
	p := newPlugin(t, r.path("a.sock"), "T", "n", nil, grpc.KeepaliveParams(keepalive.ServerParameters{
		MaxConnectionIdle: time.Second, // longer than a registration takes
	}))
	r.phase("a.sock", Registered)
	testkit.Eventually(t, "three connections were held", func() bool { accepted, _ := p.connections(); return accepted >= 3 })
	if s := r.Find("n"); len(s) != 1 || s[0].Dead {
		t.Errorf("%+v", s)
	}
	if got := r.made(); got != "Validate n, Register n" {
		t.Errorf("calls: %s", got)
	}
	if text := r.log.String(); slices.Contains(strings.Fields(text), "dead") {
		t.Error(text)
	}
}
