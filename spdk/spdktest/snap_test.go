package spdktest

import (
	"slices"
	"testing"
)

type shownSubsystem struct {
	NQN        string
	Namespaces []struct {
		NSID        uint32
		Bdev        string
		Controllers []struct {
			ID string `json:"ctrl_id"`
		}
	}
	Controllers []struct {
		ID string `json:"ctrl_id"`
	}
}

// The calls of the node driver that expose and hide a bdev.
func TestExposeAndHideBlockDevice(t *testing.T) {
	const nqn = "nqn.2022-10.io.nvda.nvme:dpf-m0-01234567"
	c := dial(t, startProcess(t, NewNetwork(nil), Config{Flavour: Fork, SNAP: true}))
	c.must("bdev_malloc_create", with{"name": "m0", "num_blocks": 8, "block_size": 512}, nil)
	space := with{"bdev_type": "spdk", "nqn": nqn, "nsid": 1, "uuid": "11112222-3333-4444-8555-666677778888", "bdev_name": "m0"}
	c.refused(-19, "nvme_namespace_create", space)
	c.must("nvme_subsystem_create", with{"nqn": nqn}, nil)
	c.refused(-17, "nvme_subsystem_create", with{"nqn": nqn})
	c.must("nvme_namespace_create", space, nil)
	c.refused(-17, "nvme_namespace_create", space)
	var function struct{ VUID string }
	c.must("nvme_function_create", nil, &function)
	var ctrl struct {
		ID string `json:"ctrl_id"`
	}
	create := with{"nqn": nqn, "suspended": true, "vuid": function.VUID, "num_queues": 8}
	c.must("nvme_controller_create", create, &ctrl)
	c.refused(-17, "nvme_controller_create", create)
	c.refused(-32603, "nvme_controller_create", with{"nqn": nqn, "vuid": function.VUID, "vendorTunable": 1})
	byID := with{"ctrl_id": ctrl.ID}
	both := with{"ctrl_id": ctrl.ID, "nsid": 1}
	c.must("nvme_controller_attach_ns", both, nil)
	c.must("nvme_controller_resume", byID, nil)
	c.refused(-22, "nvme_controller_resume", byID)
	c.must("nvme_controller_hotplug", with{"ctrl_id": ctrl.ID, "wait_for_done": true}, nil)

	var shown []shownSubsystem
	c.must("nvme_subsystem_list", nil, &shown)
	if len(shown) != 1 || shown[0].Namespaces[0].Bdev != "m0" || shown[0].Namespaces[0].Controllers[0].ID != ctrl.ID || shown[0].Controllers[0].ID != ctrl.ID {
		t.Errorf("subsystems %+v", shown)
	}
	if f := functionOf(c, function.VUID); f.BDF == "" || f.Ctrl != ctrl.ID || !f.Hotplugged {
		t.Errorf("function %+v", f)
	}
	// Objects in use cannot be removed.
	c.refused(-16, "nvme_namespace_destroy", with{"nqn": nqn, "nsid": 1})
	c.refused(-16, "nvme_subsystem_destroy", with{"nqn": nqn})
	c.refused(-16, "nvme_function_destroy", with{"vuid": function.VUID})
	c.refused(-16, "nvme_controller_destroy", byID)

	c.must("nvme_controller_hotunplug", byID, nil)
	c.must("nvme_controller_detach_ns", both, nil)
	c.refused(-19, "nvme_controller_detach_ns", both)
	c.must("nvme_controller_destroy", with{"ctrl_id": ctrl.ID, "force": true}, nil)
	c.must("nvme_namespace_destroy", with{"nqn": nqn, "nsid": 1}, nil)
	// The bdev can have another namespace.
	c.must("nvme_namespace_create", space, nil)
	c.must("nvme_namespace_destroy", with{"nqn": nqn, "nsid": 1}, nil)
	c.must("nvme_function_destroy", with{"vuid": function.VUID}, nil)
	c.must("nvme_subsystem_destroy", with{"nqn": nqn}, nil)
	c.refused(-19, "nvme_subsystem_destroy", with{"nqn": nqn})
	c.must("bdev_malloc_delete", with{"name": "m0"}, nil)
}

type shownFunction struct {
	VUID       string
	Hotplugged bool
	BDF        string `json:"pci_bdf"`
	Ctrl       string `json:"ctrl_id"`
}

func functionOf(c *client, vuid string) shownFunction {
	c.t.Helper()
	var all []shownFunction
	c.must("emulation_function_list", with{"all": true}, &all)
	i := slices.IndexFunc(all, func(f shownFunction) bool { return f.VUID == vuid })
	if i < 0 {
		c.t.Fatalf("no function %s in %+v", vuid, all)
	}
	return all[i]
}

// The removal of a bdev removes its namespace from SNAP's subsystem.
func TestRemovedBdevLeavesSubsystem(t *testing.T) {
	const nqn = "nqn.2022-10.io.nvda.nvme:dpf-m0-01234567"
	c := dial(t, startProcess(t, NewNetwork(nil), Config{SNAP: true}))
	c.must("bdev_malloc_create", with{"name": "m0", "num_blocks": 8, "block_size": 512}, nil)
	c.must("nvme_subsystem_create", with{"nqn": nqn}, nil)
	c.must("nvme_namespace_create", with{"nqn": nqn, "nsid": 1, "bdev_name": "m0"}, nil)
	c.must("bdev_malloc_delete", with{"name": "m0"}, nil)
	var shown []shownSubsystem
	c.must("nvme_subsystem_list", nil, &shown)
	if len(shown) != 1 || len(shown[0].Namespaces) != 0 {
		t.Errorf("subsystems %+v", shown)
	}
}

func TestExposeAndHideFileSystem(t *testing.T) {
	c := dial(t, startProcess(t, NewNetwork(nil), Config{Flavour: Fork, SNAP: true, Root: t.TempDir()}))
	c.must("fsdev_aio_create", with{"name": "fs0", "root_path": "/"}, nil)
	device := with{"transport_name": "DOCA", "dev_name": "dev_fs0", "tag": "fs0tag", "fsdev": "fs0", "num_request_queues": 8, "queue_size": 256}
	c.refused(-19, "virtio_fs_device_create", device)
	c.must("virtio_fs_transport_create", with{"transport_name": "DOCA"}, nil)
	c.refused(-17, "virtio_fs_transport_create", with{"transport_name": "DOCA"})
	c.must("virtio_fs_doca_manager_create", with{"manager": "mlx5_0"}, nil)
	c.must("virtio_fs_transport_start", with{"transport_name": "DOCA"}, nil)
	var vuid string
	c.must("virtio_fs_doca_function_create", with{"manager": "mlx5_0"}, &vuid)
	c.must("virtio_fs_device_create", device, nil)
	c.refused(-17, "virtio_fs_device_create", device)
	by := with{"dev_name": "dev_fs0"}
	c.refused(-22, "virtio_fs_device_start", by)
	c.must("virtio_fs_doca_device_modify", with{"dev_name": "dev_fs0", "manager": "mlx5_0", "vuid": vuid}, nil)
	c.must("virtio_fs_device_start", by, nil)
	c.must("virtio_fs_doca_device_hotplug", with{"dev_name": "dev_fs0", "wait_for_done": true}, nil)

	var devices []struct{ Name, State, Fsdev, Tag string }
	c.must("virtio_fs_get_devices", nil, &devices)
	if len(devices) != 1 || devices[0].State != "running" || devices[0].Fsdev != "fs0" {
		t.Errorf("devices %+v", devices)
	}
	var functions []struct {
		Manager string
		List    []struct {
			PCI  string `json:"pci_address"`
			VUID string
		} `json:"Function List"`
	}
	c.must("virtio_fs_doca_get_functions", nil, &functions)
	if len(functions) != 1 || len(functions[0].List) != 1 || functions[0].List[0].VUID != vuid || functions[0].List[0].PCI == "" {
		t.Errorf("functions %+v", functions)
	}
	c.refused(-16, "virtio_fs_device_stop", by)
	c.refused(-16, "virtio_fs_doca_function_destroy", with{"manager": "mlx5_0", "vuid": vuid})

	c.must("virtio_fs_doca_device_hotunplug", by, nil)
	c.refused(-16, "virtio_fs_device_destroy", by)
	c.must("virtio_fs_device_stop", by, nil)
	c.must("virtio_fs_device_destroy", by, nil)
	c.must("virtio_fs_doca_function_destroy", with{"manager": "mlx5_0", "vuid": vuid}, nil)
	c.must("fsdev_aio_delete", with{"name": "fs0"}, nil)
}

func TestEnvelope(t *testing.T) {
	c := dial(t, startProcess(t, NewNetwork(nil), Config{SNAP: true, Envelope: true}))
	for nqn, want := range map[string]string{"nqn.2022-10.io.nvda.nvme:a": "SNAP_SUCCESS", "": "SNAP_ERROR"} {
		var got struct{ Status, Message string }
		method := "nvme_subsystem_create"
		if nqn == "" {
			method = "nvme_subsystem_destroy"
		}
		c.must(method, with{"nqn": nqn}, &got)
		if got.Status != want || (got.Message == "") != (want == "SNAP_SUCCESS") {
			t.Errorf("%s %q: %+v", method, nqn, got)
		}
	}
	// SPDK's own methods have no envelope.
	c.refused(-19, "bdev_get_bdevs", with{"name": "x"})
}
