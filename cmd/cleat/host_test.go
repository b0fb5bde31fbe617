package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
	testdriver "github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// A CSI driver that registers itself is found by name until it stops.
func TestDriverIsFoundByName(t *testing.T) {
	h := newHost(t)
	self := testkit.Value(os.Executable())(t)
	driver := testkit.Value(testdriver.Launch(t.Context(), self, h.dir, "csi", nil, "--pool", filepath.Join(h.dir, "pool"), "--registration-dir", h.plugins))(t)
	stop := sync.OnceValue(driver.Stop)
	t.Cleanup(func() { _ = stop() })
	h.says(t, []string{"CSIPlugin csi.cleat.dev is registered", driver.Socket}, "plugins", "wait", "csi.cleat.dev")
	h.says(t, []string{"csi.cleat.dev", "registered", "1.0.0", driver.Socket}, "plugins", "list")
	h.says(t, []string{"all are registered"}, "plugins", "why")
	state := []string{"--state-dir", filepath.Join(h.dir, "client")}
	h.says(t, []string{"DRIVER             csi.cleat.dev"}, append(state, "volume", "driver", "--driver", "csi.cleat.dev")...)
	h.says(t, []string{"csi.cleat.dev\tCSIPlugin, registered"}, "__complete", "volume", "list", "--driver", "csi")
	h.refuses(t, []string{"--driver csi.claet.dev", `(did you mean "csi.cleat.dev"?)`}, append(state, "snapshot", "list", "--driver", "csi.claet.dev", "--timeout", "2s")...)
	if err := stop(); err != nil {
		t.Errorf("%v\n%s", err, driver.Log.String())
	}
	testkit.Eventually(t, "the driver is gone", func() bool {
		return len(askJSON[[]watch.Status](t, h, "plugins", "list")) == 0
	})
	h.refuses(t, []string{"known names of that type: none"}, append(state, "group", "list", "--driver", "csi.cleat.dev", "--timeout", "2s")...)
}

// The precedence of --driver, --endpoint and their variables.
func TestDriverOrEndpoint(t *testing.T) {
	unserved := "unix://" + filepath.Join(t.TempDir(), "unserved.sock")
	elsewhere := "unix://" + filepath.Join(t.TempDir(), "elsewhere.sock")
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		says string
	}{
		"both flags":                {nil, []string{"--driver", "a", "--endpoint", unserved}, "mutually exclusive"},
		"both variables":            {map[string]string{"CLEAT_DRIVER": "a", "CSI_ENDPOINT": unserved}, nil, "CLEAT_DRIVER and CLEAT_ENDPOINT"},
		"flag over other variable":  {map[string]string{"CLEAT_ENDPOINT": elsewhere}, []string{"--driver", "a", "--host", unserved}, "no plugin host answers on " + unserved},
		"flag over other variable2": {map[string]string{"CLEAT_DRIVER": "a"}, []string{"--endpoint", unserved}, "no CSI driver answers on " + unserved},
		"variable":                  {map[string]string{"CLEAT_DRIVER": "a", "CLEAT_HOST": unserved}, nil, "no plugin host answers on " + unserved},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			cmd := newRootCommand()
			cmd.SetArgs(append([]string{"volume", "list", "--timeout", "100ms", "--state-dir", t.TempDir()}, c.args...))
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// After a host was killed, the next one starts and registers all plugins again.
func TestHostRestartsAfterKill(t *testing.T) {
	h := newHost(t)
	names := []string{"a", "b", "c"}
	plugins := map[string]*fakePlugin{}
	for _, name := range names {
		plugins[name], _ = h.startPlugin(t, name)
		h.says(t, nil, "plugins", "wait", name)
		<-plugins[name].notified
	}
	for range 3 {
		testkit.Must(t, h.end(unix.SIGKILL))
		h.refuses(t, []string{"no plugin host answers", "created the socket is not running"}, "plugins", "list", "--timeout", "1ms")
		h.start(t, nil)
		for _, name := range names {
			h.says(t, nil, "plugins", "wait", name)
			if s := <-plugins[name].notified; !s.GetPluginRegistered() {
				t.Errorf("%s was notified of %v", name, s)
			}
		}
	}
	if err := h.end(unix.SIGTERM); err != nil {
		t.Errorf("%v\n%s", err, h.log.String())
	}
	for _, path := range []string{filepath.Join(h.dir, "host", "host.sock"), filepath.Join(h.plugins, ".cleat-host.lock")} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	h.refuses(t, []string{"the socket does not exist", "cleat host"}, "plugins", "list", "--timeout", "1ms")
}

// A second host changes no plugin, if it shares the socket or the directory of the
// first.
func TestSecondHostIsRefused(t *testing.T) {
	first := newHost(t)
	p, _ := first.startPlugin(t, "a")
	first.says(t, nil, "plugins", "wait", "a")
	<-p.notified
	for name, second := range map[string]struct {
		host *hostProcess
		says []string
	}{
		"socket": {&hostProcess{plugins: filepath.Join(t.TempDir(), "other"), endpoint: first.endpoint}, []string{"a live process serves this socket", "--socket"}},
		"directory": {&hostProcess{plugins: first.plugins, endpoint: "unix://" + filepath.Join(t.TempDir(), "other", "host.sock")},
			[]string{"another host registers", "process " + strconv.Itoa(first.cmd.Process.Pid)}},
		"kubelet": {&hostProcess{plugins: watchedByKubelet(t), endpoint: "unix://" + filepath.Join(t.TempDir(), "other", "host.sock")},
			[]string{"a kubelet registers the plugins", "--beside-kubelet"}},
	} {
		second.host.launch(t, nil)
		<-second.host.done
		if err := second.host.end(unix.SIGKILL); err != nil || second.host.err == nil {
			t.Errorf("%s: the second host: %v, %v", name, err, second.host.err)
		}
		for _, w := range second.says {
			if !strings.Contains(second.host.log.String(), w) {
				t.Errorf("%s: the second host says %q, want %q", name, second.host.log.String(), w)
			}
		}
	}
	select {
	case s := <-p.notified:
		t.Errorf("the plugin was notified again: %v", s)
	default:
	}
	first.says(t, []string{"registered"}, "plugins", "list")
}

// -o json writes each state change as a line of JSON.
func TestHostStreamsDocuments(t *testing.T) {
	h := newHost(t, "-o", "json")
	testkit.Eventually(t, "the stream has begun", func() bool { return strings.Contains(h.out.String(), `"kind":"synced"`) })
	_, stop := h.startPlugin(t, "a")
	h.says(t, nil, "plugins", "wait", "a")
	stop()
	testkit.Eventually(t, "the removal of the plugin is reported", func() bool { return strings.Contains(h.out.String(), `"kind":"gone"`) })
	var phases []watch.Phase
	for lines := bufio.NewScanner(strings.NewReader(h.out.String())); lines.Scan(); {
		var c remote.Change
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("%v in %q", err, lines.Text())
		}
		if c.Plugin != nil {
			phases = append(phases, c.Plugin.Phase)
		}
	}
	want := []watch.Phase{watch.Waiting, watch.Asking, watch.Validating, watch.Registering, watch.Notifying, watch.Registered}
	for i, phase := range want {
		if i >= len(phases) || phases[i] != phase {
			t.Fatalf("the phases were %q, want %q first", phases, want)
		}
	}
	if phases[len(phases)-1] != watch.Gone {
		t.Errorf("the last phase is %q", phases[len(phases)-1])
	}
}

// Without a terminal, registrations, failures and removals are written as lines.
func TestHostWritesLines(t *testing.T) {
	h := newHost(t)
	_, stop := h.startPlugin(t, "a")
	h.says(t, nil, "plugins", "wait", "a")
	testkit.Eventually(t, "it is registered", func() bool { return strings.Contains(h.out.String(), "registered") })
	stop()
	testkit.Eventually(t, "it is gone", func() bool { return strings.Contains(h.out.String(), "gone") })
	for _, w := range []string{"registered  DRAPlugin  a  " + filepath.Join(h.plugins, "a.sock"), "gone        DRAPlugin  a"} {
		if !strings.Contains(h.out.String(), w) {
			t.Errorf("%q lacks %q", h.out.String(), w)
		}
	}
	quiet := newHost(t, "-o", "none")
	quiet.startPlugin(t, "a")
	quiet.says(t, nil, "plugins", "wait", "a")
	if quiet.out.String() != "" {
		t.Errorf("-o none writes %q", quiet.out.String())
	}
}

// On a terminal a table is redrawn in place.
func TestHostOnATerminal(t *testing.T) {
	master, terminal := openTerminal(t)
	var screen testkit.Log
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			_, _ = screen.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	h := &hostProcess{dir: t.TempDir()}
	h.plugins, h.endpoint = filepath.Join(h.dir, "plugins"), "unix://"+filepath.Join(h.dir, "host.sock")
	h.start(t, terminal)
	_, stop := h.startPlugin(t, "a")
	testkit.Eventually(t, "the plugin is in the table", func() bool {
		return strings.Contains(screen.String(), ": 1 registered\r\n") && strings.Contains(screen.String(), "a.sock\r\n")
	})
	stop()
	testkit.Eventually(t, "the table is empty again", func() bool { return strings.HasSuffix(screen.String(), ": none yet\r\n\x1b[?7h") })
	if !strings.Contains(screen.String(), "\x1b[3A\r\x1b[J") {
		t.Errorf("the table of three lines is not replaced: %q", screen.String())
	}
	if err := h.end(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if strings.Contains(h.log.String(), "INFO") {
		t.Errorf("the log repeats the table: %s", h.log.String())
	}
	_ = terminal.Close()
	<-read
}

// openTerminal opens a pseudo terminal pair, 100 columns wide.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master = testkit.Value(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = master.Close() })
	testkit.Must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n := testkit.Value(unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN))(t)
	terminal = testkit.Value(os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { _ = terminal.Close() })
	testkit.Must(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))
	return master, terminal
}

// Commands that are started before the host and the driver wait for them, and
// then succeed: the blocks of README can be pasted whole.
func TestCommandsWaitForServersThatStart(t *testing.T) {
	h := &hostProcess{dir: t.TempDir()}
	h.plugins, h.endpoint = filepath.Join(h.dir, "plugins"), "unix://"+filepath.Join(h.dir, "host", "host.sock")
	socket := filepath.Join(h.dir, "csi", "csi.sock")
	absent, device := "unix://"+socket, absentDeviceRig(t)
	type waiting struct {
		*testkit.Log
		ended chan error
	}
	began := map[string]waiting{}
	for _, line := range []string{
		"plugins list --host " + h.endpoint, "plugins why --host " + h.endpoint, "plugins why csi.cleat.dev --host " + h.endpoint,
		"plugins devices --host " + h.endpoint, "plugins wait csi.cleat.dev --host " + h.endpoint,
		"volume list --driver csi.cleat.dev --host " + h.endpoint, "volume list --endpoint " + absent,
		"device probe --socket " + device.server,
	} {
		w := waiting{&testkit.Log{}, make(chan error, 1)}
		c := newRootCommand()
		c.SetArgs(append(strings.Fields(line), "--timeout", "10m"))
		if strings.HasPrefix(line, "volume") {
			c.SetArgs(append(strings.Fields(line), "--timeout", "10m", "--state-dir", t.TempDir()))
		}
		c.SetOut(io.Discard)
		c.SetErr(w.Log)
		go func() { w.ended <- c.ExecuteContext(t.Context()) }()
		began[line] = w
	}
	for line, w := range began {
		testkit.Eventually(t, line+" has failed once", func() bool { return strings.Contains(w.String(), "retrying") })
	}
	device.serve(t)
	h.start(t, nil)
	self := testkit.Value(os.Executable())(t)
	driver := testkit.Value(testdriver.Launch(t.Context(), self, h.dir, "csi", nil, "--pool", filepath.Join(h.dir, "pool"),
		"--registration-dir", h.plugins))(t)
	t.Cleanup(func() { _ = driver.Stop() })
	for line, w := range began {
		if err := <-w.ended; err != nil {
			t.Errorf("cleat %s: %v", line, err)
		}
	}
}
