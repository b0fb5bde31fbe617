package plugin

import (
	"slices"
	"testing"

	"github.com/cleatproject/cleat/spdk/spdktest"
)

// sample attaches a subsystem as NVIDIA's sample plugin does for a volume.
func (r *rig) sample(volumeID, nqn string) {
	r.t.Helper()
	ask[any](r, "bdev_nvme_attach_controller", map[string]any{
		"name": "nvme_" + volumeID, "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": nqn,
	})
}

// What the sample plugin made for a volume is that volume's, and goes when no
// volume uses it any more.
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
	r.delete("v", "nvme_vn1") // it stays for the other volume
	r.has("w", "nvme_vn2")
	r.delete("w", "nvme_vn2")
	r.empty()
	r.sample("v", one)
	r.delete("v", "nvme_vn1")
	r.empty()
}

// What neither made is left.
func TestDeviceOfTheSampleOfAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, 1)
	r.sample("other", one)
	r.create(nvme("v", one))
	r.delete("v", "")
	r.delete("v", "nvme_othern1")
	if got := r.controllers(); !slices.Equal(got, []string{"nvme_other"}) {
		t.Errorf("controllers %q", got)
	}
	ask[any](r, "bdev_nvme_detach_controller", map[string]any{"name": "nvme_other"})
}
