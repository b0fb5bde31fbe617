package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

// Commands with wrong arguments start and call nothing.
func TestHostAndPluginsRefuseWrongArguments(t *testing.T) {
	unserved := "unix://" + filepath.Join(t.TempDir(), "unserved.sock")
	t.Setenv("CLEAT_HOST", unserved)
	t.Setenv("CLEAT_TIMEOUT", "50ms")
	for line, says := range map[string]string{
		"host x":                                  "no arguments",
		"host -o yaml":                            "use table, json or none",
		"host --plugins-dir plugins":              "absolute",
		"host --plugins-dir /run/../x":            "clean",
		"host --plugins-dir /":                    "every socket",
		"host --plugins-dir=":                     "absolute",
		"host --grace -1s":                        "negative",
		"host --plugin-type DRAPlugin":            "always registered",
		"host --plugin-type=,":                    "--plugin-type",
		"host --allow-uid 65534":                  "other user namespaces",
		"host --allow-uid 4294967295":             "other user namespaces",
		"host --socket tcp://1.2.3.4:5":           "--socket",
		"host --log-level loud":                   "loud",
		"host --config /does/not/exist.yaml":      "config file",
		"plugins lst":                             `did you mean "list"?`,
		"plugins list x":                          "no arguments",
		"plugins list":                            "no plugin host answers on " + unserved,
		"plugins list --watch -o yaml":            "-o yaml",
		"plugins list --host relative":            "relative",
		"plugins why a b":                         "expects [NAME|SOCKET]",
		"plugins why":                             "cleat host",
		"plugins wait":                            "expects NAME",
		"plugins wait a --timeout -1s":            "negative",
		"plugins wait a -o xml":                   "xml",
		"plugins devices a b":                     "expects [RESOURCE]",
		"plugins list --host unix:///proc/1/comm": "no plugin host answers",
	} {
		c := newRootCommand()
		c.SetArgs(strings.Fields(line))
		c.SetOut(&bytes.Buffer{})
		c.SetErr(&bytes.Buffer{})
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error with %q", line, err, says)
		}
	}
}

// CLEAT_OUTPUT is for client commands and does not affect a server.
func TestHostIgnoresCleatOutput(t *testing.T) {
	t.Setenv("CLEAT_OUTPUT", "yaml")
	c := newRootCommand()
	c.SetArgs([]string{"host", "--grace", "-1s"})
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--grace") {
		t.Errorf("%v", err)
	}
}

func TestHostChecksPluginUser(t *testing.T) {
	if (&hostServer{}).checkPeer() != nil {
		t.Error("without --allow-uid a user is refused")
	}
	check := (&hostServer{Server: server.Server{AllowUIDs: []uint{1000, 1001}}}).checkPeer()
	for uid, allowed := range map[uint32]bool{0: true, 1000: true, 1001: true, 1002: false, unixsock.OverflowUID: false, math.MaxUint32: false} {
		if err := check(watch.Peer{UID: uid, PID: 7}); (err == nil) != allowed {
			t.Errorf("user %d: %v", uid, err)
		}
	}
}

func TestOfType(t *testing.T) {
	change := func(kind remote.Kind, socket, pluginType string) remote.Change {
		return remote.Change{Kind: kind, Plugin: &watch.Status{Plugin: watch.Plugin{Socket: socket, Type: pluginType}}}
	}
	synced := remote.Change{Kind: remote.Synced}
	all := []remote.Change{
		change(remote.Present, "/a", ""), change(remote.Present, "/a", "X"), change(remote.Present, "/b", "Y"), synced,
		change(remote.Present, "/a", "Y"), change(remote.Present, "/a", "Y"), change(remote.Gone, "/b", "Y"), change(remote.Gone, "/a", "Y"),
		change(remote.Present, "/c", "X"), change(remote.Gone, "/c", "X"),
	}
	var got []remote.Change
	for c := range ofType("X", yielding(all, nil)) {
		got = append(got, c)
	}
	want := []remote.Change{
		change(remote.Present, "/a", "X"), synced, change(remote.Gone, "/a", "Y"), change(remote.Present, "/c", "X"), change(remote.Gone, "/c", "X"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	lost := errors.New("lost")
	for _, err := range ofType("X", yielding(nil, lost)) {
		if !errors.Is(err, lost) {
			t.Errorf("%v", err)
		}
	}
}

func TestDeviceTable(t *testing.T) {
	got := deviceTable([]remote.Resource{
		{Name: "example.com/gpu", Current: true, Devices: []device.Device{{ID: "a", Healthy: true, NUMA: []int64{0, 1}}, {ID: "b", Holder: "pod"}}},
		{Name: "example.com/nic", Error: "the stream broke"},
	})
	want := [][]string{
		{"example.com/gpu", "a", "healthy", "0,1", "", ""}, {"example.com/gpu", "b", "unhealthy", "", "pod", ""},
		{"example.com/nic", "", "", "", "", "the stream broke"},
	}
	if diff := cmp.Diff(want, got.Rows); diff != "" {
		t.Error(diff)
	}
}

// The queries of a running host, in all output formats.
func TestQueryHost(t *testing.T) {
	status := filepath.Join(t.TempDir(), "status.sock")
	h := newHost(t, "--metrics-address", status, "-o", "none")
	h.says(t, []string{"no plugin has a socket below " + h.plugins}, "plugins", "why")
	if all := askJSON[[]watch.Status](t, h, "plugins", "list"); all == nil || len(all) != 0 {
		t.Errorf("an empty list is %v", all)
	}
	h.startPlugin(t, "a")
	if p := askJSON[watch.Status](t, h, "plugins", "wait", "a", "--type", "DRAPlugin"); p.Phase != watch.Registered || p.Name != "a" {
		t.Errorf("wait: %+v", p)
	}
	h.refuses(t, nil, "plugins", "wait", "a", "--type", "CSIPlugin", "--timeout", "50ms")
	h.says(t, []string{"phase: registered"}, "plugins", "list", "-o", "yaml")
	if all := askJSON[[]watch.Status](t, h, "plugins", "list", "--type", "CSIPlugin"); len(all) != 0 {
		t.Errorf("of another type: %v", all)
	}
	if e := askJSON[explanation](t, h, "plugins", "why", "a"); len(e.Plugins) != 1 || e.Text == "" {
		t.Errorf("why: %+v", e)
	}
	h.says(t, []string{"1 plugin: all are registered"}, "plugins", "why")
	h.says(t, []string{"RESOURCE"}, "plugins", "devices")
	h.refuses(t, []string{"no device plugin offers"}, "plugins", "devices", "example.com/gpu")
	h.says(t, []string{"a\tDRAPlugin, registered"}, "__complete", "plugins", "wait", "")
	h.says(t, []string{"CSIPlugin", "DevicePlugin"}, "__complete", "plugins", "list", "--type", "")

	var ready struct{ Ready bool }
	if err := server.Ask(t.Context(), status, "/readyz", &ready); err != nil || !ready.Ready {
		t.Errorf("readyz: %+v, %v", ready, err)
	}
	var document struct {
		Host struct {
			Directory string
			Plugins   []watch.Status
			Others    []struct{ Type, Name string }
		}
	}
	err := server.Ask(t.Context(), status, "/status", &document)
	if d := document.Host; err != nil || d.Directory != h.plugins || len(d.Plugins) != 1 || len(d.Others) != 1 || d.Others[0].Name != "a" {
		t.Errorf("status: %+v, %v", document, err)
	}
}

// A host that cannot read its directory does not know which plugins there are.
func TestQueryHostWithoutDirectory(t *testing.T) {
	status := filepath.Join(t.TempDir(), "status.sock")
	h := newHost(t, "--metrics-address", status, "-o", "none")
	testkit.Must(t, os.Rename(h.plugins, h.plugins+".away"))
	testkit.Eventually(t, "the host is not ready", func() bool {
		var ready struct{ Ready bool }
		return server.Ask(t.Context(), status, "/readyz", &ready) == nil && !ready.Ready
	})
	h.refuses(t, []string{"might not know all plugins", h.plugins}, "plugins", "list")
	if text := h.says(t, []string{"might not know all plugins"}, "plugins", "why"); strings.Contains(text, "no plugin has a socket") {
		t.Errorf("why: %s", text)
	}
}

// gpus is a device plugin with two devices.
type gpus struct {
	deviceplugin.UnimplementedDevicePluginServer
}

func (gpus) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (gpus) ListAndWatch(_ *deviceplugin.Empty, stream deviceplugin.DevicePlugin_ListAndWatchServer) error {
	near := func(node int64) *deviceplugin.TopologyInfo {
		return &deviceplugin.TopologyInfo{Nodes: []*deviceplugin.NUMANode{{ID: node}}}
	}
	err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: []*deviceplugin.Device{
		{ID: "gpu-1", Health: deviceplugin.Unhealthy, Topology: near(1)}, {ID: "gpu-0", Health: deviceplugin.Healthy, Topology: near(0)},
	}})
	<-stream.Context().Done()
	return err
}

// The devices of a device plugin are listed while it runs.
func TestHostListsDevices(t *testing.T) {
	h := newHost(t)
	_, stop := h.startPluginOf(t, "gpu", &registration.PluginInfo{Type: device.Type, Name: "example.com/gpu", SupportedVersions: []string{"v1beta1"}},
		func(s *grpc.Server) { deviceplugin.RegisterDevicePluginServer(s, gpus{}) })
	h.says(t, []string{"DevicePlugin example.com/gpu is registered"}, "plugins", "wait", "example.com/gpu")
	testkit.Eventually(t, "the list has come", func() bool {
		all := askJSON[[]remote.Resource](t, h, "plugins", "devices")
		return len(all) == 1 && all[0].Current
	})
	const want = "RESOURCE          DEVICE   HEALTH      NUMA   HOLDER   NOTE\n" +
		"example.com/gpu   gpu-0    healthy     0      -        -\n" +
		"example.com/gpu   gpu-1    unhealthy   1      -        -\n"
	if got := h.says(t, nil, "plugins", "devices", "example.com/gpu"); got != want {
		t.Errorf("%s", cmp.Diff(want, got))
	}
	stop()
	testkit.Eventually(t, "the plugin is gone", func() bool { return len(askJSON[[]remote.Resource](t, h, "plugins", "devices")) == 0 })
}

// A watch ends without error on an interrupt, and with an error when the host stops.
func TestWatchPlugins(t *testing.T) {
	h := newHost(t)
	h.startPlugin(t, "a")
	h.says(t, nil, "plugins", "wait", "a")
	t.Setenv("CLEAT_HOST", h.endpoint)
	watching := func(ctx context.Context, out *testkit.Log) chan error {
		c := newRootCommand()
		c.SetArgs([]string{"plugins", "list", "--watch", "-o", "json"})
		c.SetOut(out)
		ended := make(chan error, 1)
		go func() { ended <- c.ExecuteContext(ctx) }()
		testkit.Eventually(t, "the watch has begun", func() bool { return strings.Contains(out.String(), `"kind":"synced"`) })
		return ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	var out testkit.Log
	ended := watching(ctx, &out)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("interrupted: %v", err)
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	var c remote.Change
	if err := json.Unmarshal([]byte(first), &c); err != nil || c.Kind != remote.Present || c.Plugin.Name != "a" {
		t.Errorf("the first document is %s: %v", first, err)
	}
	var more testkit.Log
	ended = watching(t.Context(), &more)
	begun := time.Now()
	if err := h.end(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if time.Since(begun) > server.StopBound {
		t.Errorf("the host waited for its watchers for %s", time.Since(begun))
	}
	if err := <-ended; !errors.Is(err, remote.ErrNoHost) {
		t.Errorf("the host stopped: %v", err)
	}
}
