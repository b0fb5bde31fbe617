package vflink

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/ethtool"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// bus is the bus name of PCI functions in devlink and vDPA.
const bus = "pci"

var (
	addresses = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	vdpaNames = regexp.MustCompile(`^[A-Za-z0-9_:-][A-Za-z0-9_:.-]{0,63}$`)
)

// CheckAddress validates a PCI address.
func CheckAddress(address string) error {
	if !addresses.MatchString(address) {
		return fmt.Errorf("invalid PCI address %.40q: want the form 0000:3b:02.1", address)
	}
	return nil
}

func checkVDPA(name string) error {
	if !vdpaNames.MatchString(name) {
		return fmt.Errorf("invalid vDPA device name %.80q: want 1 to 64 letters, digits, _ : . and -", name)
	}
	return nil
}

// ESwitch returns the mode of the embedded switch; "" if it has none, or it is
// not reported.
func (Kernel) ESwitch(ctx context.Context, address string) (string, error) {
	err := CheckAddress(address)
	var mode string
	if err == nil {
		mode, err = devlink.ESwitch(ctx, devlink.Handle{Bus: bus, Name: address})
	}
	return mode, fail("read the mode of the embedded switch of", subject{function: address}, err)
}

// SetESwitch sets the mode of the embedded switch: legacy or switchdev. Whether
// VFs can exist then depends on the driver.
func (Kernel) SetESwitch(ctx context.Context, address, mode string) error {
	err := errors.Join(ctx.Err(), CheckAddress(address))
	if err == nil {
		err = netlinks.NewHandle().DevLinkSetEswitchMode(&netlink.DevlinkDevice{BusName: bus, DeviceName: address}, mode)
	}
	return fail(fmt.Sprintf("set the embedded switch to mode %.40q of", mode), subject{function: address}, err)
}

// flowSteering is a parameter of devlink.
const flowSteering = "flow_steering_mode"

// FlowSteering returns the flow steering mode of a Mellanox function, dmfs or
// smfs; "" if not reported.
func (Kernel) FlowSteering(ctx context.Context, address string) (string, error) {
	err := CheckAddress(address)
	var mode string
	if err == nil {
		mode, err = devlink.TextParameter(ctx, devlink.Handle{Bus: bus, Name: address}, flowSteering)
	}
	return mode, fail("read the flow steering mode of", subject{function: address}, err)
}

// SetFlowSteering sets the flow steering mode. The driver accepts smfs in legacy
// mode of the embedded switch only.
func (Kernel) SetFlowSteering(ctx context.Context, address, mode string) error {
	err := CheckAddress(address)
	if err == nil {
		err = devlink.SetTextParameter(ctx, devlink.Handle{Bus: bus, Name: address}, flowSteering, mode)
	}
	return fail(fmt.Sprintf("set the flow steering mode to %.40q of", mode), subject{function: address}, err)
}

// tcOffload is a feature of ethtool.
const tcOffload = "hw-tc-offload"

// TCOffload reports whether a link offloads tc rules (hw-tc-offload): on, off,
// fixed if it is off and the driver does not let it be changed, or "" if not
// reported.
func (Kernel) TCOffload(ctx context.Context, name string) (string, error) {
	state, err := ethtool.Feature(ctx, name, tcOffload)
	switch {
	case errors.Is(err, ethtool.ErrUnsupported):
		return "", nil
	case err != nil:
		return "", fail("read hw-tc-offload of", subject{link: name}, err)
	case state.Active:
		return "on", nil
	case !state.Changeable:
		return "fixed", nil
	}
	return "off", nil
}

// SetTCOffload makes a link offload tc rules.
func (Kernel) SetTCOffload(ctx context.Context, name string) error {
	return fail("turn on hw-tc-offload of", subject{link: name}, ethtool.SetFeature(ctx, name, tcOffload, true))
}

// AddVDPA creates a vDPA device on a function.
func (Kernel) AddVDPA(ctx context.Context, name, address string) error {
	err := errors.Join(ctx.Err(), CheckAddress(address), checkVDPA(name))
	if err == nil {
		err = netlinks.NewHandle().VDPANewDev(name, bus, address, netlink.VDPANewDevParams{})
	}
	return fail(fmt.Sprintf("create the vDPA device %.60q on", name), subject{function: address}, err)
}

// DeleteVDPA deletes a vDPA device.
func (Kernel) DeleteVDPA(ctx context.Context, name string) error {
	err := errors.Join(ctx.Err(), checkVDPA(name))
	if err == nil {
		err = netlinks.NewHandle().VDPADelDev(name)
	}
	return fail("delete the vDPA device", subject{function: name}, err)
}

// RDMAMode is shared or exclusive (for network namespaces); "" if not reported.
func (Kernel) RDMAMode(ctx context.Context) (string, error) {
	err := ctx.Err()
	var mode string
	if err == nil {
		mode, err = netlinks.NewHandle().RdmaSystemGetNetnsMode()
	}
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ECONNREFUSED):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read the mode of the RDMA subsystem: %w", err)
	case mode != "shared" && mode != "exclusive":
		return "", nil
	}
	return mode, nil
}
