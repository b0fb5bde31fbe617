package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/test/testkit"
)

// fakeNode is a machine with a fake sysfs and a fake kubelet.
type fakeNode struct {
	tree    *sysfstest.Tree
	kubelet *plugintest.Kubelet
	dir     string
	flags   []string
}

func newFakeNode(t *testing.T, config string) *fakeNode {
	t.Helper()
	n := &fakeNode{tree: sysfstest.New(t), dir: testkit.Dir(t)}
	n.tree.Add(sysfstest.Function{Address: "0000:3b:00.0", Vendor: "8086", Device: "1572", Driver: "i40e", NUMA: 0, Netdev: "ens1", TotalVFs: 8, VFDevice: "154c", VFDriver: "iavf"})
	testkit.Must(t, n.tree.Write(sysfstest.Device("0000:3b:00.0")+"/sriov_numvfs", "4"))
	file := filepath.Join(n.dir, "config.json")
	testkit.Must(t, os.WriteFile(file, []byte(config), 0o644))
	n.kubelet = plugintest.New(filepath.Join(n.dir, "kubelet", "device-plugins"), t.Errorf)
	testkit.Must(t, n.kubelet.Start())
	t.Cleanup(n.kubelet.Stop)
	n.flags = []string{
		"sriov", "plugin", "--config-file", file, "--sysfs-root", n.tree.Sysfs, "--dev-root", n.tree.Dev, "--kubelet-dir", filepath.Join(n.dir, "kubelet"),
		"--state-dir", filepath.Join(n.dir, "state"), "--device-info-dir", filepath.Join(n.dir, "devinfo"), "--cdi-dir", filepath.Join(n.dir, "cdi"),
		"--control-socket", filepath.Join(n.dir, "control", "control.sock"), "--metrics-address", filepath.Join(n.dir, "metrics.sock"),
	}
	return n
}

// run runs the plugin until end is called, and returns its log.
func (n *fakeNode) run(t *testing.T, flags ...string) (log *testkit.Log, end func() error) {
	t.Helper()
	c := newRootCommand()
	log = &testkit.Log{}
	c.SetArgs(append(slices.Clone(n.flags), flags...))
	c.SetErr(log)
	c.SetOut(log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.ExecuteContext(ctx) }()
	var result error
	done := false
	end = func() error {
		if !done {
			done = true
			cancel()
			result = <-ended
		}
		return result
	}
	t.Cleanup(func() { _ = end() })
	return log, end
}

func (n *fakeNode) offers(t *testing.T, resource string, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.kubelet.Await(ctx, func() bool { return n.kubelet.Allocatable(resource) == count }); err != nil {
		t.Fatalf("the kubelet has %d of %s, want %d", n.kubelet.Allocatable(resource), resource, count)
	}
}

// awaitEmptyList waits until the kubelet has read an empty list, possibly after the
// plugin has ended.
func (n *fakeNode) awaitEmptyList(t *testing.T, resource string) {
	t.Helper()
	testkit.Eventually(t, "the kubelet is left with an empty list of "+resource, func() bool {
		lists := n.kubelet.Lists(resource)
		return len(lists[len(lists)-1].All) == 0
	})
}

// The flags of the upstream manifest are accepted.
func TestSriovPluginServes(t *testing.T) {
	n := newFakeNode(t, `{"resourceList": [{"resourceName": "vf", "selectors": [{"pfNames": ["ens1"], "vendor": ["15b3"]}]}]}`)
	log, end := n.run(t, "--log-dir=sriovdp", "--log-level=10", "--resource-prefix=example.com", "--logtostderr")
	n.offers(t, "example.com/vf", 4)
	for _, line := range []string{
		`cleat_sriov_devices_offered{resource="example.com/vf"} 4`,
		`cleat_sriov_config_warnings{key="vendor",kind="unknown-key",nearest="vendors"} 1`,
		`cleat_sriov_control{control="none"} 1`,
		`cleat_sriov_state{state="SERVING"} 1`,
		`cleat_sriov_registrations_total{resource="example.com/vf",result="ok"} 1`,
	} {
		// The plugin updates its metrics after the kubelet has received the list.
		testkit.Eventually(t, "the metrics have "+line, func() bool {
			return strings.Contains(n.page(t, "/metrics"), line+"\n")
		})
	}
	var document struct{ SRIOV plugin.Document }
	testkit.Must(t, server.Ask(t.Context(), filepath.Join(n.dir, "metrics.sock"), "/status", &document))
	if d := document.SRIOV; len(d.Resources) != 1 || len(d.Resources[0].Members) != 4 || d.Resources[0].Offered != 4 {
		t.Errorf("/status says %+v, want one resource with 4 devices", d)
	}
	if text := log.String(); !strings.Contains(text, `"nearest":"vendors"`) {
		t.Errorf("the log does not name the key that was probably meant:\n%s", text)
	}
	if err := end(); err != nil {
		t.Errorf("the plugin ended with %v", err)
	}
	n.awaitEmptyList(t, "example.com/vf")
}

// A resource name that the kubelet refuses does not affect other resources, as in the
// upstream plugin; it is reported in log, metrics and status.
func TestSriovPluginOmitsRefusedResource(t *testing.T) {
	n := newFakeNode(t, `{"resourceList": [{"resourceName": "bad-", "selectors": [{"pfNames": ["ens1#0"]}]},
		{"resourceName": "vf", "selectors": [{"pfNames": ["ens1#1-3"]}]}]}`)
	log, end := n.run(t, "--resource-prefix=example.com")
	n.offers(t, "example.com/vf", 3)
	if text := log.String(); !strings.Contains(text, `"level":"ERROR","msg":"resource left out`) || !strings.Contains(text, `example.com/bad-`) {
		t.Errorf("the log has no error that names the resource:\n%s", text)
	}
	if want := `cleat_sriov_config_warnings{key="",kind="dropped",nearest=""} 1` + "\n"; !strings.Contains(n.page(t, "/metrics"), want) {
		t.Errorf("the metrics have no %s", want)
	}
	if status := n.page(t, "/status"); !strings.Contains(status, "example.com/bad-") {
		t.Errorf("/status does not name the resource:\n%s", status)
	}
	if names := n.kubelet.Resources(); !slices.Equal(names, []string{"example.com/vf"}) {
		t.Errorf("the kubelet knows %v", names)
	}
	if err := end(); err != nil {
		t.Errorf("the plugin ended with %v", err)
	}
}

// The upstream plugin accepts long flags with a single dash, the flags of glog, and a
// relative path of the configuration file.
func TestSriovPluginAcceptsUpstreamCommandLine(t *testing.T) {
	n := newFakeNode(t, `{"resourceList": [{"resourceName": "vf", "selectors": [{"pfNames": ["ens1"]}]}]}`)
	t.Chdir(n.dir)
	n.flags = upstreamArgs(append(n.flags, "-config-file", "config.json", "-resource-prefix=example.com", "-logtostderr", "-v", "10", "--v=10",
		"-alsologtostderr=true", "-stderrthreshold=INFO", "-vmodule", "x=1", "-log_backtrace_at", "x.go:1", "-log_dir=/tmp", "-log_link=/tmp", "-logbuflevel", "0", "-use-cdi=false"))
	_, end := n.run(t)
	n.offers(t, "example.com/vf", 4)
	if err := end(); err != nil {
		t.Errorf("the plugin ended with %v", err)
	}
}

// The DDP profile of an X710 is reported only by ddptool.
func TestSriovPluginRunsDDPTool(t *testing.T) {
	n := newFakeNode(t, `{"resourceList": [{"resourceName": "gtp", "selectors": [{"ddpProfiles": ["PPPoE", "GTPv1-C/U IPv4/IPv6 payload"]}]}]}`)
	putProgram(t, n.dir, "ddptool", `[ "$*" = "-l -a -j -s 0000:3b:00.0" ] || exit 1
echo '{"DDPInventory": {"device": "1572", "address": "0000:3b:00.0", "name": "ens1", "display": "X710",
  "DDPpackage": {"track_id": "80000008", "version": "1.0.3.0", "name": "GTPv1-C/U IPv4/IPv6 payload"}}}'
`)
	n.run(t, "--resource-prefix=example.com")
	n.offers(t, "example.com/gtp", 4)
}

// putProgram creates a shell script in a directory at the front of PATH.
func putProgram(t *testing.T, dir, name, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Flags of other commands, and values, are not rewritten.
func TestUpstreamArgs(t *testing.T) {
	for _, c := range []struct{ given, want []string }{
		{nil, nil},
		{[]string{"sriov", "plugin"}, []string{"sriov", "plugin"}},
		{[]string{"sriov", "plugin", "-config-file", "x", "-v=3", "-v", "3", "--use-cdi", "-h"}, []string{"sriov", "plugin", "--config-file", "x", "-v=3", "-v", "3", "--use-cdi", "-h"}},
		{[]string{"sriov", "plugin", "-unknown", "-help"}, []string{"sriov", "plugin", "-unknown", "--help"}},
		{[]string{"sriov", "daemon", "-node", "x"}, []string{"sriov", "daemon", "-node", "x"}},
		{[]string{"sriov", "plugin", "--", "-use-cdi"}, []string{"sriov", "plugin", "--", "-use-cdi"}},
	} {
		if got := upstreamArgs(c.given); !slices.Equal(got, c.want) {
			t.Errorf("%q becomes %q, want %q", c.given, got, c.want)
		}
	}
}

// page returns a page of the plugin's telemetry.
func (n *fakeNode) page(t *testing.T, path string) string {
	t.Helper()
	_, text, err := testkit.Page(t.Context(), testkit.UNIX(filepath.Join(n.dir, "metrics.sock")), http.MethodGet, path)
	testkit.Must(t, err)
	return text
}

// In controlled mode the plugin reports that it waits for a daemon.
func TestSriovPluginWaitsForDaemon(t *testing.T) {
	n := newFakeNode(t, `{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1"]}]}]}`)
	_, end := n.run(t, "--controlled-mode")
	socket := filepath.Join(n.dir, "control", "control.sock")
	var out strings.Builder
	testkit.Eventually(t, "the plugin says that it waits", func() bool {
		out.Reset()
		c := newRootCommand()
		c.SetArgs([]string{"sriov", "status", "--control-socket", socket, "-o", "json"})
		c.SetOut(&out)
		c.SetErr(&strings.Builder{})
		return c.ExecuteContext(t.Context()) == nil
	})
	if !json.Valid([]byte(out.String())) || !strings.Contains(strings.ToLower(out.String()), "waiting") {
		t.Errorf("cleat sriov status says %s, want that it waits", out.String())
	}
	if names := n.kubelet.Resources(); len(names) != 0 {
		t.Errorf("the kubelet knows %v", names)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the control socket is %v, %v; want mode 0600", info.Mode(), err)
	}
	if err := end(); err != nil {
		t.Errorf("the plugin ended with %v", err)
	}
}

// A damaged record is moved aside and logged, and the plugin serves.
func TestSriovPluginDamagedRecord(t *testing.T) {
	n := newFakeNode(t, `{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1"]}]}]}`)
	state := filepath.Join(n.dir, "state")
	testkit.Must(t, os.Mkdir(state, 0o700))
	garbage := []byte(strings.Repeat("garbage ", 8192))
	testkit.Must(t, os.WriteFile(filepath.Join(state, "plugin.db"), garbage, 0o600))
	log, _ := n.run(t)
	n.offers(t, "example.com/vf", 4)
	kept, err := filepath.Glob(filepath.Join(state, "plugin.db.damaged-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept aside: %v, %v; want one file", kept, err)
	}
	if text, err := os.ReadFile(kept[0]); err != nil || !slices.Equal(text, garbage) {
		t.Errorf("the file aside is not the damaged one: %d bytes, %v", len(text), err)
	}
	if !strings.Contains(log.String(), "record damaged") {
		t.Errorf("the log does not say that the record is damaged:\n%s", log)
	}
}

// If the default state directory cannot be created on a read-only root, the plugin
// serves without a record. A directory set by the flag is required.
func TestSriovPluginWithoutStateDirectory(t *testing.T) {
	s := &sriovPluginServer{}
	s.StateDir, s.Logger = sriovPluginState, slog.New(slog.DiscardHandler)
	readOnlyRoot(t, func() {
		memory, err := s.openGrants(t.Context())
		if memory != nil || err != nil {
			t.Errorf("the default directory cannot be made: %v, %v; want no record", memory, err)
		}
		s.StateDir = "/var/lib/asked-for"
		if _, err := s.openGrants(t.Context()); !errors.Is(err, unix.EROFS) {
			t.Errorf("a directory that was asked for cannot be made: %v, want EROFS", err)
		}
	})
}

// readOnlyRoot calls do on a thread with an empty, read-only /var/lib.
func readOnlyRoot(t *testing.T, do func()) {
	t.Helper()
	onLockedThread(func() {
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil { // slave: unmounts of other tests propagate
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", "/var/lib", "tmpfs", unix.MS_RDONLY, "")
		}
		if err != nil {
			t.Error(err)
			return
		}
		do()
	})
}

// onLockedThread calls do on a thread that ends afterwards, since its changes cannot
// be undone. It avoids the main thread, which does not end: /proc/self would show its
// mounts.
func onLockedThread(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onLockedThread(do) // on another thread, since this one is locked
			runtime.UnlockOSThread()
			return
		}
		do() // a locked thread ends with its goroutine
	}()
	<-done
}

func TestSriovPluginRefuses(t *testing.T) {
	n := newFakeNode(t, `{"resourceList": [{"resourceName": "vf", "selectors": [{"pfName": ["ens1"]}]}]}`)
	for _, c := range []struct {
		flags []string
		words []string
	}{
		{[]string{"--strict-config"}, []string{"pfName", "pfNames", "config.json"}},
		{[]string{"--config-file", "/nowhere/config.json"}, []string{"/nowhere/config.json", "no such file"}},
		{[]string{"--kubelet-dir", "kubelet"}, []string{"--kubelet-dir", "absolute"}},
		{[]string{"--registration", "mail"}, []string{"--registration", "watcher"}},
		{[]string{"--rescan-interval", "0s"}, []string{"--rescan-interval"}},
		{[]string{"--log-level", "loud"}, []string{"loud", "debug"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		command := newRootCommand()
		command.SetArgs(append(slices.Clone(n.flags), c.flags...))
		command.SetErr(&testkit.Log{})
		err := command.ExecuteContext(ctx)
		cancel()
		for _, word := range c.words {
			if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "state") {
				t.Errorf("%v: %v, want %q in it, and no state", c.flags, err, word)
			}
		}
	}
}
