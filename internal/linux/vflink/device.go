package vflink

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Modes of an embedded switch.
const (
	Legacy    = "legacy"
	Switchdev = "switchdev"
)

// bus is where functions are, for devlink and vDPA.
const bus = "pci"

// Of linux/vdpa.h, where nothing else is said.
const (
	devlinkName   = 2 // DEVLINK_ATTR_DEV_NAME, of linux/devlink.h
	vdpaFamily    = "vdpa"
	vdpaNew       = 3 // VDPA_CMD_DEV_NEW
	vdpaDelete    = 4 // VDPA_CMD_DEV_DEL
	vdpaParentBus = 1 // VDPA_ATTR_MGMTDEV_BUS_NAME
	vdpaParent    = 2 // VDPA_ATTR_MGMTDEV_DEV_NAME
	vdpaName      = 4 // VDPA_ATTR_DEV_NAME
)

var (
	addresses = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	vdpaNames = regexp.MustCompile(`^[A-Za-z0-9_:-][A-Za-z0-9_:.-]{0,63}$`)
)

func checkAddress(address string) error {
	if !addresses.MatchString(address) {
		return fmt.Errorf("%.40q is no PCI address: 0000:3b:02.1 is right", address)
	}
	return nil
}

// ESwitch is the mode of a physical function's embedded switch; "" where the
// driver has none or does not tell.
func (Kernel) ESwitch(ctx context.Context, address string) (string, error) {
	mode, err := eswitch(ctx, address)
	switch {
	case errors.Is(err, ErrNoFamily), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV):
		return "", nil // no devlink, no modes, or no devlink of this driver
	case err != nil:
		return "", fail("read the mode of the embedded switch of", subject{function: address}, err)
	}
	return mode, nil
}

func eswitch(ctx context.Context, address string) (string, error) {
	if err := checkAddress(address); err != nil {
		return "", err
	}
	answers, err := generic(ctx, unix.DEVLINK_GENL_NAME, unix.DEVLINK_CMD_ESWITCH_GET, 0, handle(address))
	if err != nil {
		return "", err
	}
	for _, ad := range answers {
		for ad.Next() {
			if ad.Type() == unix.DEVLINK_ATTR_ESWITCH_MODE {
				return modeName(ad.Uint16())
			}
		}
		if err := ad.Err(); err != nil {
			return "", err
		}
	}
	return "", nil
}

func modeName(mode uint16) (string, error) {
	switch mode {
	case unix.DEVLINK_ESWITCH_MODE_LEGACY:
		return Legacy, nil
	case unix.DEVLINK_ESWITCH_MODE_SWITCHDEV:
		return Switchdev, nil
	}
	return "", nil // such as switchdev_inactive, which is neither
}

// SetESwitch changes it. Drivers differ in whether there may be virtual
// functions then, and in what state.
func (Kernel) SetESwitch(ctx context.Context, address, mode string) error {
	number, known := map[string]uint16{
		Legacy: unix.DEVLINK_ESWITCH_MODE_LEGACY, Switchdev: unix.DEVLINK_ESWITCH_MODE_SWITCHDEV,
	}[mode]
	what, s := fmt.Sprintf("set the embedded switch to mode %.40q of", mode), subject{function: address}
	if !known {
		return fail(what, s, fmt.Errorf("%w: %s and %s are right", unix.EINVAL, Legacy, Switchdev))
	}
	if err := checkAddress(address); err != nil {
		return fail(what, s, err)
	}
	_, err := generic(ctx, unix.DEVLINK_GENL_NAME, unix.DEVLINK_CMD_ESWITCH_SET, netlink.Acknowledge, func(ae *netlink.AttributeEncoder) {
		handle(address)(ae)
		ae.Uint16(unix.DEVLINK_ATTR_ESWITCH_MODE, number)
	})
	return fail(what, s, err)
}

// handle names a function to devlink.
func handle(address string) func(*netlink.AttributeEncoder) {
	return func(ae *netlink.AttributeEncoder) {
		ae.String(unix.DEVLINK_ATTR_BUS_NAME, bus)
		ae.String(devlinkName, address)
	}
}

// AddVDPA makes a vDPA device of that name on a function.
func (Kernel) AddVDPA(ctx context.Context, name, address string) error {
	what, s := fmt.Sprintf("make the vDPA device %.60q on", name), subject{function: address}
	if err := errors.Join(checkAddress(address), checkVDPA(name)); err != nil {
		return fail(what, s, err)
	}
	_, err := generic(ctx, vdpaFamily, vdpaNew, netlink.Acknowledge, func(ae *netlink.AttributeEncoder) {
		ae.String(vdpaName, name)
		ae.String(vdpaParentBus, bus)
		ae.String(vdpaParent, address)
	})
	return fail(what, s, err)
}

// DeleteVDPA removes a vDPA device.
func (Kernel) DeleteVDPA(ctx context.Context, name string) error {
	what, s := "remove the vDPA device", subject{function: name}
	if err := checkVDPA(name); err != nil {
		return fail(what, s, err)
	}
	_, err := generic(ctx, vdpaFamily, vdpaDelete, netlink.Acknowledge, func(ae *netlink.AttributeEncoder) {
		ae.String(vdpaName, name)
	})
	return fail(what, s, err)
}

func checkVDPA(name string) error {
	if !vdpaNames.MatchString(name) {
		return fmt.Errorf("%.80q is no name of a vDPA device: 1 to 64 letters, digits, _ : . and - are right", name)
	}
	return nil
}
