package expose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
	"github.com/cleatproject/cleat/spdk/spdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const staticPCI = "0000:5e:00.2" // of the double's function that is always there

// rig is a SNAP process with bdevs and fsdevs, and a directory of notes.
type rig struct {
	*spdktest.Process
	dir  string // of the notes
	root string // of the fsdevs
	own  *spdk.Client
}

func newRig(t *testing.T, c spdktest.Config) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "snap") // each note is synced: a disk takes most of the time
	if err != nil {
		t.Fatal(err)
	}
	c.Socket = filepath.Join(dir, "snap.sock")
	p, err := spdktest.NewNetwork(nil).Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	r := &rig{Process: p, dir: filepath.Join(dir, "notes"), root: t.TempDir()}
	r.own = r.client(t)
	return r
}

func snapProcess() spdktest.Config { return spdktest.Config{SNAP: true, Flavour: spdktest.Fork} }

func (r *rig) client(t *testing.T) *spdk.Client {
	t.Helper()
	c, err := spdk.Open(spdk.Config{Socket: r.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// exposer is one as a process of its own would have it.
func (r *rig) exposer(t *testing.T) *Exposer {
	t.Helper()
	e, err := New(Config{RPC: r.client(t), Dir: r.dir})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// put makes the device of a request in SNAP, unless it is there.
func (r *rig) put(t *testing.T, q Request) {
	t.Helper()
	var err error
	if q.Mode == request.Block {
		err = r.own.Do(t.Context(), "bdev_malloc_create", map[string]any{"name": q.Device, "num_blocks": 2048, "block_size": 512})
	} else {
		err = r.own.CreateFsdev(t.Context(), q.Device, r.root)
	}
	if err != nil && !errors.Is(err, spdk.Exists) {
		t.Fatal(err)
	}
}

func blockDevice(name string) Request { return Request{Device: name, Mode: request.Block} }
func fsOf(name string) Request        { return Request{Device: name, Mode: request.Filesystem} }

// left is all that exposures made in the process, and notes.
func (r *rig) left(t *testing.T) []string {
	t.Helper()
	var all []string
	s, ctx := snap.SNAP{RPC: r.own}, t.Context()
	subsystems, err := s.Subsystems(ctx)
	must(t, err)
	for _, sub := range subsystems {
		all = append(all, "subsystem "+sub.NQN)
	}
	functions, err := s.Functions(ctx)
	must(t, err)
	for _, f := range functions {
		if f.PCI != staticPCI || f.Controller != "" {
			all = append(all, "function "+f.VUID+" of "+f.Controller)
		}
	}
	lists, err := s.FSFunctions(ctx)
	must(t, err)
	for _, l := range lists {
		for _, f := range l.Functions {
			all = append(all, "virtio-fs function "+f.VUID)
		}
	}
	devices, err := s.FSDevices(ctx)
	must(t, err)
	for _, d := range devices {
		all = append(all, "virtio-fs device "+d.Name)
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, "note "+e.Name())
	}
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// count is how many objects of a kind are left.
func count(all []string, kind string) int {
	n := 0
	for _, text := range all {
		if strings.HasPrefix(text, kind+" ") {
			n++
		}
	}
	return n
}

// changes are the calls that change something, in their order.
func (r *rig) changes() []string {
	var all []string
	for _, c := range r.Calls() {
		if reads := []string{"list", "get"}; !slices.ContainsFunc(reads, func(w string) bool { return strings.Contains(c.Method, w) }) {
			all = append(all, c.Method)
		}
	}
	return all
}

func TestBlock(t *testing.T) {
	envelope := snapProcess()
	envelope.Envelope = true
	silent := snapProcess()
	silent.Without = []string{controllerList}
	for name, c := range map[string]spdktest.Config{"plain": snapProcess(), "envelope": envelope, "controllers not listed": silent} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c)
			q := blockDevice("nvme_0n1")
			r.put(t, q)
			r.Forget()
			shown, err := r.exposer(t).Expose(t.Context(), q)
			must(t, err)
			if shown.VUID == "" || shown.PCI == "" || shown.Controller == "" || len(shown.UUID) != 36 {
				t.Errorf("%+v", shown)
			}
			want := Exposed{Device: "nvme_0n1", Mode: "Block", NQN: "nqn.2022-10.io.nvda.nvme:dpf-nvme-0n1-432b7fd0", NSID: 1,
				VUID: shown.VUID, PCI: shown.PCI, Controller: shown.Controller, UUID: shown.UUID}
			if diff := cmp.Diff(want, shown); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]string{
				"nvme_subsystem_create", "nvme_namespace_create", "nvme_function_create", "nvme_controller_create",
				"nvme_controller_attach_ns", "nvme_controller_resume", "nvme_controller_hotplug",
			}, r.changes()); diff != "" {
				t.Errorf("the order:\n%s", diff)
			}
			again, err := r.exposer(t).Expose(t.Context(), q)
			if err != nil || again != shown || count(r.left(t), "function") != 1 {
				t.Errorf("once more: %+v, %v, %v", again, err, r.left(t))
			}
			r.Forget()
			must(t, r.exposer(t).Hide(t.Context(), q))
			if diff := cmp.Diff([]string{
				"nvme_controller_hotunplug", "nvme_controller_detach_ns", "nvme_controller_destroy",
				"nvme_namespace_destroy", "nvme_function_destroy", "nvme_subsystem_destroy",
			}, r.changes()); diff != "" {
				t.Errorf("the order of hiding:\n%s", diff)
			}
			r.Forget()
			must(t, r.exposer(t).Hide(t.Context(), q))
			if left := r.left(t); len(left) > 0 || len(r.changes()) > 0 {
				t.Errorf("left are %v; hiding it again asks %v", left, r.changes())
			}
			if _, err := r.own.Bdev(t.Context(), q.Device); err != nil {
				t.Errorf("the bdev: %v", err)
			}
		})
	}
}

func TestFilesystem(t *testing.T) {
	for name, envelope := range map[string]bool{"plain": false, "envelope": true} {
		t.Run(name, func(t *testing.T) {
			c := snapProcess()
			c.Envelope = envelope
			r := newRig(t, c)
			q := fsOf("c0123456789abcdef") // as long as they may be
			q.Parameters = map[string]any{"num_request_queues": 3}
			r.put(t, q)
			r.Forget()
			shown, err := r.exposer(t).Expose(t.Context(), q)
			must(t, err)
			want := Exposed{Device: q.Device, Mode: "Filesystem", Name: "dev_c0123456789abcdef", Tag: "c0123456789abcdeftag", VUID: shown.VUID, PCI: shown.PCI}
			if diff := cmp.Diff(want, shown); diff != "" || shown.VUID == "" || shown.PCI == "" {
				t.Errorf("%+v: %s", shown, diff)
			}
			if diff := cmp.Diff([]string{
				"virtio_fs_transport_create", "virtio_fs_doca_manager_create", "virtio_fs_transport_start", "virtio_fs_doca_function_create",
				"virtio_fs_device_create", "virtio_fs_doca_device_modify", "virtio_fs_device_start", "virtio_fs_doca_device_hotplug",
			}, r.changes()); diff != "" {
				t.Errorf("the order:\n%s", diff)
			}
			if devices, err := (snap.SNAP{RPC: r.own}).FSDevices(t.Context()); err != nil || len(devices) != 1 || devices[0].Queues != 3 {
				t.Errorf("%+v, %v", devices, err)
			}
			r.Forget()
			again, err := r.exposer(t).Expose(t.Context(), q)
			if err != nil || again != shown || len(r.changes()) > 0 {
				t.Errorf("once more: %+v, %v, %v", again, err, r.changes())
			}
			r.Forget()
			must(t, r.exposer(t).Hide(t.Context(), q))
			if diff := cmp.Diff([]string{
				"virtio_fs_doca_device_hotunplug", "virtio_fs_device_stop", "virtio_fs_device_destroy", "virtio_fs_doca_function_destroy",
			}, r.changes()); diff != "" {
				t.Errorf("the order of hiding:\n%s", diff)
			}
			must(t, r.exposer(t).Hide(t.Context(), q))
			if left := r.left(t); len(left) > 0 {
				t.Errorf("left are %v", left)
			}
		})
	}
}

// A function that is always there is taken by its address, and given back.
func TestGivenFunction(t *testing.T) {
	r := newRig(t, snapProcess())
	q, other := blockDevice("a"), blockDevice("b")
	r.put(t, q)
	r.put(t, other)
	q.PCI, other.PCI = "5E:00.2", staticPCI // without its domain
	q.NSID, q.UUID = 7, "6F3A1E2C-0a7b-4c53-9d55-3f9f4f2a1b01"
	q.Parameters = map[string]any{"num_queues": 4, "write_zeroes": true}
	r.Forget()
	shown, err := r.exposer(t).Expose(t.Context(), q)
	if err != nil || shown.PCI != staticPCI || shown.NSID != 7 || !strings.EqualFold(shown.UUID, q.UUID) {
		t.Fatalf("%+v, %v", shown, err)
	}
	for _, c := range r.Calls() {
		if c.Method != "nvme_controller_create" {
			continue
		}
		want := map[string]any{"num_queues": 4.0, "write_zeroes": true, "suspended": true, "nqn": shown.NQN, "pci_bdf": staticPCI}
		var got map[string]any
		must(t, json.Unmarshal(c.Params, &got))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if slices.Contains(r.changes(), "nvme_function_create") || slices.Contains(r.changes(), "nvme_controller_hotplug") {
		t.Errorf("%v", r.changes())
	}
	for name, c := range map[string]struct {
		q    Request
		kind errs.Kind
		say  string
	}{
		"a function that is taken":       {other, errs.Busy, "carries the controller " + shown.Controller},
		"no such function":               {Request{Device: "b", Mode: request.Block, PCI: "0000:01:00.0"}, errs.NotFound, "no NVMe function 0000:01:00.0; free are none"},
		"no such VUID":                   {Request{Device: "b", Mode: request.Block, VUID: "MT"}, errs.NotFound, "no NVMe function MT"},
		"another function":               {Request{Device: "a", Mode: request.Block, VUID: "MT"}, errs.Exists, "on the function " + shown.VUID},
		"another id":                     {Request{Device: "a", Mode: request.Block, NSID: 8}, errs.Exists, "namespace 7 with the UUID"},
		"another UUID":                   {Request{Device: "a", Mode: request.Block, UUID: "6f3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b02"}, errs.Exists, "hide it first"},
		"a bdev that is not there":       {blockDevice("x"), errs.NotFound, "create the namespace: nvme_namespace_create: No such device"},
		"a file system that is not":      {fsOf("x"), errs.NotFound, "create the virtio-fs device: virtio_fs_device_create: No such device"},
		"a virtio-fs function that isnt": {Request{Device: "x", Mode: request.Filesystem, VUID: "MT"}, errs.NotFound, "no virtio-fs function MT"},
	} {
		_, err := r.exposer(t).Expose(t.Context(), c.q)
		if errs.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.say) || !strings.HasPrefix(fmt.Sprint(err), "expose "+c.q.Device+": ") {
			t.Errorf("%s: %v (%v), want %v and %q", name, err, errs.KindOf(err), c.kind, c.say)
		}
	}
	if left := r.left(t); len(left) != 2 {
		t.Errorf("the refusals left something: %v", left)
	}
	must(t, r.exposer(t).Hide(t.Context(), blockDevice("a")))
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// A function that somebody else made is used when it is named, and goes with the
// exposure.
func TestGivenVUID(t *testing.T) {
	r := newRig(t, snapProcess())
	q := blockDevice("a")
	r.put(t, q)
	vuid, err := snap.SNAP{RPC: r.own}.CreateFunction(t.Context())
	must(t, err)
	q.VUID = vuid
	shown, err := r.exposer(t).Expose(t.Context(), q)
	if err != nil || shown.VUID != vuid || shown.PCI == "" {
		t.Fatalf("%+v, %v", shown, err)
	}
	must(t, r.exposer(t).Hide(t.Context(), blockDevice("a")))
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// What others have in SNAP is neither taken nor removed: functions that are
// free, and a subsystem that the device shares.
func TestOthersThings(t *testing.T) {
	r := newRig(t, snapProcess())
	s, ctx := snap.SNAP{RPC: r.own}, t.Context()
	free, err := s.CreateFunction(ctx)
	must(t, err)
	must(t, s.CreateSubsystem(ctx, "nqn.shared"))
	for i, name := range []string{"a", "b"} {
		r.put(t, blockDevice(name))
		must(t, s.CreateNamespace(ctx, "nqn.shared", snap.Namespace{Bdev: name, NSID: uint32(i + 1), UUID: "6f3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b0" + fmt.Sprint(i)}))
	}
	static, err := s.CreateController(ctx, snap.Controller{NQN: "nqn.shared", PCI: staticPCI})
	must(t, err)
	must(t, s.AttachNamespace(ctx, static, 2))

	shown, err := r.exposer(t).Expose(ctx, blockDevice("a"))
	if err != nil || shown.NQN != "nqn.shared" || shown.VUID == free || shown.Controller == static {
		t.Fatalf("%+v, %v", shown, err)
	}
	must(t, r.exposer(t).Hide(ctx, blockDevice("a")))
	// Two devices on one controller: it stays with the other.
	must(t, s.CreateNamespace(ctx, "nqn.shared", snap.Namespace{Bdev: "a", NSID: 1, UUID: "6f3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b00"}))
	must(t, s.AttachNamespace(ctx, static, 1))
	must(t, r.exposer(t).Hide(ctx, blockDevice("a")))

	all, err := s.Subsystems(ctx)
	must(t, err)
	want := []snap.Subsystem{{NQN: "nqn.shared", Controllers: []snap.ControllerRef{{ID: static}}, Namespaces: []snap.Namespace{
		{Bdev: "b", NSID: 2, UUID: "6f3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b01", Controllers: []snap.ControllerRef{{ID: static}}},
	}}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Error(diff)
	}
	if left := r.left(t); len(left) != 3 || count(left, "function "+free) != 1 {
		t.Errorf("left are %v", left)
	}
}

func TestNoSNAPProcess(t *testing.T) {
	plain := newRig(t, spdktest.Config{})
	some := snapProcess()
	some.Without = []string{"nvme_controller_hotplug", "virtio_fs_get_devices"}
	half := newRig(t, some)
	for name, c := range map[string]struct {
		rig  *rig
		call func(context.Context, *Exposer) error
		say  []string
	}{
		"expose a bdev": {plain, func(ctx context.Context, e *Exposer) error { _, err := e.Expose(ctx, blockDevice("a")); return err },
			[]string{"is no SNAP process", `"nvme_subsystem_create"`, `"nvme_controller_hotplug"`}},
		"expose a file system": {plain, func(ctx context.Context, e *Exposer) error { _, err := e.Expose(ctx, fsOf("a")); return err },
			[]string{"is no SNAP process", `"virtio_fs_device_create"`}},
		"hide a bdev":        {plain, func(ctx context.Context, e *Exposer) error { return e.Hide(ctx, blockDevice("a")) }, []string{"is no SNAP process", `"nvme_subsystem_list"`}},
		"hide a file system": {plain, func(ctx context.Context, e *Exposer) error { return e.Hide(ctx, fsOf("a")) }, []string{"is no SNAP process", `"virtio_fs_get_devices"`}},
		"half a bdev": {half, func(ctx context.Context, e *Exposer) error { _, err := e.Expose(ctx, blockDevice("a")); return err },
			[]string{"does not expose in the mode Block", `the methods ["nvme_controller_hotplug"]`}},
		"half a file system": {half, func(ctx context.Context, e *Exposer) error { return e.Hide(ctx, fsOf("a")) }, []string{`the methods ["virtio_fs_get_devices"]`}},
	} {
		err := c.call(t.Context(), c.rig.exposer(t))
		if errs.KindOf(err) != errs.Unsupported {
			t.Errorf("%s: %v", name, err)
		}
		for _, say := range c.say {
			if !strings.Contains(fmt.Sprint(err), say) {
				t.Errorf("%s: %v does not say %q", name, err, say)
			}
		}
	}
	// What is not needed need not be there.
	half.put(t, blockDevice("a"))
	q := blockDevice("a")
	q.PCI = staticPCI
	if _, err := half.exposer(t).Expose(t.Context(), q); err != nil {
		t.Error(err)
	}
}
