package devlink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ask sends a command to devlink.
type ask func(ctx context.Context, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error)

// question is one of those that are asked of all devices.
type question struct {
	what    string
	command uint8
	single  func(*netlink.AttributeEncoder) // what goes along when it is asked of one device
	parse   func(*netlink.AttributeDecoder) (Handle, Device, error)
}

func questions() []question {
	return []question{
		{"the versions", unix.DEVLINK_CMD_INFO_GET, func(*netlink.AttributeEncoder) {}, parseInfo},
		{"the parameters", unix.DEVLINK_CMD_PARAM_GET, func(ae *netlink.AttributeEncoder) {
			ae.String(unix.DEVLINK_ATTR_PARAM_NAME, enableRDMA)
		}, parseParameter},
	}
}

func read(ctx context.Context, a ask) (map[Handle]Device, error) {
	found := map[Handle]Device{}
	var failed []error
	for _, q := range questions() {
		if err := q.ask(ctx, a, found); err != nil {
			failed = append(failed, fmt.Errorf("ask drivers for %s of their devices: %w", q.what, err))
		}
	}
	return found, errors.Join(failed...)
}

// ask puts the question to all devices at once. The kernel ends its answer at
// the first device whose driver fails, which says nothing of those behind it:
// then each is asked.
func (q question) ask(ctx context.Context, a ask, found map[Handle]Device) error {
	answers, err := a(ctx, q.command, netlink.Dump, func(*netlink.AttributeEncoder) {})
	switch {
	case err == nil:
		return q.take(answers, found)
	case isSilence(err):
		return nil
	case ctx.Err() != nil:
		return err
	}
	handles, err := list(ctx, a)
	if err != nil {
		return err
	}
	failed := map[string]error{} // the first device that failed of each kind of failure
	for _, h := range handles {
		answers, err := a(ctx, q.command, 0, func(ae *netlink.AttributeEncoder) {
			ae.String(unix.DEVLINK_ATTR_BUS_NAME, h.Bus)
			ae.String(attributeName, h.Name)
			q.single(ae)
		})
		if err == nil {
			err = q.take(answers, found)
		}
		if err == nil || isSilence(err) {
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		if _, known := failed[err.Error()]; !known {
			failed[err.Error()] = fmt.Errorf("%s/%s: %w", h.Bus, h.Name, err)
		}
	}
	return errors.Join(slices.SortedFunc(maps.Values(failed), func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })...)
}

func list(ctx context.Context, a ask) ([]Handle, error) {
	answers, err := a(ctx, unix.DEVLINK_CMD_GET, netlink.Dump, func(*netlink.AttributeEncoder) {})
	if err != nil {
		return nil, err
	}
	var handles []Handle
	for _, ad := range answers {
		h, err := parseHandle(ad)
		if err != nil {
			return nil, err
		}
		handles = append(handles, h)
	}
	return handles, nil
}

// take adds what answers say to what others said of the same devices.
func (q question) take(answers []*netlink.AttributeDecoder, found map[Handle]Device) error {
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

// or is all that either says.
func (d Device) or(other Device) Device {
	if d.Profile == "" {
		d.Profile = other.Profile
	}
	d.RDMA = d.RDMA || other.RDMA
	return d
}
