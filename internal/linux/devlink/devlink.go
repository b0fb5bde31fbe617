// Package devlink reads what drivers report by devlink(8): the profile loaded
// into the running firmware, RDMA support, the mode of the embedded switch, and
// parameters, which it also sets.
//
// vishvananda/netlink v1.3.1 cannot do this: a stored version overwrites the
// running one, and one empty version fails the request; a parameter has its
// last value, which applies after the next reset; errors of the eSwitch mode
// are ignored; dumps can panic (see netlinks.NewHandle).
package devlink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// Handle identifies a device.
type Handle struct {
	Bus  string // pci, auxiliary
	Name string // 0000:3b:00.0, mlx5_core.sf.4
}

// Device is a driver's report about a device; many drivers report nothing.
type Device struct {
	// Profile is the DDP package, fw.app.name of the running firmware: "" if
	// not loaded or not reported.
	Profile string
	// RDMA is the parameter enable_rdma; false if the driver does not have it.
	RDMA bool
}

// Kernel reads devlink in the network namespace of the calling thread.
type Kernel struct{}

// Devices returns the drivers' reports, without devices that have none. Missing
// support or permission is not an error. An error comes with the other drivers'
// reports.
//
// The kernel waits until each driver has completed its current work: creating
// virtual functions takes seconds. A context cannot interrupt it: see Recent.
func (Kernel) Devices(ctx context.Context) (map[Handle]Device, error) {
	request, err := connect(ctx)
	switch {
	case isUnsupported(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return read(ctx, request)
}

// ESwitch returns the mode of a device's embedded switch, legacy or switchdev;
// "" if it has none, or the driver or the kernel does not report it.
func ESwitch(ctx context.Context, h Handle) (string, error) {
	request, err := connect(ctx)
	var answers []*netlink.AttributeDecoder
	if err == nil {
		answers, err = request(ctx, unix.DEVLINK_CMD_ESWITCH_GET, 0, h.encode)
	}
	switch {
	case errors.Is(err, errNoDevlink), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV):
		return "", nil
	case err != nil:
		return "", err
	}
	mode := ""
	for _, ad := range answers {
		_, err = parseAttributes(ad, func() {
			if ad.Type() == unix.DEVLINK_ATTR_ESWITCH_MODE {
				mode = modeName(ad.Uint16())
			}
		})
	}
	return mode, err
}

// TextParameter returns the current value of a device's parameter; "" if the
// driver or the kernel does not have it.
func TextParameter(ctx context.Context, h Handle, name string) (string, error) {
	request, err := connect(ctx)
	var answers []*netlink.AttributeDecoder
	if err == nil {
		answers, err = request(ctx, unix.DEVLINK_CMD_PARAM_GET, 0, func(ae *netlink.AttributeEncoder) {
			h.encode(ae)
			ae.String(unix.DEVLINK_ATTR_PARAM_NAME, name)
		})
	}
	switch {
	case errors.Is(err, errNoDevlink), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EINVAL):
		return "", nil
	case err != nil:
		return "", err
	}
	value := ""
	for _, ad := range answers {
		if value, err = parseText(ad); err != nil {
			return "", err
		}
	}
	return value, nil
}

// SetTextParameter sets the current value of a device's parameter.
func SetTextParameter(ctx context.Context, h Handle, name, value string) error {
	request, err := connect(ctx)
	if err != nil {
		return err
	}
	return setTextParameter(ctx, request, h, name, value)
}

func setTextParameter(ctx context.Context, request requestFunc, h Handle, name, value string) error {
	_, err := request(ctx, unix.DEVLINK_CMD_PARAM_SET, netlink.Acknowledge, func(ae *netlink.AttributeEncoder) {
		h.encode(ae)
		ae.String(unix.DEVLINK_ATTR_PARAM_NAME, name)
		ae.Uint8(unix.DEVLINK_ATTR_PARAM_TYPE, typeString)
		ae.Uint8(unix.DEVLINK_ATTR_PARAM_VALUE_CMODE, unix.DEVLINK_PARAM_CMODE_RUNTIME)
		ae.String(unix.DEVLINK_ATTR_PARAM_VALUE_DATA, value)
	})
	return err
}

func (h Handle) encode(ae *netlink.AttributeEncoder) {
	ae.String(unix.DEVLINK_ATTR_BUS_NAME, h.Bus)
	ae.String(attributeName, h.Name)
}

type requestFunc func(ctx context.Context, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error)

var errNoDevlink = errors.New("the kernel has no devlink")

func connect(ctx context.Context) (requestFunc, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	family, err := netlinks.NewHandle().GenlFamilyGet(unix.DEVLINK_GENL_NAME)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, errNoDevlink
	case err != nil:
		return nil, fmt.Errorf("find devlink in generic netlink: %w", err)
	}
	return func(ctx context.Context, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
		ae := netlink.NewAttributeEncoder()
		encode(ae)
		attributes, err := ae.Encode()
		if err != nil {
			return nil, err
		}
		messages, err := netlinks.Execute(ctx, unix.NETLINK_GENERIC, netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(family.ID), Flags: netlink.Request | flags},
			Data:   append([]byte{command, unix.DEVLINK_GENL_VERSION, 0, 0}, attributes...),
		})
		if err != nil {
			return nil, err
		}
		return parse(messages)
	}, nil
}

func isUnsupported(err error) bool {
	return errors.Is(err, errNoDevlink) ||
		errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) ||
		errors.Is(err, unix.EOPNOTSUPP) || // by the driver
		errors.Is(err, unix.ENODEV) || // the device was removed
		errors.Is(err, unix.EINVAL) // the driver has no such parameter
}

type deviceRequest struct {
	what    string
	command uint8
	single  func(*netlink.AttributeEncoder)
	parse   func(*netlink.AttributeDecoder) (Handle, Device, error)
}

func deviceRequests() []deviceRequest {
	return []deviceRequest{
		{"versions", unix.DEVLINK_CMD_INFO_GET, func(*netlink.AttributeEncoder) {}, parseInfo},
		{"parameters", unix.DEVLINK_CMD_PARAM_GET, func(ae *netlink.AttributeEncoder) {
			ae.String(unix.DEVLINK_ATTR_PARAM_NAME, enableRDMA)
		}, parseParameter},
	}
}

func read(ctx context.Context, a requestFunc) (map[Handle]Device, error) {
	found := map[Handle]Device{}
	var failed []error
	for _, q := range deviceRequests() {
		if err := q.send(ctx, a, found); err != nil {
			failed = append(failed, fmt.Errorf("read the %s of devices by devlink: %w", q.what, err))
		}
	}
	return found, errors.Join(failed...)
}

// send sends the request for all devices at once. The kernel ends the dump at
// the first device whose driver fails; then ask sends a request for each
// device.
func (q deviceRequest) send(ctx context.Context, a requestFunc, found map[Handle]Device) error {
	answers, err := a(ctx, q.command, netlink.Dump, func(*netlink.AttributeEncoder) {})
	switch {
	case err == nil:
		return q.add(answers, found)
	case isUnsupported(err):
		return nil
	case ctx.Err() != nil:
		return err
	}
	devices, err := a(ctx, unix.DEVLINK_CMD_GET, netlink.Dump, func(*netlink.AttributeEncoder) {})
	if err != nil {
		return err
	}
	failed := map[string]error{} // the first device of each error
	for _, ad := range devices {
		h, err := parseAttributes(ad, func() {})
		if err != nil {
			return err
		}
		answers, err := a(ctx, q.command, 0, func(ae *netlink.AttributeEncoder) { h.encode(ae); q.single(ae) })
		if err == nil {
			err = q.add(answers, found)
		}
		switch {
		case err == nil, isUnsupported(err):
		case ctx.Err() != nil:
			return err
		case failed[err.Error()] == nil:
			failed[err.Error()] = fmt.Errorf("%s/%s: %w", h.Bus, h.Name, err)
		}
	}
	return errors.Join(slices.SortedFunc(maps.Values(failed), func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })...)
}

func (q deviceRequest) add(answers []*netlink.AttributeDecoder, found map[Handle]Device) error {
	for _, ad := range answers {
		h, d, err := q.parse(ad)
		if err != nil {
			return err
		}
		if d = found[h].or(d); d != (Device{}) {
			found[h] = d
		}
	}
	return nil
}

func (d Device) or(other Device) Device {
	return Device{Profile: cmp.Or(d.Profile, other.Profile), RDMA: d.RDMA || other.RDMA}
}
