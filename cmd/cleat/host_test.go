package main

import (
	"bufio"
	"encoding/json"
	"errors"
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

// A CSI driver that registers itself is found by its name, and goes with its
// process.
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
	h.refuses(t, []string{"--driver csi.claet.dev", `(did you mean "csi.cleat.dev"?)`}, append(state, "snapshot", "list", "--driver", "csi.claet.dev")...)
	if err := stop(); err != nil {
		t.Errorf("%v\n%s", err, driver.Log.String())
	}
	eventually(t, "the driver is gone", func() bool {
		return len(askJSON[[]watch.Status](t, h, "plugins", "list")) == 0
	})
	h.refuses(t, []string{"known names of that type: none"}, append(state, "group", "list", "--driver", "csi.cleat.dev")...)
}

// Which of two ways to name the driver counts.
func TestDriverOrEndpoint(t *testing.T) {
	nobody := "unix://" + filepath.Join(t.TempDir(), "nobody.sock")
	elsewhere := "unix://" + filepath.Join(t.TempDir(), "elsewhere.sock")
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		says string
	}{
		"both flags":                {nil, []string{"--driver", "a", "--endpoint", nobody}, "give one of them"},
		"both variables":            {map[string]string{"CLEAT_DRIVER": "a", "CSI_ENDPOINT": nobody}, nil, "CLEAT_DRIVER and CLEAT_ENDPOINT"},
		"flag over other variable":  {map[string]string{"CLEAT_ENDPOINT": elsewhere}, []string{"--driver", "a", "--host", nobody}, "no plugin host answers on " + nobody},
		"flag over other variable2": {map[string]string{"CLEAT_DRIVER": "a"}, []string{"--endpoint", nobody}, "no CSI driver answers on " + nobody},
		"variable":                  {map[string]string{"CLEAT_DRIVER": "a", "CLEAT_HOST": nobody}, nil, "no plugin host answers on " + nobody},
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

// A host that was killed leaves nothing in the way of the next one, which
// registers everything again.
func TestKilledHostComesBack(t *testing.T) {
	h := newHost(t)
	names := []string{"a", "b", "c"}
	plugins := map[string]*fakePlugin{}
	for _, name := range names {
		plugins[name], _ = h.startPlugin(t, name)
		h.says(t, nil, "plugins", "wait", name)
		<-plugins[name].told
	}
	for range 3 {
		testkit.Must(t, h.end(unix.SIGKILL))
		h.refuses(t, []string{"no plugin host answers", "created the socket is not running"}, "plugins", "list")
		h.start(t, nil)
		for _, name := range names {
			h.says(t, nil, "plugins", "wait", name)
			if told := <-plugins[name].told; !told.GetPluginRegistered() {
				t.Errorf("%s was told %v", name, told)
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
	h.refuses(t, []string{"the socket does not exist", "cleat host"}, "plugins", "list")
}

// A second host touches no plugin, whether it meets the first on its socket or
// in its directory.
func TestSecondHostIsRefused(t *testing.T) {
	first := newHost(t)
	p, _ := first.startPlugin(t, "a")
	first.says(t, nil, "plugins", "wait", "a")
	<-p.told
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
	case told := <-p.told:
		t.Errorf("the plugin was told again: %v", told)
	default:
	}
	first.says(t, []string{"registered"}, "plugins", "list")
}

// Each step of a plugin is a line of JSON.
func TestHostStreamsDocuments(t *testing.T) {
	h := newHost(t, "-o", "json")
	eventually(t, "the stream has begun", func() bool { return strings.Contains(h.out.String(), `"kind":"synced"`) })
	_, stop := h.startPlugin(t, "a")
	h.says(t, nil, "plugins", "wait", "a")
	stop()
	eventually(t, "the end of the plugin is told", func() bool { return strings.Contains(h.out.String(), `"kind":"gone"`) })
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

// Elsewhere than on a terminal there is a line for each that matters.
func TestHostWritesLines(t *testing.T) {
	h := newHost(t)
	_, stop := h.startPlugin(t, "a")
	h.says(t, nil, "plugins", "wait", "a")
	eventually(t, "it is registered", func() bool { return strings.Contains(h.out.String(), "registered") })
	stop()
	eventually(t, "it is gone", func() bool { return strings.Contains(h.out.String(), "gone") })
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

// On a terminal a table is drawn anew in place.
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
	eventually(t, "the plugin is in the table", func() bool {
		return strings.Contains(screen.String(), ": 1 registered\r\n") && strings.Contains(screen.String(), "a.sock\r\n")
	})
	stop()
	eventually(t, "the table is empty again", func() bool { return strings.HasSuffix(screen.String(), ": none yet\r\n\x1b[?7h") })
	if !strings.Contains(screen.String(), "\x1b[3A\r\x1b[J") {
		t.Errorf("the table of three lines is not replaced: %q", screen.String())
	}
	if err := h.end(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if strings.Contains(h.log.String(), "INFO") {
		t.Errorf("the log tells again what the table shows: %s", h.log.String())
	}
	_ = terminal.Close()
	<-read
}

// openTerminal makes a pair of a pseudo terminal, 100 columns wide.
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
