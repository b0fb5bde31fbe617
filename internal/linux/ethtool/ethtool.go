// Package ethtool reads the features of network devices, by ethtool's family of
// generic netlink. vishvananda/netlink v1.3.1 does not have it.
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

// Feature reports whether a feature, named as in ethtool -k, is active in the
// network namespace of the calling thread.
func Feature(ctx context.Context, link, name string) (bool, error) {
	active, err := features(ctx, link)
	if err != nil {
		return false, fmt.Errorf("read the features of %s: %w", link, err)
	}
	return active[name], nil
}

func features(ctx context.Context, link string) (map[string]bool, error) {
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
	ae.Nested(unix.ETHTOOL_A_FEATURES_HEADER, func(header *netlink.AttributeEncoder) error {
		header.String(unix.ETHTOOL_A_HEADER_DEV_NAME, link)
		return nil
	})
	attributes, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	messages, err := netlinks.Execute(ctx, unix.NETLINK_GENERIC, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family.ID), Flags: netlink.Request},
		Data:   append([]byte{unix.ETHTOOL_MSG_FEATURES_GET, unix.ETHTOOL_GENL_VERSION, 0, 0}, attributes...),
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, ErrUnsupported
	}
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if m.Header.Type == netlink.HeaderType(family.ID) && len(m.Data) >= sizeofHeader {
			return parse(m.Data[sizeofHeader:])
		}
	}
	return nil, fmt.Errorf("none of the kernel's %d answers has features", len(messages))
}

// parse returns the active features. Their bit set lists only set bits.
func parse(data []byte) (map[string]bool, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, err
	}
	var active map[string]bool
	each(ad, unix.ETHTOOL_A_FEATURES_ACTIVE, func(set *netlink.AttributeDecoder) {
		active = map[string]bool{}
		each(set, unix.ETHTOOL_A_BITSET_BITS, func(bits *netlink.AttributeDecoder) {
			each(bits, unix.ETHTOOL_A_BITSET_BITS_BIT, func(bit *netlink.AttributeDecoder) {
				for bit.Next() {
					if bit.Type() == unix.ETHTOOL_A_BITSET_BIT_NAME {
						active[bit.String()] = true
					}
				}
			})
		})
	})
	if err := ad.Err(); err != nil {
		return nil, err
	}
	if active == nil {
		return nil, errors.New("the kernel's answer has no active features")
	}
	return active, nil
}

// each decodes the nested attributes of one type.
func each(ad *netlink.AttributeDecoder, kind uint16, decode func(*netlink.AttributeDecoder)) {
	for ad.Next() {
		if ad.Type() == kind {
			ad.Nested(func(inner *netlink.AttributeDecoder) error { decode(inner); return nil })
		}
	}
}
