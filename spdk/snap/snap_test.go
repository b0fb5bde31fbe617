package snap_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
	"github.com/cleatproject/cleat/spdk/spdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Devices exposed by the node driver are found, with and without the envelope of
// SNAP 5.
func TestExposedDevices(t *testing.T) {
	for name, envelope := range map[string]bool{"plain": false, "envelope of SNAP 5": true} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, spdktest.Config{Flavour: spdktest.Fork, SNAP: true, Envelope: envelope})
			s := snap.SNAP{RPC: c}
			m, err := c.Methods(t.Context())
			if err != nil || !snap.ExposesBlock(m) || !snap.ExposesFilesystems(m) {
				t.Fatalf("%v, %v", m.Names(), err)
			}
			const nqn = "nqn.2022-10.io.nvda.nvme:dpf-a-00000000"
			type with = map[string]any
			for _, call := range []struct {
				method string
				params any
			}{
				{"bdev_malloc_create", with{"name": "m0", "num_blocks": 8, "block_size": 512}},
				{"nvme_subsystem_create", with{"nqn": nqn}},
				{"nvme_namespace_create", with{"bdev_type": "spdk", "nqn": nqn, "nsid": 3, "bdev_name": "m0"}},
				{"fsdev_aio_create", with{"name": "f", "root_path": t.TempDir()}},
				{"virtio_fs_device_create", with{"transport_name": "DOCA", "dev_name": "dev_f", "fsdev": "f", "tag": "t", "num_request_queues": 8, "queue_size": 256}},
			} {
				if err := c.Do(t.Context(), call.method, call.params); err != nil {
					t.Fatalf("%s: %v", call.method, err)
				}
			}
			subsystems, err := s.Subsystems(t.Context())
			want := []snap.Subsystem{{NQN: nqn, Namespaces: []snap.Namespace{{Bdev: "m0", NSID: 3}}}}
			if diff := cmp.Diff(want, subsystems); diff != "" || err != nil {
				t.Errorf("%v:\n%s", err, diff)
			}
			devices, err := s.FSDevices(t.Context())
			if diff := cmp.Diff([]snap.FSDevice{{Name: "dev_f", Fsdev: "f"}}, devices); diff != "" || err != nil {
				t.Errorf("%v:\n%s", err, diff)
			}
			err = c.Do(t.Context(), "nvme_subsystem_destroy", with{"nqn": "absent"})
			if refusal, ok := errors.AsType[*spdk.Error](err); !ok || (refusal.Status != "") != envelope {
				t.Errorf("a refusal: %v", err)
			}
		})
	}
}

func dial(t *testing.T, config spdktest.Config) *spdk.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "snap") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	config.Socket = filepath.Join(dir, "snap.sock")
	p, err := spdktest.NewNetwork(nil).Start(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := spdk.Open(spdk.Config{Socket: config.Socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), p.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestExposeSupportByMethods(t *testing.T) {
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
