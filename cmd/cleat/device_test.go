package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/test/testkit"
)

// vendorPlugin is a fake storage plugin with devices in memory. It records calls and
// returns configured errors.
type vendorPlugin struct {
	storagev1.UnimplementedIdentityServiceServer
	storagev1.UnimplementedStoragePluginServiceServer

	mu           sync.Mutex
	calls        []string
	last         *storagev1.CreateDeviceRequest
	devices      map[string]string // by volume
	ready        *wrapperspb.BoolValue
	provider     string
	name         func(volumeID string) string
	capabilities []storagev1.StoragePluginServiceCapability_RPC_Type
	fail         map[string]error
	page         func(max int32, token string) *storagev1.ListDevicesResponse
}

func (v *vendorPlugin) begin(call string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.calls = append(v.calls, call)
	return v.fail[call]
}

// takeCalls returns the calls since the previous takeCalls.
func (v *vendorPlugin) takeCalls() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	calls := v.calls
	v.calls = nil
	return calls
}

func (v *vendorPlugin) set(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
}

func (v *vendorPlugin) GetPluginInfo(context.Context, *storagev1.GetPluginInfoRequest) (*storagev1.GetPluginInfoResponse, error) {
	return &storagev1.GetPluginInfoResponse{Name: "dpu.example.com", VendorVersion: "1.2", Manifest: map[string]string{"commit": "abc"}}, v.begin("GetPluginInfo")
}

func (v *vendorPlugin) Probe(context.Context, *storagev1.ProbeRequest) (*storagev1.ProbeResponse, error) {
	err := v.begin("Probe")
	v.mu.Lock()
	defer v.mu.Unlock()
	return &storagev1.ProbeResponse{Ready: v.ready}, err
}

func (v *vendorPlugin) StoragePluginGetCapabilities(context.Context, *storagev1.StoragePluginGetCapabilitiesRequest) (*storagev1.StoragePluginGetCapabilitiesResponse, error) {
	out := &storagev1.StoragePluginGetCapabilitiesResponse{}
	for _, c := range v.capabilities {
		out.Capabilities = append(out.Capabilities, &storagev1.StoragePluginServiceCapability{
			Type: &storagev1.StoragePluginServiceCapability_Rpc{Rpc: &storagev1.StoragePluginServiceCapability_RPC{Type: c}},
		})
	}
	return out, v.begin("Capabilities")
}

func (v *vendorPlugin) GetSNAPProvider(context.Context, *storagev1.GetSNAPProviderRequest) (*storagev1.GetSNAPProviderResponse, error) {
	return &storagev1.GetSNAPProviderResponse{ProviderName: v.provider}, v.begin("GetSNAPProvider")
}

func (v *vendorPlugin) CreateDevice(_ context.Context, r *storagev1.CreateDeviceRequest) (*storagev1.CreateDeviceResponse, error) {
	if err := v.begin("CreateDevice"); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last, v.devices[r.VolumeId] = r, v.name(r.VolumeId)
	return &storagev1.CreateDeviceResponse{DeviceName: v.devices[r.VolumeId]}, nil
}

func (v *vendorPlugin) DeleteDevice(_ context.Context, r *storagev1.DeleteDeviceRequest) (*storagev1.DeleteDeviceResponse, error) {
	if err := v.begin("DeleteDevice " + r.VolumeId + " " + r.DeviceName); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.devices, r.VolumeId)
	return &storagev1.DeleteDeviceResponse{}, v.fail["DeleteDevice"]
}

func (v *vendorPlugin) GetDevice(_ context.Context, r *storagev1.GetDeviceRequest) (*storagev1.GetDeviceResponse, error) {
	if err := v.begin("GetDevice"); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	name, found := v.devices[r.VolumeId]
	if !found || r.DeviceName != "" && r.DeviceName != name {
		return nil, status.Error(codes.NotFound, "no such device")
	}
	return &storagev1.GetDeviceResponse{
		AccessModes: v.last.AccessModes, VolumeMode: v.last.VolumeMode,
		PublishContext: v.last.PublishContext, VolumeContext: v.last.VolumeContext, StorageParameters: v.last.StorageParameters,
	}, nil
}

func (v *vendorPlugin) ListDevices(_ context.Context, r *storagev1.ListDevicesRequest) (*storagev1.ListDevicesResponse, error) {
	if err := v.begin(fmt.Sprint("ListDevices ", r.MaxEntries, " ", r.StartingToken)); err != nil {
		return nil, err
	}
	return v.page(r.MaxEntries, r.StartingToken), v.fail["ListDevices"]
}

func newVendorPlugin() *vendorPlugin {
	return &vendorPlugin{
		devices: map[string]string{}, ready: wrapperspb.Bool(true), provider: "snap",
		capabilities: []storagev1.StoragePluginServiceCapability_RPC_Type{1, 2, 3, 4}, fail: map[string]error{},
		name: func(id string) string { return "bdev-" + id },
	}
}

// deviceRig is a fake plugin with the commands that call it.
type deviceRig struct {
	commands
	*vendorPlugin
}

// absentDeviceRig has a plugin that is not served yet.
func absentDeviceRig(t *testing.T) *deviceRig {
	t.Helper()
	return &deviceRig{commands{"device", "--socket", filepath.Join(t.TempDir(), "dpu.sock")}, newVendorPlugin()}
}

func newDeviceRig(t *testing.T) *deviceRig {
	t.Helper()
	r := absentDeviceRig(t)
	r.serve(t)
	return r
}

func (r *deviceRig) serve(t *testing.T) {
	t.Helper()
	l := testkit.Value(net.Listen("unix", r.server))(t)
	s := grpc.NewServer()
	storagev1.RegisterIdentityServiceServer(s, r.vendorPlugin)
	storagev1.RegisterStoragePluginServiceServer(s, r.vendorPlugin)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func runDevice(t *testing.T, stdin string, args ...string) (out, notices string, err error) {
	t.Helper()
	return execute(t, newRootCommand(), stdin, append([]string{"device"}, args...)...)
}

func TestDeviceLifecycle(t *testing.T) {
	r := newDeviceRig(t)
	r.says(t, "bdev-pvc-1\n", "create", "pvc-1", "--mode", "block", "--access-mode", "rwo,ROX", "--access-mode", "RWO",
		"--context", "nqn=nqn.2024-01.com.example:vol1", "--context", "opt=a=b,c", "--publish-context", "p=", "--storage-parameter", "s=1")
	if got, want := r.takeCalls(), []string{"GetPluginInfo", "Probe", "Capabilities", "GetSNAPProvider", "CreateDevice"}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	want := &storagev1.CreateDeviceRequest{
		VolumeId: "pvc-1", VolumeMode: "Block", AccessModes: []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_RWO, storagev1.AccessMode_ACCESS_MODE_ROX},
		VolumeContext:     map[string]string{"nqn": "nqn.2024-01.com.example:vol1", "opt": "a=b,c"},
		PublishContext:    map[string]string{"p": ""},
		StorageParameters: map[string]string{"s": "1"},
	}
	if diff := cmp.Diff(want, r.last, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	r.says(t, `VOLUME                 pvc-1
Volume mode            Block
Access modes           RWO, ROX
volume_context/nqn     nqn.2024-01.com.example:vol1
volume_context/opt     a=b,c
publish_context/p      -
storage_parameters/s   1
`, "get", "pvc-1")
	r.says(t, `{
  "volume_id": "pvc-1",
  "device_name": "bdev-pvc-1",
  "volume_mode": "Block",
  "access_modes": [
    "RWO",
    "ROX"
  ],
  "publish_context": {
    "p": ""
  },
  "volume_context": {
    "nqn": "nqn.2024-01.com.example:vol1",
    "opt": "a=b,c"
  },
  "storage_parameters": {
    "s": "1"
  }
}
`, "get", "pvc-1", "bdev-pvc-1", "-o", "json")
	r.refuses(t, []string{"NotFound", "no such device", "cleat device create"}, "get", "pvc-1", "another")
	r.takeCalls()
	r.says(t, "volume pvc-1 has no device bdev-pvc-1\n", "rm", "pvc-1", "bdev-pvc-1")
	r.says(t, "{\n  \"volume_id\": \"pvc-1\",\n  \"device_name\": \"\"\n}\n", "remove", "pvc-1", "-o", "json")
	if got := r.takeCalls(); !slices.Equal(got, []string{"DeleteDevice pvc-1 bdev-pvc-1", "DeleteDevice pvc-1 "}) {
		t.Errorf("%q", got)
	}
	r.says(t, "volume_id: pvc-2\ndevice_name: bdev-pvc-2\n"[len("volume_id: pvc-2\n"):]+"volume_id: pvc-2\n", "create", "pvc-2", "-o", "yaml")
	if r.last.VolumeMode != "Filesystem" || !slices.Equal(r.last.AccessModes, []storagev1.AccessMode{1}) {
		t.Errorf("the defaults are %v", r.last)
	}
}

// A recorded device name is looked up first, as in the node driver.
func TestDeviceRecordedNameIsLookedUp(t *testing.T) {
	r := newDeviceRig(t)
	r.says(t, "bdev-v\n", "create", "v", "--device", "bdev-v")
	if got := r.takeCalls(); !slices.Equal(got[4:], []string{"GetDevice", "CreateDevice"}) {
		t.Errorf("%q", got)
	}
	r.says(t, "bdev-v\n", "create", "v", "--device", "bdev-v")
	if got := r.takeCalls(); !slices.Equal(got[4:], []string{"GetDevice"}) {
		t.Errorf("%q", got)
	}
	r.set(func() { r.fail["GetDevice"] = status.Error(codes.FailedPrecondition, "SNAP is slow") })
	r.refuses(t, []string{"FailedPrecondition", "SNAP is slow"}, "create", "v", "--device", "bdev-v")
	if got := r.takeCalls(); slices.Contains(got, "CreateDevice") {
		t.Errorf("%q", got)
	}
}

func TestDeviceContextsFromAFile(t *testing.T) {
	r := newDeviceRig(t)
	const text = "volume_context:\n  a: file\n  b: \"1\"\npublish_context: {c: d}\n"
	r.says(t, "bdev-v\n", "create", "v", "--from", write(t, text), "--context", "a=flag", "--storage-parameter", "s=t")
	want := &storagev1.CreateDeviceRequest{
		VolumeId: "v", VolumeMode: "Filesystem", AccessModes: []storagev1.AccessMode{1},
		VolumeContext: map[string]string{"a": "flag", "b": "1"}, PublishContext: map[string]string{"c": "d"}, StorageParameters: map[string]string{"s": "t"},
	}
	if diff := cmp.Diff(want, r.last, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if out, _, err := runDevice(t, `{"storage_parameters": {"x": "y"}}`, "create", "w", "--from", "-", "--socket", r.server); err != nil || out != "bdev-w\n" || r.last.StorageParameters["x"] != "y" {
		t.Errorf("%q, %v", out, err)
	}
}

// A command with wrong arguments or a secret key calls nothing; no error has the key.
func TestDeviceRefusesWrongArguments(t *testing.T) {
	r := newDeviceRig(t)
	const key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	for line, words := range map[string][]string{
		"create":                             {"expects VOLUME"},
		"create a b":                         {"expects VOLUME"},
		"get":                                {"DEVICE", "0 argument"},
		"rm a b c":                           {"3 argument"},
		"list x":                             {"no arguments"},
		"probe x":                            {"no arguments"},
		"probe --wait -1s":                   {"negative"},
		"list --page-size -1":                {"negative"},
		"list --timeout -1s":                 {"negative"},
		"list -o xml":                        {"xml"},
		"list --plugin-name x":               {"mutually exclusive"},
		"create v --mode raw":                {"block or filesystem", "raw"},
		"create v --access-mode RWX,RW":      {"ReadWriteOncePod", `"RW"`},
		"create v --access-mode UNSPECIFIED": {"ReadWriteOncePod"},
		"create v --context a":               {"--context expects KEY=VALUE"},
		"create v --publish-context =a":      {"--publish-context expects KEY=VALUE"},
		"create v --storage-parameter a=1 --storage-parameter a=2":            {"--storage-parameter a is set twice"},
		"create v --context psk=" + key:                                       {"volume_context/psk", "nothing was sent", "--key-dir"},
		"create v --publish-context x=" + key:                                 {"publish_context/x"},
		"create v --storage-parameter " + key + "=x":                          {"storage_parameters", "not shown"},
		"create v --context " + key:                                           {"KEY=VALUE"},
		"create v --context " + key + "=1 --context " + key + "=2":            {"not shown"},
		"create v --from /nonexistent":                                        {"--from /nonexistent", "no such file"},
		"create v --from " + write(t, "a: [\n"+key):                           {"invalid YAML"},
		"create v --from " + write(t, key):                                    {"not shown", "unknown field"},
		"create v --from " + write(t, "volume_context: {a: b, a: c}\n"):       {"unique keys"},
		"create v --from " + write(t, "volume_contxt: {a: b}\n"):              {"did you mean volume_context?"},
		"create v --from " + write(t, "other: {a: b}\n"):                      {"the fields are volume_context, publish_context, storage_parameters"},
		"create v --from " + write(t, "publish_context: {port: 4420}\n"):      {`under "port"`, "quote numbers"},
		"create v --from " + write(t, "publish_context: {'"+key+"': true}\n"): {"quote numbers"},
		"create v --from " + write(t, "volume_context:\n  k: '"+key+"'\n"):    {"volume_context/k"},
		"create v --from " + write(t, strings.Repeat("#", 5<<20)):             {"more than"},
	} {
		if err := r.refuses(t, words, strings.Fields(line)...); err != nil && strings.Contains(err.Error(), "ia6zGod") {
			t.Errorf("the error has the key: %v", err)
		}
	}
	r.refuses(t, []string{"VOLUME is empty"}, "create", "")
	r.refuses(t, []string{"VOLUME is empty"}, "get", "")
	if _, _, err := runDevice(t, "", "prob"); err == nil || !strings.Contains(err.Error(), `did you mean "probe"?`) {
		t.Error(err)
	}
	if calls := r.takeCalls(); len(calls) != 0 {
		t.Errorf("%q", calls)
	}
}

func TestDeviceProbe(t *testing.T) {
	r := newDeviceRig(t)
	r.says(t, `PLUGIN            dpu.example.com
Version           1.2
Socket            `+r.server+`
Ready             yes
Announces         TYPE_CREATE_DELETE_BLOCK_DEVICE, TYPE_CREATE_DELETE_FS_DEVICE, TYPE_GET_DEVICE_STATS, TYPE_LIST_DEVICES
SNAP provider     snap
SNAP socket       /var/lib/nvidia/storage/snap/providers/snap/snap.sock
manifest/commit   abc
`, "probe")
	if got, want := r.takeCalls(), []string{"GetPluginInfo", "Probe", "Capabilities", "GetSNAPProvider"}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	for _, c := range []struct {
		name   string
		change func()
		words  []string
		want   deviceProbe
	}{
		{"not ready", func() { r.ready = wrapperspb.Bool(false) }, []string{"not ready", "--wait 1m"}, deviceProbe{}},
		{"ready unset", func() { r.ready = nil }, []string{"unset", "treats as not ready"}, deviceProbe{}},
		{"probe fails", func() { r.fail["Probe"] = status.Error(codes.FailedPrecondition, "the disk is full") }, []string{"Probe", "the disk is full"}, deviceProbe{}},
		{"no capabilities", func() { r.fail["Capabilities"] = status.Error(codes.FailedPrecondition, "SNAP is slow") }, []string{"SNAP is slow"}, deviceProbe{Ready: true}},
		{"no provider", func() { r.fail["GetSNAPProvider"] = status.Error(codes.Unimplemented, "no") }, []string{"GetSNAPProvider", "this method is mandatory"},
			deviceProbe{Ready: true, Capabilities: []string{"TYPE_LIST_DEVICES"}}},
		{"the default provider", func() { r.provider = "" }, nil,
			deviceProbe{Ready: true, Capabilities: []string{"TYPE_LIST_DEVICES"}, SNAP: "/var/lib/nvidia/storage/snap/providers/snap.sock"}},
	} {
		r.set(func() {
			r.fail, r.ready, r.provider = map[string]error{}, wrapperspb.Bool(true), "snap"
			r.capabilities = []storagev1.StoragePluginServiceCapability_RPC_Type{4}
			c.change()
		})
		out, _, err := r.run(t, "", "probe", "-o", "json")
		var got deviceProbe
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		c.want.Socket, c.want.Name, c.want.Version, c.want.Manifest = r.server, "dpu.example.com", "1.2", map[string]string{"commit": "abc"}
		if c.want.Capabilities == nil {
			c.want.Capabilities = []string{}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if (err == nil) != (c.words == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, w := range c.words {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", c.name, err, w)
			}
		}
	}
	if out, _, err := r.run(t, "", "probe"); err != nil || !strings.Contains(out, "providers/snap.sock (current node drivers") {
		t.Errorf("%s %v", out, err)
	}
	r.set(func() { r.fail["GetPluginInfo"] = status.Error(codes.FailedPrecondition, "who am I") })
	r.refuses(t, []string{"who am I"}, "probe")
}

// --wait starts before the plugin, and ends when it is ready.
func TestDeviceProbeWaits(t *testing.T) {
	r := absentDeviceRig(t)
	r.ready = wrapperspb.Bool(false)
	type outcome struct {
		out string
		err error
	}
	ended := make(chan outcome, 1)
	read, written := io.Pipe()
	go func() {
		var out bytes.Buffer
		c := newRootCommand()
		c.SetArgs([]string{"device", "probe", "--wait", "5m", "--socket", r.server, "-o", "json"})
		c.SetOut(&out)
		c.SetErr(written)
		err := c.ExecuteContext(t.Context())
		_ = written.Close()
		ended <- outcome{out.String(), err}
	}()
	notices := make(chan string, 1024)
	go func() {
		defer close(notices)
		for b := make([]byte, 4096); ; {
			n, err := read.Read(b)
			if err != nil {
				return
			}
			notices <- string(b[:n])
		}
	}()
	awaitNotice := func(want string) {
		t.Helper()
		for n := range notices {
			if strings.Contains(n, want) {
				return
			}
		}
		t.Fatalf("no notice has %q", want)
	}
	awaitNotice("no plugin answers")
	r.serve(t)
	awaitNotice("is not ready")
	r.set(func() { r.ready = wrapperspb.Bool(true) })
	for range notices { // until the command has ended
	}
	o := <-ended
	var got deviceProbe
	if err := errors.Join(o.err, json.Unmarshal([]byte(o.out), &got)); err != nil || !got.Ready {
		t.Errorf("%+v", o)
	}
}

// --wait ends on errors that are not transient, and at its timeout.
func TestDeviceProbeWaitEnds(t *testing.T) {
	r := newDeviceRig(t)
	r.set(func() { r.ready = wrapperspb.Bool(false) })
	inTime(t, "the error of the plugin", 300*time.Millisecond, func(wait string) bool {
		out, _, err := r.run(t, "", "probe", "--wait", wait)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s %v", out, err)
		}
		return saysAll(err, "is not ready", "gave up after") && strings.Contains(out, "Ready             no")
	})
	absent := filepath.Join(t.TempDir(), "absent.sock")
	inTime(t, "that the plugin is absent", 300*time.Millisecond, func(wait string) bool {
		_, _, err := runDevice(t, "", "probe", "--wait", wait, "--socket", absent)
		if err == nil {
			t.Fatal("an absent plugin is ready")
		}
		return errors.Is(err, client.ErrNotServed) && saysAll(err, "is the plugin running?")
	})
	for name, change := range map[string]func(){
		"ready unset": func() { r.ready = nil },
		"unserved":    func() { r.fail["Probe"] = status.Error(codes.Unimplemented, "no") },
	} {
		r.set(change)
		begun := time.Now()
		if _, _, err := r.run(t, "", "probe", "--wait", "10m"); err == nil || strings.Contains(err.Error(), "gave up") || time.Since(begun) > 5*time.Minute {
			t.Errorf("%s: %v after %s", name, err, time.Since(begun))
		}
	}
}

// A create reports what the node driver would fail on, as error or as notice.
func TestDeviceCreateFailsLikeNodeDriver(t *testing.T) {
	r := newDeviceRig(t)
	for _, c := range []struct {
		name   string
		change func()
		args   []string
		words  []string
	}{
		{"not ready", func() { r.ready = wrapperspb.Bool(false) }, nil, []string{"no device was created", "no device was created: plugin dpu.example.com: the plugin is not ready", "cleat device probe --wait"}},
		{"ready unset", func() { r.ready = nil }, nil, []string{"no device was created", "unset"}},
		{"another mode", func() { r.capabilities = r.capabilities[1:] }, []string{"--mode", "Block"}, []string{"does not support volume mode Block", "TYPE_CREATE_DELETE_FS_DEVICE"}},
		{"the other mode", func() { r.capabilities = r.capabilities[:1] }, nil, []string{"does not support volume mode Filesystem", "TYPE_CREATE_DELETE_BLOCK_DEVICE"}},
		{"nothing", func() { r.capabilities = nil }, nil, []string{"capabilities: nothing"}},
		{"probe fails", func() { r.fail["Probe"] = status.Error(codes.FailedPrecondition, "full") }, nil, []string{"Probe with FailedPrecondition: full"}},
		{"no info", func() { r.fail["GetPluginInfo"] = status.Error(codes.Unknown, "eh") }, nil, []string{"GetPluginInfo with Unknown: eh"}},
		{"no capabilities", func() { r.fail["Capabilities"] = status.Error(codes.FailedPrecondition, "slow") }, nil, []string{"StoragePluginGetCapabilities with FailedPrecondition: slow"}},
	} {
		r.set(func() {
			r.fail, r.ready = map[string]error{}, wrapperspb.Bool(true)
			r.capabilities = []storagev1.StoragePluginServiceCapability_RPC_Type{1, 2, 3, 4}
			c.change()
		})
		r.refuses(t, c.words, append([]string{"create", "v"}, c.args...)...)
		if slices.Contains(r.takeCalls(), "CreateDevice") {
			t.Errorf("%s: CreateDevice was called", c.name)
		}
	}
	r.set(func() {
		r.ready, r.capabilities = wrapperspb.Bool(true), []storagev1.StoragePluginServiceCapability_RPC_Type{1, 2}
		r.fail = map[string]error{"GetSNAPProvider": status.Error(codes.FailedPrecondition, "no provider")}
	})
	_, notices, err := r.run(t, "", "create", "a-rather-long-name")
	if err != nil || !strings.Contains(notices, "no provider; the node driver continues") || !strings.Contains(notices, "has 23 characters, but SNAP can expose names of at most 17") {
		t.Errorf("%s %v", notices, err)
	}
	if _, notices, err = r.run(t, "", "create", "a-rather-long-name", "--mode", "block"); err != nil || strings.Contains(notices, "characters") {
		t.Errorf("%s %v", notices, err)
	}
	r.set(func() { r.name = func(string) string { return "" } })
	r.refuses(t, []string{"empty device_name"}, "create", "v")
}

func TestDeviceList(t *testing.T) {
	r := newDeviceRig(t)
	entry := func(id string) *storagev1.ListDevicesResponse_Entry {
		return &storagev1.ListDevicesResponse_Entry{VolumeId: id, DeviceName: "d-" + id}
	}
	pages := map[string]*storagev1.ListDevicesResponse{
		"":  {Entries: []*storagev1.ListDevicesResponse_Entry{entry("b"), entry("a\x1b[2J")}, NextToken: "1"},
		"1": {NextToken: "2"},
		"2": {Entries: []*storagev1.ListDevicesResponse_Entry{entry("b"), entry("c")}},
	}
	r.page = func(_ int32, token string) *storagev1.ListDevicesResponse { return pages[token] }
	r.says(t, "VOLUME     DEVICE\nb          d-b\na\\x1b[2J   d-a\\x1b[2J\nc          d-c\n", "list", "--page-size", "2")
	if got := r.takeCalls(); !slices.Equal(got, []string{"ListDevices 2 ", "ListDevices 2 1", "ListDevices 2 2"}) {
		t.Errorf("%q", got)
	}
	out, _, err := r.run(t, "", "ls", "-o", "json")
	var all []deviceName
	if err := errors.Join(err, json.Unmarshal([]byte(out), &all)); err != nil || len(all) != 3 || all[2] != (deviceName{"c", "d-c"}) {
		t.Errorf("%v, %v", all, err)
	}
	pages["2"].NextToken = "1"
	r.refuses(t, []string{"does not end"}, "list")
	pages[""] = &storagev1.ListDevicesResponse{}
	r.says(t, "[]\n", "list", "-o", "json")
}

func TestDeviceAdvice(t *testing.T) {
	r := newDeviceRig(t)
	r.page = func(int32, string) *storagev1.ListDevicesResponse { return &storagev1.ListDevicesResponse{} }
	for _, c := range []struct {
		call  string
		code  codes.Code
		args  []string
		words string
	}{
		{"ListDevices", codes.Unimplemented, []string{"list"}, "cleat device get VOLUME DEVICE"},
		{"ListDevices", codes.Aborted, []string{"list"}, "repeat the command"},
		{"GetDevice", codes.Unimplemented, []string{"get", "v"}, "does not support GetDevice"},
		{"GetDevice", codes.Unavailable, []string{"get", "v"}, "often SNAP"},
		{"CreateDevice", codes.Unimplemented, []string{"create", "v"}, "does not support the creation of devices"},
		{"DeleteDevice", codes.Unimplemented, []string{"rm", "v"}, "does not support the creation of devices"},
		{"Probe", codes.Unimplemented, []string{"create", "v"}, "this method is mandatory"},
	} {
		r.set(func() { r.fail = map[string]error{c.call: status.Error(c.code, "the reason")} })
		err := r.refuses(t, []string{c.call + " with " + c.code.String(), "the reason", c.words}, c.args...)
		if status.Code(err) != c.code {
			t.Errorf("%v has the code %s", err, status.Code(err))
		}
	}
	r.set(func() { r.fail = map[string]error{"GetDevice": status.Error(codes.FailedPrecondition, "the reason")} })
	if err := r.refuses(t, []string{"the reason"}, "get", "v"); strings.Contains(err.Error(), "(") {
		t.Error(err)
	}
	h := newHost(t)
	if _, _, err := runDevice(t, "", "get", "v", "--socket", h.endpoint); err == nil || !strings.Contains(err.Error(), "is not a DPF storage plugin") {
		t.Error(err)
	}
	left := filepath.Join(t.TempDir(), "left.sock")
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: left}))(t)
	l.SetUnlinkOnClose(false)
	testkit.Must(t, l.Close())
	if _, _, err := runDevice(t, "", "get", "v", "--socket", left, "--timeout", "50ms"); err == nil || !strings.Contains(err.Error(), "the socket is stale") {
		t.Error(err)
	}
}

// The error of a call that times out says that it continues, and how to undo it.
func TestDeviceTimeout(t *testing.T) {
	r := newDeviceRig(t)
	release, inside := make(chan struct{}), make(chan struct{}, 8)
	t.Cleanup(func() { close(release) })
	r.name = func(string) string { inside <- struct{}{}; <-release; return "late" }
	inTime(t, "the call for a device", 500*time.Millisecond, func(timeout string) bool {
		_, _, err := r.run(t, "", "create", "v", "--timeout", timeout)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		select {
		case <-inside:
		default:
			return false
		}
		if !saysAll(err, "CreateDevice", "the plugin might still execute the call", "cleat device rm") {
			t.Error(err)
		}
		return true
	})
}

// The socket comes from the command line, else from the environment: from cleat's
// variables before those of the plugin.
func TestDeviceSocketSelection(t *testing.T) {
	a, b := newDeviceRig(t), newDeviceRig(t)
	const named = "/var/lib/nvidia/storage/snap/plugins/"
	for _, c := range []struct {
		name string
		env  map[string]string
		args []string
		want string
	}{
		{"default", nil, nil, named + "cleat/dpu.sock"},
		{"a name", nil, []string{"--plugin-name", "nvidia-block"}, named + "nvidia-block/dpu.sock"},
		{"a socket", nil, []string{"--socket", a.server}, a.server},
		{"a name of the environment", map[string]string{"CLEAT_PLUGIN_NAME": "x"}, nil, named + "x/dpu.sock"},
		{"a name of the samples", map[string]string{"PLUGIN_NAME": "y"}, nil, named + "y/dpu.sock"},
		{"a socket of the environment", map[string]string{"CLEAT_SOCKET": a.server, "PLUGIN_SOCKET_PATH": b.server, "PLUGIN_NAME": "y"}, nil, a.server},
		{"a socket of the plugin", map[string]string{"CLEAT_PLUGIN_SOCKET": b.server}, nil, b.server},
		{"a socket of the samples", map[string]string{"PLUGIN_SOCKET_PATH": b.server}, nil, b.server},
		{"a name beside the environment", map[string]string{"CLEAT_SOCKET": a.server}, []string{"--plugin-name", "z"}, named + "z/dpu.sock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			a.takeCalls()
			b.takeCalls()
			if strings.HasPrefix(c.want, named) { // where no server is
				inTime(t, "that no server has "+c.want, 50*time.Millisecond, func(timeout string) bool {
					_, _, err := runDevice(t, "", append([]string{"probe", "--timeout", timeout}, c.args...)...)
					return saysAll(err, c.want+": ")
				})
			} else if _, _, err := runDevice(t, "", append([]string{"probe"}, c.args...)...); err != nil {
				t.Error(err)
			}
			for server, asked := range map[string]int{a.server: len(a.takeCalls()), b.server: len(b.takeCalls())} {
				if asked > 0 != (server == c.want) {
					t.Errorf("%s has %d calls, want calls to %s only", server, asked, c.want)
				}
			}
		})
	}
	for _, bad := range []string{"", "a/b", "..", "/"} {
		if _, _, err := runDevice(t, "", "probe", "--plugin-name", bad); err == nil || !strings.Contains(err.Error(), "single directory") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, _, err := runDevice(t, "", "probe", "--socket", "dpu.sock"); err == nil || !strings.Contains(err.Error(), "relative path") {
		t.Error(err)
	}
}

// Secret keys that a plugin has stored are hidden.
func TestDeviceGetHidesKeys(t *testing.T) {
	r := newDeviceRig(t)
	const key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
	r.devices["v"] = "d"
	r.last = &storagev1.CreateDeviceRequest{AccessModes: []storagev1.AccessMode{0, 9}, VolumeContext: map[string]string{"psk": key, key: "x", "a": "b"}}
	for _, format := range []string{"table", "json", "yaml"} {
		out, _, err := r.run(t, "", "get", "v", "-o", format)
		if err != nil || strings.Contains(out, "VRLb") || !strings.Contains(out, "not shown") || !strings.Contains(out, "UNSPECIFIED") {
			t.Errorf("%s: %v\n%s", format, err, out)
		}
	}
}

// The shell completes volumes, and then the device.
func TestDeviceCompletion(t *testing.T) {
	r := newDeviceRig(t)
	r.page = func(int32, string) *storagev1.ListDevicesResponse {
		return &storagev1.ListDevicesResponse{Entries: []*storagev1.ListDevicesResponse_Entry{{VolumeId: "pvc-1", DeviceName: "d1"}, {VolumeId: "pvc-2", DeviceName: "d2"}, {VolumeId: "x", DeviceName: "d3"}}}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"rm", "pvc"}, "pvc-1\npvc-2\n:4\n"}, {[]string{"get", "pvc-2", ""}, "d2\n:4\n"}, {[]string{"get", "pvc-2", "d2", ""}, ":4\n"},
		{[]string{"create", "v", "--mode", ""}, "block\nfilesystem\n:4\n"},
	} {
		t.Setenv("CLEAT_SOCKET", r.server)
		out, err := cleat(t, append([]string{"__complete", "device"}, c.args...)...)
		if err != nil || out != c.want {
			t.Errorf("%q: %v, %q", c.args, err, out)
		}
	}
	if _, err := os.Stat(r.server); err != nil {
		t.Error(err)
	}
}
