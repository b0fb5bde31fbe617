package snap_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params any             `json:"params"`
}

// serve answers every request with a result, one at a time and without a
// newline, as SNAP does, and tells what it heard.
func serve(t *testing.T, result string) (snap.SNAP, <-chan request) {
	t.Helper()
	dir, err := os.MkdirTemp("", "snap")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "snap.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	heard, over := make(chan request, 10), make(chan struct{})
	go func() {
		defer close(over)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		for d := json.NewDecoder(conn); ; {
			var r request
			if d.Decode(&r) != nil {
				return
			}
			heard <- r
			if _, err := conn.Write([]byte(`{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":` + result + `}`)); err != nil {
				return
			}
		}
	}()
	client, err := spdk.Open(spdk.Config{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = l.Close()
		<-over
		_ = os.RemoveAll(dir)
	})
	return snap.SNAP{RPC: client}, heard
}

func object(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCalls(t *testing.T) {
	const (
		done = `{"status":"success"}`
		subs = `[{"nqn":"nqn.s","sn":"1","mn":"SNAP","nn":4294967294,"mnan":1024,"controllers":[{"ctrl_id":"NVMeCtrl1"}],
			"namespaces":[{"nqn":"nqn.s","nsid":1,"uuid":"u","bdev":"nv0n1","ready":"true","max inflights per weight":0,"controllers":[{"ctrl_id":"NVMeCtrl1"}]}]}]`
		functions = `[{"hotplugged":true,"emulation_type":"NVME","pf_index":0,"pci_bdf":"26:00.0","vhca_id":7,"vuid":"V","ctrl_id":"NVMeCtrl1",
			"vfs":[{"hotplugged":false,"emulation_type":"NVME","pf_index":0,"vf_index":0,"pci_bdf":"26:00.1","vhca_id":8,"vuid":"W"}]}]`
	)
	refs := []snap.ControllerRef{{ID: "NVMeCtrl1"}}
	only := func(err error) (any, error) { return nil, err }
	for name, c := range map[string]struct {
		result string
		call   func(context.Context, snap.SNAP) (any, error)
		method string
		params string
		want   any
	}{
		"subsystems": {subs, func(ctx context.Context, s snap.SNAP) (any, error) { return s.Subsystems(ctx) }, "nvme_subsystem_list", `null`,
			[]snap.Subsystem{{NQN: "nqn.s", Controllers: refs, Namespaces: []snap.Namespace{{Bdev: "nv0n1", NSID: 1, UUID: "u", Controllers: refs}}}}},
		"make a subsystem":   {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.CreateSubsystem(ctx, "nqn.s")) }, "nvme_subsystem_create", `{"nqn":"nqn.s"}`, nil},
		"remove a subsystem": {`true`, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.DestroySubsystem(ctx, "nqn.s")) }, "nvme_subsystem_destroy", `{"nqn":"nqn.s"}`, nil},
		"make a namespace": {`null`, func(ctx context.Context, s snap.SNAP) (any, error) {
			return only(s.CreateNamespace(ctx, "nqn.s", snap.Namespace{Bdev: "nv0n1", NSID: 1, UUID: "u"}))
		}, "nvme_namespace_create", `{"bdev_type":"spdk","nqn":"nqn.s","nsid":1,"uuid":"u","bdev_name":"nv0n1"}`, nil},
		"remove a namespace": {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.DestroyNamespace(ctx, "nqn.s", 1)) }, "nvme_namespace_destroy", `{"nqn":"nqn.s","nsid":1}`, nil},
		"make a controller": {`{"ctrl_id":"NVMeCtrl1","bdf":"26:00.0"}`, func(ctx context.Context, s snap.SNAP) (any, error) {
			return s.CreateController(ctx, snap.Controller{NQN: "nqn.s", PCI: "26:00.0", Suspended: true, Parameters: map[string]any{"num_queues": 4, "nqn": "nqn.evil"}})
		}, "nvme_controller_create", `{"num_queues":4,"nqn":"nqn.s","suspended":true,"pci_bdf":"26:00.0"}`, "NVMeCtrl1"},
		"make a controller by VUID": {`{"ctrl_id":"NVMeCtrl1"}`, func(ctx context.Context, s snap.SNAP) (any, error) {
			return s.CreateController(ctx, snap.Controller{NQN: "nqn.s", VUID: "V"})
		}, "nvme_controller_create", `{"nqn":"nqn.s","suspended":false,"vuid":"V"}`, "NVMeCtrl1"},
		"remove a controller": {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.DestroyController(ctx, "c")) }, "nvme_controller_destroy", `{"ctrl_id":"c","force":true}`, nil},
		"attach":              {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.AttachNamespace(ctx, "c", 1)) }, "nvme_controller_attach_ns", `{"ctrl_id":"c","nsid":1}`, nil},
		"detach":              {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.DetachNamespace(ctx, "c", 1)) }, "nvme_controller_detach_ns", `{"ctrl_id":"c","nsid":1}`, nil},
		"resume":              {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.ResumeController(ctx, "c")) }, "nvme_controller_resume", `{"ctrl_id":"c"}`, nil},
		"plug":                {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.PlugController(ctx, "c")) }, "nvme_controller_hotplug", `{"ctrl_id":"c","wait_for_done":true}`, nil},
		"unplug":              {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.UnplugController(ctx, "c")) }, "nvme_controller_hotunplug", `{"ctrl_id":"c","wait_for_done":true}`, nil},
		"functions": {functions, func(ctx context.Context, s snap.SNAP) (any, error) { return s.Functions(ctx) }, "emulation_function_list", `{"all":true}`,
			[]snap.Function{{EmulationType: snap.EmulationNVMe, Hotplugged: true, PCI: "26:00.0", VUID: "V", Controller: "NVMeCtrl1", VFs: []snap.Function{{EmulationType: "NVME", PCI: "26:00.1", VUID: "W"}}}}},
		"make a function":   {`{"vhca_id":7,"vuid":"V"}`, func(ctx context.Context, s snap.SNAP) (any, error) { return s.CreateFunction(ctx) }, "nvme_function_create", `null`, "V"},
		"remove a function": {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.DestroyFunction(ctx, "V")) }, "nvme_function_destroy", `{"vuid":"V"}`, nil},

		"transports": {`[{"name":"DOCA","state":"started","managers":[{"name":"mlx5_0"}]}]`, func(ctx context.Context, s snap.SNAP) (any, error) { return s.Transports(ctx) }, "virtio_fs_get_transports", `null`,
			[]snap.Transport{{Name: "DOCA", State: "started", Managers: []snap.Manager{{Name: "mlx5_0"}}}}},
		"make the transport":  {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.CreateTransport(ctx)) }, "virtio_fs_transport_create", `{"transport_name":"DOCA"}`, nil},
		"start the transport": {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.StartTransport(ctx)) }, "virtio_fs_transport_start", `{"transport_name":"DOCA"}`, nil},
		"possible managers":   {`[{"name":"mlx5_0"}]`, func(ctx context.Context, s snap.SNAP) (any, error) { return s.PossibleManagers(ctx) }, "virtio_fs_doca_get_possible_managers", `null`, []snap.Manager{{Name: "mlx5_0"}}},
		"managers":            {`[]`, func(ctx context.Context, s snap.SNAP) (any, error) { return s.Managers(ctx) }, "virtio_fs_doca_get_managers", `null`, []snap.Manager{}},
		"make a manager":      {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.CreateManager(ctx, "mlx5_0")) }, "virtio_fs_doca_manager_create", `{"manager":"mlx5_0"}`, nil},
		"functions of fs": {`[{"manager":"mlx5_0","Function List":[{"hot pluggable":"true","pci_address":"26:0c.0","vuid":"V","function_type":"VF"}]}]`,
			func(ctx context.Context, s snap.SNAP) (any, error) { return s.FSFunctions(ctx) }, "virtio_fs_doca_get_functions", `null`,
			[]snap.FSFunctions{{Manager: "mlx5_0", Functions: []snap.FSFunction{{PCI: "26:0c.0", VUID: "V", Type: "VF"}}}}},
		"make a function of fs": {`"V"`, func(ctx context.Context, s snap.SNAP) (any, error) { return s.CreateFSFunction(ctx, "mlx5_0") }, "virtio_fs_doca_function_create", `{"manager":"mlx5_0"}`, "V"},
		"remove a function of fs": {done, func(ctx context.Context, s snap.SNAP) (any, error) {
			return only(s.DestroyFSFunction(ctx, "mlx5_0", "V"))
		}, "virtio_fs_doca_function_destroy", `{"manager":"mlx5_0","vuid":"V"}`, nil},
		"devices": {`[{"name":"dev_f","transport_name":"DOCA","state":"running","fsdev":"f","tag":"ftag","queue_size":256,"num_request_queues":8}]`,
			func(ctx context.Context, s snap.SNAP) (any, error) { return s.FSDevices(ctx) }, "virtio_fs_get_devices", `null`,
			[]snap.FSDevice{{Name: "dev_f", State: "running", Fsdev: "f", Tag: "ftag", Queues: 8}}},
		"make a device": {done, func(ctx context.Context, s snap.SNAP) (any, error) {
			return only(s.CreateFSDevice(ctx, snap.NewFSDevice{Name: "dev_f", Fsdev: "f", Tag: "ftag", Queues: 8, QueueSize: 256}))
		}, "virtio_fs_device_create", `{"transport_name":"DOCA","dev_name":"dev_f","tag":"ftag","fsdev":"f","num_request_queues":8,"queue_size":256}`, nil},
		"place a device": {done, func(ctx context.Context, s snap.SNAP) (any, error) {
			return only(s.PlaceFSDevice(ctx, "dev_f", "mlx5_0", "V"))
		}, "virtio_fs_doca_device_modify", `{"dev_name":"dev_f","manager":"mlx5_0","vuid":"V"}`, nil},
		"start a device":  {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.StartFSDevice(ctx, "dev_f")) }, "virtio_fs_device_start", `{"dev_name":"dev_f"}`, nil},
		"stop a device":   {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.StopFSDevice(ctx, "dev_f")) }, "virtio_fs_device_stop", `{"dev_name":"dev_f"}`, nil},
		"remove a device": {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.DestroyFSDevice(ctx, "dev_f")) }, "virtio_fs_device_destroy", `{"dev_name":"dev_f"}`, nil},
		"plug a device":   {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.PlugFSDevice(ctx, "dev_f")) }, "virtio_fs_doca_device_hotplug", `{"dev_name":"dev_f","wait_for_done":true}`, nil},
		"unplug a device": {done, func(ctx context.Context, s snap.SNAP) (any, error) { return only(s.UnplugFSDevice(ctx, "dev_f")) }, "virtio_fs_doca_device_hotunplug", `{"dev_name":"dev_f","wait_for_done":true}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, heard := serve(t, c.result)
			got, err := c.call(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("the result:\n%s", diff)
			}
			r := <-heard
			if diff := cmp.Diff([]any{c.method, object(t, c.params)}, []any{r.Method, r.Params}); diff != "" {
				t.Errorf("the request:\n%s", diff)
			}
		})
	}
}

// What was made without a name could never be removed.
func TestNamelessResults(t *testing.T) {
	for name, call := range map[string]func(context.Context, snap.SNAP) (string, error){
		"controller": func(ctx context.Context, s snap.SNAP) (string, error) {
			return s.CreateController(ctx, snap.Controller{NQN: "n", PCI: "1"})
		},
		"function": func(ctx context.Context, s snap.SNAP) (string, error) { return s.CreateFunction(ctx) },
	} {
		s, _ := serve(t, `{}`)
		if _, err := call(t.Context(), s); errs.KindOf(err) != errs.Internal || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, _ := serve(t, `""`)
	if _, err := s.CreateFSFunction(t.Context(), "m"); errs.KindOf(err) != errs.Internal || err == nil {
		t.Errorf("fs function: %v", err)
	}
}

func TestControllersSitOnOneFunction(t *testing.T) {
	s, heard := serve(t, `{}`)
	for _, c := range []snap.Controller{{NQN: "n"}, {NQN: "n", PCI: "1", VUID: "2"}} {
		if _, err := s.CreateController(t.Context(), c); errs.KindOf(err) != errs.Invalid || err == nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if len(heard) != 0 {
		t.Errorf("asked %+v", <-heard)
	}
}

func TestWhatIsExposed(t *testing.T) {
	block := []string{"nvme_subsystem_list", "nvme_namespace_create", "nvme_controller_create", "emulation_function_list"}
	fs := []string{"virtio_fs_get_devices", "virtio_fs_device_create", "virtio_fs_doca_get_functions"}
	if m := spdk.NewMethodSet(block...); !snap.ExposesBlock(m) || snap.ExposesFilesystems(m) {
		t.Error("a process for block devices")
	}
	if m := spdk.NewMethodSet(fs...); snap.ExposesBlock(m) || !snap.ExposesFilesystems(m) {
		t.Error("a process for file systems")
	}
	if m := spdk.NewMethodSet(block[1:]...); snap.ExposesBlock(m) {
		t.Error("one method is missing")
	}
}
