// Package devlink tells what drivers say of their devices by devlink(8), of all
// devices of the network namespace at once: the profile that an application
// brought into the running firmware, and whether the device can do RDMA.
package devlink

import (
	"context"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/genetlink"
)

// Handle is how devlink names a device.
type Handle struct {
	Bus  string // pci, auxiliary
	Name string // 0000:3b:00.0, mlx5_core.sf.4
}

// Device is what its driver says of it. Many say nothing.
type Device struct {
	// Profile is fw.app.name of the running firmware: the package of dynamic
	// device personalization (DDP) that is loaded; "" is none, or not told.
	Profile string
	// RDMA is the parameter enable_rdma; false also where there is no such
	// parameter.
	RDMA bool
}

// Kernel is that of this machine, in the network namespace of the calling
// thread. Its zero value is ready.
type Kernel struct{}

// Devices is what drivers say of their devices; those that say nothing are left
// out. A kernel without devlink, one that does not let this process ask, and
// drivers that cannot answer say nothing. With an error it is what was told all
// the same.
//
// Drivers answer themselves, one after the other, each when it has done what it
// is at: making virtual functions takes one seconds. A context does not end
// that, see Recent.
func (Kernel) Devices(ctx context.Context) (map[Handle]Device, error) {
	id, err := genetlink.Family(ctx, unix.DEVLINK_GENL_NAME)
	if isSilence(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return read(ctx, func(ctx context.Context, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
		return genetlink.Ask(ctx, id, command, flags, encode)
	})
}

// isSilence tells an answer that says no more than that there is none.
func isSilence(err error) bool {
	return errors.Is(err, genetlink.ErrNoFamily) || // no devlink
		errors.Is(err, unix.EPROTONOSUPPORT) || // no generic netlink
		errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) ||
		errors.Is(err, unix.EOPNOTSUPP) || // the driver does not tell
		errors.Is(err, unix.ENODEV) || // the device went
		errors.Is(err, unix.EINVAL) // the driver has no such parameter
}
