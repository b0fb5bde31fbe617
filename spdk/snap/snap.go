// Package snap queries the devices that a SNAP process exposes to the host,
// with methods that SNAP adds to SPDK. DPF's node driver creates and removes
// these exposures.
package snap

import (
	"context"

	"github.com/cleatproject/cleat/spdk"
)

// SNAP calls these methods. Whether the process is SNAP depends on its method
// set.
type SNAP struct{ RPC *spdk.Client }

// ExposesBlock reports whether a process with these methods exposes bdevs.
func ExposesBlock(m spdk.MethodSet) bool {
	return m.Has("nvme_subsystem_list", "nvme_namespace_create", "nvme_controller_create", "emulation_function_list")
}

// ExposesFilesystems reports whether a process with these methods exposes file
// system devices.
func ExposesFilesystems(m spdk.MethodSet) bool {
	return m.Has("virtio_fs_get_devices", "virtio_fs_device_create", "virtio_fs_doca_get_functions")
}

// Subsystem is an emulated NVMe subsystem.
type Subsystem struct {
	NQN        string      `json:"nqn"`
	Namespaces []Namespace `json:"namespaces"`
}

// Namespace is a bdev exposed in a subsystem.
type Namespace struct {
	Bdev string `json:"bdev"`
	NSID uint32 `json:"nsid"`
}

// FSDevice is a virtio-fs device.
type FSDevice struct {
	Name  string `json:"name"`
	Fsdev string `json:"fsdev"`
}

// Subsystems returns all emulated subsystems.
func (s SNAP) Subsystems(ctx context.Context) (all []Subsystem, err error) {
	err = s.RPC.Call(ctx, "nvme_subsystem_list", nil, &all)
	return all, err
}

// FSDevices returns all virtio-fs devices.
func (s SNAP) FSDevices(ctx context.Context) (all []FSDevice, err error) {
	err = s.RPC.Call(ctx, "virtio_fs_get_devices", nil, &all)
	return all, err
}
