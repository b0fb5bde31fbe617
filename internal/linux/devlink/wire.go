package devlink

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// What the kernel has and package unix has not.
const (
	attributeName = 2 // DEVLINK_ATTR_DEV_NAME
	typeFlag      = 6 // NLA_FLAG, of net/netlink.h: the type of a parameter that is true or false
)

const (
	appName    = "fw.app.name"
	enableRDMA = "enable_rdma"
)

var errNameless = errors.New("an answer does not say which device it is of")

// parseAttributes calls with each attribute, and returns the device they are of.
func parseAttributes(ad *netlink.AttributeDecoder, each func()) (Handle, error) {
	var h Handle
	for ad.Next() {
		switch ad.Type() {
		case unix.DEVLINK_ATTR_BUS_NAME:
			h.Bus = ad.String()
		case attributeName:
			h.Name = ad.String()
		default:
			each()
		}
	}
	if err := ad.Err(); err != nil {
		return Handle{}, err
	}
	if h.Bus == "" || h.Name == "" {
		return Handle{}, errNameless
	}
	return h, nil
}

func parseHandle(ad *netlink.AttributeDecoder) (Handle, error) { return parseAttributes(ad, func() {}) }

// parseInfo takes an answer to DEVLINK_CMD_INFO_GET.
func parseInfo(ad *netlink.AttributeDecoder) (h Handle, d Device, err error) {
	h, err = parseAttributes(ad, func() {
		if ad.Type() != unix.DEVLINK_ATTR_INFO_VERSION_RUNNING {
			return // what is stored runs after the next reset
		}
		ad.Nested(func(version *netlink.AttributeDecoder) error {
			name, value := "", ""
			for version.Next() {
				switch version.Type() {
				case unix.DEVLINK_ATTR_INFO_VERSION_NAME:
					name = version.String()
				case unix.DEVLINK_ATTR_INFO_VERSION_VALUE:
					value = version.String()
				}
			}
			if name == appName {
				d.Profile = value
			}
			return nil // the decoder's own error is seen to
		})
	})
	return h, d, err
}

// parseParameter takes an answer to DEVLINK_CMD_PARAM_GET.
func parseParameter(ad *netlink.AttributeDecoder) (h Handle, d Device, err error) {
	h, err = parseAttributes(ad, func() {
		if ad.Type() != unix.DEVLINK_ATTR_PARAM {
			return
		}
		ad.Nested(func(parameter *netlink.AttributeDecoder) error {
			name, kind, values := "", uint8(0), []bool(nil)
			for parameter.Next() {
				switch parameter.Type() {
				case unix.DEVLINK_ATTR_PARAM_NAME:
					name = parameter.String()
				case unix.DEVLINK_ATTR_PARAM_TYPE:
					kind = parameter.Uint8()
				case unix.DEVLINK_ATTR_PARAM_VALUES_LIST:
					parameter.Nested(func(list *netlink.AttributeDecoder) error {
						values = parseFlags(list)
						return nil
					})
				}
			}
			// The first value is what holds: the kernel lists those of runtime, of
			// the driver's start and of the next reset in this order.
			d.RDMA = name == enableRDMA && kind == typeFlag && len(values) > 0 && values[0]
			return nil
		})
	})
	return h, d, err
}

// parseFlags takes the values of a parameter that is a flag: those that are true
// are there.
func parseFlags(list *netlink.AttributeDecoder) (values []bool) {
	for list.Next() {
		if list.Type() != unix.DEVLINK_ATTR_PARAM_VALUE {
			continue
		}
		list.Nested(func(value *netlink.AttributeDecoder) error {
			set := false
			for value.Next() {
				set = set || value.Type() == unix.DEVLINK_ATTR_PARAM_VALUE_DATA
			}
			values = append(values, set)
			return nil
		})
	}
	return values
}
