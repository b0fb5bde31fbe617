package vflink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// The VF table is read here because vishvananda/netlink v1.3.1 reads no GUIDs,
// takes "spoof checking not reported" for on, numbers VFs by their place in the
// list, and always requests statistics, which are a third of a table that may have
// 64 KiB.

const (
	ethernet = 6

	withTable    = 1 << 0 // RTEXT_FILTER_VF
	withoutStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS

	notReported = 1<<32 - 1 // value of a switch that the driver does not report
)

// Link returns the network device of that name with its VF table.
func (Kernel) Link(ctx context.Context, name string) (Link, error) {
	l, err := get(ctx, name, withTable|withoutStats)
	return l, fail("read", subject{link: name}, err)
}

// get reads a link with the parts that mask (IFLA_EXT_MASK) selects.
func get(ctx context.Context, name string, mask uint32) (Link, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00") {
		return Link{}, fmt.Errorf("invalid link name %.40q: want 1 to %d bytes without space, slash and colon", name, unix.IFNAMSIZ-1)
	}
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.IFLA_IFNAME, name)
	ae.Uint32(unix.IFLA_EXT_MASK, mask)
	attributes, err := ae.Encode()
	if err != nil {
		return Link{}, err
	}
	messages, err := netlinks.Execute(ctx, unix.NETLINK_ROUTE, netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request},
		Data:   append(make([]byte, unix.SizeofIfInfomsg), attributes...),
	})
	if err != nil {
		return Link{}, err
	}
	for _, m := range messages {
		if m.Header.Type == unix.RTM_NEWLINK {
			return parseLink(m.Data)
		}
	}
	return Link{}, fmt.Errorf("none of the kernel's %d answers is a link", len(messages))
}

func parseLink(data []byte) (Link, error) {
	if len(data) < unix.SizeofIfInfomsg {
		return Link{}, fmt.Errorf("link message of %d bytes: want at least %d", len(data), unix.SizeofIfInfomsg)
	}
	isEthernet := binary.NativeEndian.Uint16(data[2:]) == unix.ARPHRD_ETHER
	l := Link{
		Index: int(int32(binary.NativeEndian.Uint32(data[4:]))),
		Up:    binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP != 0,
	}
	ad, err := netlink.NewAttributeDecoder(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return Link{}, fmt.Errorf("link %d: %w", l.Index, err)
	}
	count := 0
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			l.Name = ad.String()
		case unix.IFLA_MTU:
			l.MTU = int(ad.Uint32())
		case unix.IFLA_NUM_VF:
			count = int(ad.Uint32())
		case unix.IFLA_VFINFO_LIST:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					if list.Type() != unix.IFLA_VF_INFO {
						return fmt.Errorf("the VF table has an entry of type %d: want %d", list.Type(), unix.IFLA_VF_INFO)
					}
					list.Nested(func(entry *netlink.AttributeDecoder) error {
						v, err := parseVF(entry, isEthernet)
						l.VFs = append(l.VFs, v)
						return err
					})
				}
				return nil
			})
		}
	}
	if err := ad.Err(); err != nil {
		return Link{}, fmt.Errorf("link %d: %w", l.Index, err)
	}
	// The kernel writes a longer table with a wrong length, and what follows it is
	// then read as something else.
	if len(l.VFs) != 0 && len(l.VFs) != count {
		return Link{}, fmt.Errorf("link %d: the table has %d entries for %d virtual functions: the kernel cannot report so many", l.Index, len(l.VFs), count)
	}
	slices.SortFunc(l.VFs, func(a, b VF) int { return a.Index - b.Index })
	return l, nil
}

var errShort = errors.New("an attribute of a VF is too short")

func parseVF(entry *netlink.AttributeDecoder, isEthernet bool) (VF, error) {
	var v VF
	for entry.Next() {
		b := entry.Bytes()
		least := map[uint16]int{
			unix.IFLA_VF_MAC: 4 + ethernet, unix.IFLA_VF_VLAN: 8, unix.IFLA_VF_SPOOFCHK: 8, unix.IFLA_VF_TRUST: 8,
			unix.IFLA_VF_IB_NODE_GUID: 16, unix.IFLA_VF_IB_PORT_GUID: 16,
		}[entry.Type()]
		if len(b) < least {
			return VF{}, fmt.Errorf("%w: type %d has %d bytes, want at least %d", errShort, entry.Type(), len(b), least)
		}
		switch entry.Type() {
		case unix.IFLA_VF_MAC:
			v.Index = int(int32(binary.NativeEndian.Uint32(b)))
			if mac := net.HardwareAddr(b[4 : 4+ethernet]); isEthernet && !slices.Equal(mac, make([]byte, ethernet)) {
				v.MAC = slices.Clone(mac)
			}
		case unix.IFLA_VF_VLAN:
			v.VLAN = int(binary.NativeEndian.Uint32(b[4:]))
		case unix.IFLA_VF_SPOOFCHK:
			v.Spoof = setting(binary.NativeEndian.Uint32(b[4:]))
		case unix.IFLA_VF_TRUST:
			v.Trust = setting(binary.NativeEndian.Uint32(b[4:]))
		case unix.IFLA_VF_IB_NODE_GUID:
			v.NodeGUID, v.GUIDs = binary.NativeEndian.Uint64(b[8:]), true
		case unix.IFLA_VF_IB_PORT_GUID:
			v.PortGUID, v.GUIDs = binary.NativeEndian.Uint64(b[8:]), true
		}
	}
	if v.Index < 0 || v.Index > 1<<16-1 {
		return VF{}, fmt.Errorf("a VF has the index %d", v.Index)
	}
	return v, nil
}

func setting(v uint32) Setting {
	switch v {
	case notReported:
		return Unknown
	case 0:
		return Off
	default:
		return On
	}
}
