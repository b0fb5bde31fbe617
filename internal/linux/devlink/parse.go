package devlink

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	attributeName = 2 // DEVLINK_ATTR_DEV_NAME; package unix lacks it
	typeString    = 5 // NLA_STRING
	typeFlag      = 6 // NLA_FLAG of net/netlink.h: the type of a boolean parameter

	appName    = "fw.app.name"
	enableRDMA = "enable_rdma"

	sizeofHeader = 4 // struct genlmsghdr
)

func parse(messages []netlink.Message) ([]*netlink.AttributeDecoder, error) {
	var answers []*netlink.AttributeDecoder
	for _, m := range messages {
		if m.Header.Type == netlink.Error || m.Header.Type == netlink.Done {
			continue
		}
		if len(m.Data) < sizeofHeader {
			return nil, fmt.Errorf("answer of %d bytes: want at least %d", len(m.Data), sizeofHeader)
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[sizeofHeader:])
		if err != nil {
			return nil, err
		}
		answers = append(answers, ad)
	}
	return answers, nil
}

func modeName(mode uint16) string {
	switch mode {
	case unix.DEVLINK_ESWITCH_MODE_LEGACY:
		return "legacy"
	case unix.DEVLINK_ESWITCH_MODE_SWITCHDEV:
		return "switchdev"
	}
	return "" // such as switchdev_inactive
}

var errNameless = errors.New("an answer does not name its device")

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

func parseInfo(ad *netlink.AttributeDecoder) (h Handle, d Device, err error) {
	h, err = parseAttributes(ad, func() {
		if ad.Type() != unix.DEVLINK_ATTR_INFO_VERSION_RUNNING {
			return // stored versions run after the next reset
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
			return nil // the decoder keeps its own error
		})
	})
	return h, d, err
}

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
			// The first value is the current one: the order is runtime, driver
			// initialization, next reset.
			d.RDMA = name == enableRDMA && kind == typeFlag && len(values) > 0 && values[0]
			return nil
		})
	})
	return h, d, err
}

// parseText returns the first value of a parameter, the current one.
func parseText(ad *netlink.AttributeDecoder) (text string, err error) {
	first := true
	_, err = parseAttributes(ad, func() {
		if ad.Type() != unix.DEVLINK_ATTR_PARAM {
			return
		}
		ad.Nested(func(parameter *netlink.AttributeDecoder) error {
			kind := uint8(0)
			for parameter.Next() {
				switch parameter.Type() {
				case unix.DEVLINK_ATTR_PARAM_TYPE:
					kind = parameter.Uint8()
				case unix.DEVLINK_ATTR_PARAM_VALUES_LIST:
					parameter.Nested(func(list *netlink.AttributeDecoder) error {
						for list.Next() {
							if list.Type() != unix.DEVLINK_ATTR_PARAM_VALUE || !first || kind != typeString {
								continue
							}
							first = false
							list.Nested(func(value *netlink.AttributeDecoder) error {
								for value.Next() {
									if value.Type() == unix.DEVLINK_ATTR_PARAM_VALUE_DATA {
										text = value.String()
									}
								}
								return nil
							})
						}
						return nil
					})
				}
			}
			return nil
		})
	})
	return text, err
}

// parseFlags parses the values of a flag: true values have data.
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
