// Package ethtool reads and sets features of network devices, by ethtool's family
// of generic netlink. vishvananda/netlink v1.3.1 does not have it.
package ethtool

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

const sizeofHeader = 4 // struct genlmsghdr

// ErrUnsupported means that the kernel does not report features.
var ErrUnsupported = errors.New("the kernel does not report features of network devices by netlink")

// State is the state of a feature.
type State struct {
	Active     bool
	Changeable bool // the driver lets it be changed
}

// Feature returns the state of a feature, named as in ethtool -k, in the network
// namespace of the calling thread.
func Feature(ctx context.Context, link, name string) (State, error) {
	s, err := feature(ctx, link, name)
	if err != nil {
		return State{}, fmt.Errorf("read the features of %s: %w", link, err)
	}
	return s, nil
}

// SetFeature requests a feature. The kernel can accept the request and leave the
// feature as it is: read its state afterwards.
func SetFeature(ctx context.Context, link, name string, on bool) error {
	_, err := request(ctx, unix.ETHTOOL_MSG_FEATURES_SET, netlink.Acknowledge, func(ae *netlink.AttributeEncoder) {
		encodeHeader(ae, link, unix.ETHTOOL_FLAG_OMIT_REPLY)
		// Features that the set does not list stay as they are.
		nest(ae, unix.ETHTOOL_A_FEATURES_WANTED, func(set *netlink.AttributeEncoder) {
			nest(set, unix.ETHTOOL_A_BITSET_BITS, func(bits *netlink.AttributeEncoder) {
				nest(bits, unix.ETHTOOL_A_BITSET_BITS_BIT, func(bit *netlink.AttributeEncoder) {
					bit.String(unix.ETHTOOL_A_BITSET_BIT_NAME, name)
					bit.Flag(unix.ETHTOOL_A_BITSET_BIT_VALUE, on)
				})
			})
		})
	})
	if err != nil {
		return fmt.Errorf("set the feature %s of %s: %w", name, link, err)
	}
	return nil
}

func feature(ctx context.Context, link, name string) (State, error) {
	answers, err := request(ctx, unix.ETHTOOL_MSG_FEATURES_GET, 0, func(ae *netlink.AttributeEncoder) { encodeHeader(ae, link, 0) })
	if err != nil {
		return State{}, err
	}
	if len(answers) == 0 {
		return State{}, errors.New("the kernel's answer has no features")
	}
	active, changeable, err := parse(answers[0])
	return State{Active: active[name], Changeable: changeable[name]}, err
}

func encodeHeader(ae *netlink.AttributeEncoder, link string, flags uint32) {
	nest(ae, unix.ETHTOOL_A_FEATURES_HEADER, func(header *netlink.AttributeEncoder) {
		header.String(unix.ETHTOOL_A_HEADER_DEV_NAME, link)
		header.Uint32(unix.ETHTOOL_A_HEADER_FLAGS, flags)
	})
}

func nest(ae *netlink.AttributeEncoder, kind uint16, encode func(*netlink.AttributeEncoder)) {
	ae.Nested(kind, func(inner *netlink.AttributeEncoder) error { encode(inner); return nil })
}

// request returns the attributes of the kernel's answers.
func request(ctx context.Context, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([][]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	family, err := netlinks.NewHandle().GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrUnsupported
	}
	if err != nil {
		return nil, fmt.Errorf("find ethtool in generic netlink: %w", err)
	}
	ae := netlink.NewAttributeEncoder()
	encode(ae)
	attributes, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	messages, err := netlinks.Execute(ctx, unix.NETLINK_GENERIC, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family.ID), Flags: netlink.Request | flags},
		Data:   append([]byte{command, unix.ETHTOOL_GENL_VERSION, 0, 0}, attributes...),
	})
	if errors.Is(err, unix.EOPNOTSUPP) && command == unix.ETHTOOL_MSG_FEATURES_GET {
		return nil, ErrUnsupported
	}
	if err != nil {
		return nil, err
	}
	var answers [][]byte
	for _, m := range messages {
		if m.Header.Type == netlink.HeaderType(family.ID) && len(m.Data) >= sizeofHeader {
			answers = append(answers, m.Data[sizeofHeader:])
		}
	}
	return answers, nil
}

// parse returns the active and the changeable features.
func parse(data []byte) (active, changeable map[string]bool, err error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, nil, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.ETHTOOL_A_FEATURES_ACTIVE:
			active = parseSet(ad)
		case unix.ETHTOOL_A_FEATURES_HW:
			changeable = parseSet(ad)
		}
	}
	if err := ad.Err(); err != nil {
		return nil, nil, err
	}
	if active == nil {
		return nil, nil, errors.New("the kernel's answer has no active features")
	}
	return active, changeable, nil
}

// parseSet returns the set bits. A bit set without a mask lists only these.
func parseSet(ad *netlink.AttributeDecoder) map[string]bool {
	bits := map[string]bool{}
	ad.Nested(func(set *netlink.AttributeDecoder) error {
		hasMask := true
		for set.Next() {
			switch set.Type() {
			case unix.ETHTOOL_A_BITSET_NOMASK:
				hasMask = false
			case unix.ETHTOOL_A_BITSET_BITS:
				each(set, unix.ETHTOOL_A_BITSET_BITS_BIT, func(bit *netlink.AttributeDecoder) {
					name, value := "", false
					for bit.Next() {
						switch bit.Type() {
						case unix.ETHTOOL_A_BITSET_BIT_NAME:
							name = bit.String()
						case unix.ETHTOOL_A_BITSET_BIT_VALUE:
							value = true
						}
					}
					bits[name] = value || !hasMask
				})
			}
		}
		return nil
	})
	return bits
}

// each decodes the nested attributes of one type.
func each(ad *netlink.AttributeDecoder, kind uint16, decode func(*netlink.AttributeDecoder)) {
	ad.Nested(func(list *netlink.AttributeDecoder) error {
		for list.Next() {
			if list.Type() == kind {
				list.Nested(func(inner *netlink.AttributeDecoder) error { decode(inner); return nil })
			}
		}
		return nil
	})
}
