package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// lose restarts the plugin without its record.
func (r *rig) lose() {
	r.t.Helper()
	r.stop()
	testkit.Must(r.t, os.Remove(filepath.Join(r.dir, "dpu.db")))
	r.start()
}

// Unrecorded devices are deleted by name if they belong to the volume and are
// not exposed; without a name if that depends on the volume.
func TestDeleteWithoutRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{Flavour: spdktest.Fork, SNAP: true}, nil)
	r.target(one, 1)
	r.pools.make(t, "disk")
	kinds := []request.Create{nvme("a", one), local("b", "disk", request.Block), local("c", "tree", request.Filesystem)}
	for _, q := range kinds {
		name := r.create(q)
		r.lose()
		if q.Volume != "a" { // a controller's name does not depend on the volume
			r.delete("another", name)
			r.delete("another", "")
			r.delete(q.Volume, "never")
			r.has(q.Volume, r.create(q))
			r.lose()
			r.delete(q.Volume, "")
			r.empty()
			r.create(q)
			r.lose()
		}
		r.delete(q.Volume, name)
		r.empty()
	}
}

// A restart of SNAP leaves the mount of a file system device.
func TestDeleteWithoutRecordAfterARestartOfSNAP(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{Flavour: spdktest.Fork, SNAP: true}, nil)
	q := nfs("v")
	for _, isNamed := range []bool{true, false} {
		name := r.create(q)
		r.lose()
		testkit.Must(t, r.snap.Restart())
		if !isNamed {
			name = ""
		}
		r.delete("v", name)
		if left := r.mounts.names(); len(left) > 0 {
			t.Errorf("DeleteDevice(v, %q) is OK, and %q are mounted", name, left)
		}
		r.empty()
	}
}

// Whether a device exists is not known while SNAP is away.
func TestDeleteWithoutRecordWhileSNAPIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	testkit.Must(t, r.snap.Close())
	for _, name := range []string{"", "nvme_othern1"} {
		err := r.plugin.Delete(t.Context(), request.Device{Volume: "v", Name: name})
		testkit.WantError(t, "DeleteDevice of "+name, err, errs.Unavailable, "volume v")
	}
}

func TestDeleteWithoutRecordOfWhatAHostSees(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, 2)
	a, b := nvme("a", one, "nsId", "1"), nvme("b", one, "nsId", "2")
	nameA, nameB := r.create(a), r.create(b)
	const emulated = "nqn.2022-10.io.nvda.nvme:dpf-a"
	ask[any](r, "nvme_subsystem_create", map[string]any{"nqn": emulated})
	ask[any](r, "nvme_namespace_create", map[string]any{"bdev_type": "spdk", "nqn": emulated, "nsid": 1, "uuid": uuidOf(one, 1), "bdev_name": nameA})
	r.lose()
	refused := func(what string) {
		t.Helper()
		err := r.plugin.Delete(t.Context(), request.Device{Volume: "a", Name: nameA})
		if !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), emulated) {
			t.Errorf("DeleteDevice %s: %v", what, err)
		}
	}
	refused("of an exposed device")
	r.create(b)
	refused("of an exposed device whose controller another volume uses")
	ask[any](r, "nvme_namespace_destroy", map[string]any{"nqn": emulated, "nsid": 1})
	r.delete("a", nameA) // the controller stays for b
	r.has("b", nameB)
	r.delete("b", nameB)
	r.empty()
}

// A recorded removal continues after a crash.
func TestDeleteWithoutRecordIsResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, 1)
	name := r.create(nvme("a", one))
	r.lose()
	r.snap.Inject(spdktest.Fault{Method: "bdev_nvme_detach_controller", Times: 1, Error: &spdktest.Error{Code: -110, Message: "Connection timed out"}})
	if err := r.plugin.Delete(t.Context(), request.Device{Volume: "a", Name: name}); err == nil {
		t.Error("the device stayed, and DeleteDevice is OK")
	}
	r.restart()
	r.empty()
}

// sample attaches a subsystem as NVIDIA's sample plugin does for a volume.
func (r *rig) sample(volumeID, nqn string) {
	r.t.Helper()
	ask[any](r, "bdev_nvme_attach_controller", map[string]any{
		"name": "nvme_" + volumeID, "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": nqn,
	})
}

// The sample plugin's objects are removed with the last volume that uses them.
func TestDeviceOfTheSample(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, 2)
	r.sample("v", one)
	r.refused(nvme("v", one, "nsId", "9"), "no namespace with nsId 9")
	if got := r.controllers(); !slices.Equal(got, []string{"nvme_v"}) {
		t.Fatalf("after a call that failed SNAP has controllers %q", got)
	}
	v, w := nvme("v", one, "nsId", "1"), nvme("w", one, "nsId", "2")
	if got := r.create(v); got != "nvme_vn1" {
		t.Errorf("device %s", got)
	}
	if got := r.create(w); got != "nvme_vn2" {
		t.Errorf("device %s", got)
	}
	r.restart()
	r.has("v", r.create(v))
	r.delete("v", "nvme_vn1")
	r.has("w", "nvme_vn2")
	r.delete("w", "nvme_vn2")
	r.empty()
}

func TestDeviceOfTheSampleWithoutRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, 2)
	r.sample("v", one)
	r.delete("other", "nvme_vn1")
	if got := r.controllers(); len(got) != 1 {
		t.Fatalf("the DeleteDevice of another volume removed it: %q", got)
	}
	r.create(nvme("w", one, "nsId", "2"))
	r.delete("v", "nvme_vn1") // kept for the other volume
	r.has("w", "nvme_vn2")
	r.delete("w", "nvme_vn2")
	r.empty()
	r.sample("v", one)
	err := r.plugin.Delete(t.Context(), request.Device{Volume: "v"})
	testkit.WantError(t, "DeleteDevice without a name", err, errs.Precondition, "nvme_v", "bdev_nvme_detach_controller")
	r.delete("v", "nvme_vn1")
	r.empty()
}

// Foreign objects are kept.
func TestDeviceOfTheSampleOfAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, 1)
	r.sample("other", one)
	r.create(nvme("v", one))
	r.delete("v", "")
	r.create(nvme("v", one))
	r.lose()
	const emulated = "nqn.2022-10.io.nvda.nvme:dpf-v"
	ask[any](r, "nvme_subsystem_create", map[string]any{"nqn": emulated})
	ask[any](r, "nvme_namespace_create", map[string]any{"bdev_type": "spdk", "nqn": emulated, "nsid": 1, "uuid": uuidOf(one, 1), "bdev_name": "nvme_othern1"})
	err := r.plugin.Delete(t.Context(), request.Device{Volume: "v", Name: "nvme_othern1"})
	testkit.WantError(t, "DeleteDevice of what a host sees", err, errs.Precondition, emulated)
	ask[any](r, "nvme_namespace_destroy", map[string]any{"nqn": emulated, "nsid": 1})
	r.delete("v", "nvme_othern1")
	if got := r.controllers(); !slices.Equal(got, []string{"nvme_other"}) {
		t.Errorf("controllers %q", got)
	}
	ask[any](r, "bdev_nvme_detach_controller", map[string]any{"name": "nvme_other"})
}
