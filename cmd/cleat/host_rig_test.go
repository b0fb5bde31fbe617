package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/test/testkit"
)

// hostProcess is a running cleat host with its own directory.
type hostProcess struct {
	dir      string // parent of all its files
	plugins  string // --plugins-dir
	endpoint string // --socket

	cmd  *exec.Cmd
	out  testkit.Log // stdout
	log  testkit.Log // stderr
	done chan struct{}
	err  error
}

// newHost starts a host in a new directory and stops it when the test ends.
func newHost(t *testing.T, flags ...string) *hostProcess {
	t.Helper()
	h := &hostProcess{dir: t.TempDir()}
	h.plugins, h.endpoint = filepath.Join(h.dir, "plugins"), "unix://"+filepath.Join(h.dir, "host", "host.sock")
	h.start(t, nil, flags...)
	return h
}

// start runs the host, with stdout if it is not nil, and waits until it answers.
func (h *hostProcess) start(t *testing.T, stdout io.Writer, flags ...string) {
	t.Helper()
	h.launch(t, stdout, flags...)
	for {
		r, err := remote.Dial(t.Context(), h.endpoint)
		if err == nil {
			_, err = r.Info(t.Context())
			err = errors.Join(err, r.Close())
		}
		if err == nil {
			return
		}
		select {
		case <-h.done:
			t.Fatalf("cleat host ended before it answered: %v\n%s", h.err, h.log.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (h *hostProcess) launch(t *testing.T, stdout io.Writer, flags ...string) {
	t.Helper()
	self := testkit.Value(os.Executable())(t)
	if stdout == nil {
		stdout = &h.out
	}
	h.cmd = exec.Command(self, append([]string{"host", "--plugins-dir", h.plugins, "--socket", h.endpoint}, flags...)...)
	h.cmd.Stdout, h.cmd.Stderr = stdout, &h.log
	h.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	testkit.Must(t, h.cmd.Start())
	cmd, done := h.cmd, make(chan struct{})
	h.done = done
	go func() { h.err = cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		if err := h.end(unix.SIGTERM); err != nil {
			t.Errorf("cleat host did not end cleanly: %v\n%s", err, h.log.String())
		}
	})
}

// end sends a signal and returns the exit status of the process. It is idempotent.
func (h *hostProcess) end(signal os.Signal) error {
	if h.cmd == nil {
		return nil
	}
	if err := h.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-h.done:
	case <-time.After(30 * time.Second):
		return errors.Join(errors.New("still running after 30 s"), h.cmd.Process.Kill())
	}
	h.cmd = nil
	if signal == unix.SIGKILL {
		return nil
	}
	return h.err
}

// ask runs a command that queries the host.
func (h *hostProcess) ask(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("CLEAT_HOST", h.endpoint)
	var out bytes.Buffer
	c := newRootCommand()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(io.Discard)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

// says runs a command that must succeed with all words in its output.
func (h *hostProcess) says(t *testing.T, words []string, args ...string) string {
	t.Helper()
	out, err := h.ask(t, args...)
	if err != nil {
		t.Fatalf("cleat %s: %v\n%s", strings.Join(args, " "), err, h.log.String())
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("cleat %s says %q, want %q in it", strings.Join(args, " "), out, w)
		}
	}
	return out
}

// refuses runs a command that must fail with all words in its error.
func (h *hostProcess) refuses(t *testing.T, words []string, args ...string) {
	t.Helper()
	out, err := h.ask(t, args...)
	if err == nil {
		t.Errorf("cleat %s succeeds: %s", strings.Join(args, " "), out)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("cleat %s: %v, want %q in it", strings.Join(args, " "), err, w)
		}
	}
}

func askJSON[T any](t *testing.T, h *hostProcess, args ...string) (document T) {
	t.Helper()
	out := h.says(t, nil, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		t.Fatalf("cleat %s: %v in %s", strings.Join(args, " "), err, out)
	}
	return document
}

// fakePlugin serves only the registration, of a type whose handler makes no calls.
type fakePlugin struct {
	registration.UnimplementedRegistrationServer
	info     *registration.PluginInfo
	notified chan *registration.RegistrationStatus
}

func (p *fakePlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return p.info, nil
}

func (p *fakePlugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	select {
	case p.notified <- s:
	default:
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// startPlugin creates a plugin's socket below the host's directory; stop removes it
// and is idempotent.
func (h *hostProcess) startPlugin(t *testing.T, name string) (p *fakePlugin, stop func()) {
	t.Helper()
	return h.startPluginOf(t, name, &registration.PluginInfo{Type: "DRAPlugin", Name: name, SupportedVersions: []string{"v1.DRAPlugin"}})
}

// startPluginOf starts a plugin with this info, and with more services on its socket.
func (h *hostProcess) startPluginOf(t *testing.T, file string, info *registration.PluginInfo, more ...func(*grpc.Server)) (p *fakePlugin, stop func()) {
	t.Helper()
	testkit.Must(t, os.MkdirAll(h.plugins, 0o750))
	hidden, socket := filepath.Join(h.plugins, "."+file), filepath.Join(h.plugins, file+".sock")
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	p = &fakePlugin{info: info, notified: make(chan *registration.RegistrationStatus, 16)}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, p)
	for _, register := range more {
		register(server)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	testkit.Must(t, os.Rename(hidden, socket))
	stop = func() {
		_ = os.Remove(socket)
		server.Stop()
		<-served
	}
	t.Cleanup(stop)
	return p, stop
}

// inTime doubles the timeout until it is enough: a stalled machine can exceed any
// fixed one.
func inTime(t *testing.T, what string, first time.Duration, enough func(timeout string) bool) {
	t.Helper()
	for timeout := first; !enough(timeout.String()); timeout *= 2 {
		if timeout > time.Minute {
			t.Fatalf("not within %s: %s", timeout, what)
		}
	}
}

// saysAll reports whether an error contains all words.
func saysAll(err error, words ...string) bool {
	return err != nil && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(err.Error(), w) })
}

// watchedByKubelet returns a directory watched by a process named kubelet.
func watchedByKubelet(t *testing.T) string {
	t.Helper()
	dir, program := t.TempDir(), filepath.Join(t.TempDir(), "kubelet")
	text := testkit.Value(os.ReadFile("/bin/sleep"))(t)
	testkit.Must(t, os.WriteFile(program, text, 0o700))
	fd := testkit.Value(unix.InotifyInit1(unix.IN_CLOEXEC))(t)
	watch := os.NewFile(uintptr(fd), "inotify")
	defer watch.Close()
	testkit.Value(unix.InotifyAddWatch(fd, dir, unix.IN_CREATE))(t)
	cmd := exec.CommandContext(t.Context(), program, "600")
	cmd.Args[0] = "sleep"
	cmd.ExtraFiles = []*os.File{watch} // it watches from its first moment
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return dir
}
