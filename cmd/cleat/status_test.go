package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/test/testkit"
)

// startServer runs a server as a process until the test ends.
func startServer(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	log := &testkit.Log{}
	c := exec.Command(testkit.Value(os.Executable())(t), args...)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	testkit.Must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(unix.SIGCONT)
		_ = c.Process.Signal(unix.SIGTERM)
		_ = c.Wait()
		if t.Failed() {
			t.Logf("%v:\n%s", args, log.String())
		}
	})
	return c
}

// ownServers searches only for processes of this test.
func ownServers(t *testing.T, places map[string]string) statusSearch {
	own := testkit.Value(os.Executable())(t)
	return statusSearch{isCleat: func(exe string) bool { return exe == own }, places: places, timeout: testkit.Timeout}
}

// of returns the status of a process, which must be there.
func statusOf(t *testing.T, all []serverStatus, c *exec.Cmd) serverStatus {
	t.Helper()
	n := slices.IndexFunc(all, func(s serverStatus) bool { return s.PID == c.Process.Pid })
	if n < 0 {
		t.Fatalf("process %d %v is left out of %+v", c.Process.Pid, c.Args, all)
	}
	return all[n]
}

func statusText(t *testing.T, all []serverStatus) string {
	t.Helper()
	var out strings.Builder
	testkit.Must(t, cli.Print(&out, cli.FormatTable, statusView(all), nil))
	return out.String()
}

// Servers with any settings are found and asked; what is wrong is first.
func TestStatusOfServers(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	host := startServer(t, "host", "--plugins-dir", at("plugins"), "--socket", at("host/host.sock"), "-o", "none")
	fence := startServer(t, "fence", "serve", "--peers-only", "--peer", "a=unix://"+at("peer.sock"), "--state-dir", at("fence"), "--endpoint", at("f/f.sock"))
	search := ownServers(t, nil)
	testkit.Eventually(t, "host and fence are ready", func() bool {
		all, err := search.run(t.Context())
		return err == nil && len(all) == 2
	})
	dpu := startServer(t, "dpu", "--snap-socket", at("snap.sock"), "--plugin-socket", at("dpu/dpu.sock"), "--volume-dir", at("volumes"))
	var all []serverStatus
	var err error
	testkit.Eventually(t, "the DPU plugin answers", func() bool {
		all, err = search.run(t.Context())
		return len(all) == 3 && statusOf(t, all, dpu).State == notReady && !strings.Contains(statusText(t, all), "not listening yet")
	})
	if err == nil || !strings.Contains(err.Error(), "not ready: 1 of 3 servers") {
		t.Errorf("an unready server: %v", err)
	}
	text := statusText(t, all)
	if first, _, _ := strings.Cut(text, "\n"); !strings.HasPrefix(first, "dpu (") || !strings.Contains(first, "snap") {
		t.Errorf("what is wrong is not first:\n%s", text)
	}
	if s := statusOf(t, all, host); s.Server != "host" || s.State != isReady || s.More != "cleat plugins why --host "+at("host/host.sock") || s.Status["host"] == nil {
		t.Errorf("the host: %+v", s)
	}
	if s := statusOf(t, all, fence); s.Server != "fence serve" || s.Socket != at("fence/"+server.StatusName) || s.More != "cleat fence check --endpoint "+at("f/f.sock") {
		t.Errorf("the fence: %+v", s)
	}
	// A process that hangs, and one whose socket is gone, are shown.
	testkit.Must(t, fence.Process.Signal(unix.SIGSTOP))
	testkit.Must(t, os.Remove(at("host/"+server.StatusName)))
	search.timeout = time.Second
	all, err = search.run(t.Context())
	if err == nil {
		t.Error("servers that do not answer are ready")
	}
	for c, want := range map[*exec.Cmd]string{fence: "has not answered in time", host: "no status socket"} {
		if s := statusOf(t, all, c); s.State != notAnswering || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], want) {
			t.Errorf("%v: %+v, want %q", c.Args, s, want)
		}
	}
}

// Plugins that are not registered are problems of a host that is ready.
func TestStatusOfPlugins(t *testing.T) {
	h := newHost(t, "-o", "none")
	stale := testkit.Value(net.Listen("unix", filepath.Join(h.plugins, "old.sock")))(t).(*net.UnixListener)
	stale.SetUnlinkOnClose(false)
	testkit.Must(t, stale.Close())
	search := ownServers(t, nil)
	testkit.Eventually(t, "the host reports the plugin", func() bool {
		all, err := search.run(t.Context())
		return err == nil && len(all) == 1 && strings.Contains(statusText(t, all), "is ready, but: plugin "+h.plugins+"/old.sock is ")
	})
}

// A socket at a default place is a server, although its process is not visible
// or was killed.
func TestStatusOfDefaultPlaces(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "fence", server.StatusName)
	fence := startServer(t, "fence", "serve", "--peers-only", "--peer", "a=unix://"+filepath.Join(dir, "x"), "--state-dir", filepath.Dir(socket), "--endpoint", filepath.Join(dir, "f/f.sock"))
	search := ownServers(t, map[string]string{serverFence: socket})
	testkit.Eventually(t, "the fence is ready, once", func() bool {
		all, err := search.run(t.Context())
		return err == nil && len(all) == 1
	})
	search.isCleat = func(string) bool { return false }
	all, err := search.run(t.Context())
	if s := statusOf(t, all, fence); err != nil || s.State != isReady || s.Server != serverFence || s.More != "cleat fence check" {
		t.Errorf("by its socket: %+v, %v", s, err)
	}
	testkit.Must(t, fence.Process.Kill())
	_ = fence.Wait()
	all, err = search.run(t.Context())
	if err == nil || len(all) != 1 || all[0].State != notAnswering || !strings.Contains(statusText(t, all), "did not stop cleanly") {
		t.Errorf("after kill -9: %+v, %v", all, err)
	}
	testkit.Must(t, os.Remove(socket))
	if all, err = search.run(t.Context()); err == nil || len(all) != 0 || !strings.Contains(err.Error(), "no status socket exists at "+socket) {
		t.Errorf("without a server: %+v, %v", all, err)
	}
}

// Only command lines of servers are servers.
func TestServerCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"cleat csi --engine local --services status": "csi", "cleat csi status": "", "cleat fence serve": "fence serve", "cleat fence add 10.0.0.1": "",
		"cleat sriov plugin -log-level=debug": "sriov plugin", "cleat sriov status": "", "/storage-vendor-dpu-plugin": "dpu", "cleat": "", "cleat foo": "", "cleat freeze-guard": "",
	} {
		p := &serverProcess{pid: os.Getpid()}
		if is := p.parse(strings.Fields(line)); is != (want != "") || is && p.server != want {
			t.Errorf("%s: %t %s, want %q", line, is, p.server, want)
		}
	}
	for exe, want := range map[string]bool{"/usr/bin/cleat": true, "/usr/bin/cleat (deleted)": true, "/usr/bin/bash": false, "/block-storage-vendor-dpu-plugin": true} {
		if isCleat(exe) != want {
			t.Errorf("%s is a cleat program: %t", exe, !want)
		}
	}
}

// The command itself, on a machine with any servers.
func TestStatusCommand(t *testing.T) {
	h := newHost(t, "-o", "none")
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	c := newRootCommand()
	c.SetContext(ctx)
	out, _, _ := execute(t, c, "", "status", "-o", "json")
	if !strings.Contains(out, `"cleat plugins why --host `+strings.TrimPrefix(h.endpoint, "unix://")+`"`) {
		t.Errorf("the host is missing:\n%s", out)
	}
	if _, err := cleat(t, "status", "host"); err == nil {
		t.Error("an argument is accepted")
	}
}
