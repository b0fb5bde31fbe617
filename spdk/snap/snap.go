// Package snap makes the calls that NVIDIA's SNAP adds to SPDK: what turns a
// bdev or a file system device into a PCI function of the host (expose), and
// back (hide). The shapes are those that the node driver of DPF uses.
package snap

import (
	"context"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
)

// SNAP is a process that a Client calls. Whether it is SNAP at all says its set
// of methods.
type SNAP struct{ RPC *spdk.Client }

// ExposesBlock tells whether a process with these methods exposes bdevs.
func ExposesBlock(m spdk.MethodSet) bool {
	return m.Has("nvme_subsystem_list", "nvme_namespace_create", "nvme_controller_create", "emulation_function_list")
}

// ExposesFilesystems tells whether one exposes file system devices.
func ExposesFilesystems(m spdk.MethodSet) bool {
	return m.Has("virtio_fs_get_devices", "virtio_fs_device_create", "virtio_fs_doca_get_functions")
}

// call returns a result of a type.
func call[T any](ctx context.Context, s SNAP, method string, params any) (T, error) {
	var result T
	err := s.RPC.Call(ctx, method, params, &result)
	return result, err
}

// named returns a result that is the name of what was made.
func named(method, what, name string, err error) (string, error) {
	if err == nil && name == "" {
		err = errs.Errorf(errs.Internal, "%s: the process answered without a %s", method, what)
	}
	return name, err
}
