package vflink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	ethernet = 6
	// longest is what the kernel has room for as a link's address (MAX_ADDR_LEN).
	longest = 32

	withVFs   = 1 << 0 // RTEXT_FILTER_VF: otherwise the table is left out
	skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS: most of the table, and it may have 64 KiB

	// unsaid is how a driver's silence on a switch looks.
	unsaid = 1<<32 - 1
)

// attribute is one of an entry of the table.
type attribute struct {
	kind uint16
	data []byte
}

func checkName(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00") {
		return fmt.Errorf("%.40q is no name of a link: 1 to %d bytes without space, slash or colon are right", name, unix.IFNAMSIZ-1)
	}
	return nil
}

// getRequest asks for a link by name.
func getRequest(name string) ([]byte, error) {
	return linkRequest(name, false, func(ae *netlink.AttributeEncoder) {
		ae.Uint32(unix.IFLA_EXT_MASK, withVFs|skipStats)
	})
}

// setRequest names the link by name and not by index: with an index the kernel
// would take the name for what the link is to be called.
func setRequest(name string, up bool, encode func(*netlink.AttributeEncoder)) ([]byte, error) {
	return linkRequest(name, up, encode)
}

func linkRequest(name string, up bool, encode func(*netlink.AttributeEncoder)) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	header := make([]byte, unix.SizeofIfInfomsg)
	if up {
		binary.NativeEndian.PutUint32(header[8:], unix.IFF_UP)  // flags
		binary.NativeEndian.PutUint32(header[12:], unix.IFF_UP) // which of them change
	}
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.IFLA_IFNAME, name)
	encode(ae)
	attributes, err := ae.Encode()
	return append(header, attributes...), err
}

// encodeVF puts an entry of the table into a request.
func encodeVF(ae *netlink.AttributeEncoder, attributes []attribute) {
	ae.Nested(unix.IFLA_VFINFO_LIST, func(list *netlink.AttributeEncoder) error {
		list.Nested(unix.IFLA_VF_INFO, func(entry *netlink.AttributeEncoder) error {
			for _, a := range attributes {
				entry.Bytes(a.kind, a.data)
			}
			return nil
		})
		return nil
	})
}

// vfMAC is struct ifla_vf_mac.
func vfMAC(vf int, mac net.HardwareAddr) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(vf))
	return append(append(b, mac...), make([]byte, longest-len(mac))...)
}

// vfSwitch is struct ifla_vf_trust and struct ifla_vf_spoofchk.
func vfSwitch(vf int, on bool) []byte {
	setting := uint32(0)
	if on {
		setting = 1
	}
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, uint32(vf)), setting)
}

// vfGUID is struct ifla_vf_guid, of which the second field is aligned.
func vfGUID(vf int, guid uint64) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(vf))
	return binary.NativeEndian.AppendUint64(append(b, 0, 0, 0, 0), guid)
}

func parseLink(data []byte) (Link, error) {
	if len(data) < unix.SizeofIfInfomsg {
		return Link{}, fmt.Errorf("a link of %d bytes: at least %d are right", len(data), unix.SizeofIfInfomsg)
	}
	kind := binary.NativeEndian.Uint16(data[2:])
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
				var err error
				l.VFs, err = parseTable(list, kind == unix.ARPHRD_ETHER)
				return err
			})
		}
	}
	if err := ad.Err(); err != nil {
		return Link{}, fmt.Errorf("link %d: %w", l.Index, err)
	}
	// An attribute holds 64 KiB: a longer table comes with a length that is wrong,
	// and what follows it is then anything.
	if len(l.VFs) != 0 && len(l.VFs) != count {
		return Link{}, fmt.Errorf("link %d: the table has %d entries for %d virtual functions: the kernel cannot tell so many", l.Index, len(l.VFs), count)
	}
	slices.SortFunc(l.VFs, func(a, b VF) int { return a.Index - b.Index })
	return l, nil
}

func parseTable(list *netlink.AttributeDecoder, isEthernet bool) ([]VF, error) {
	var table []VF
	for list.Next() {
		if list.Type() != unix.IFLA_VF_INFO {
			return nil, fmt.Errorf("the table of virtual functions has an entry of type %d: %d is right", list.Type(), unix.IFLA_VF_INFO)
		}
		list.Nested(func(entry *netlink.AttributeDecoder) error {
			v, err := parseVF(entry, isEthernet)
			table = append(table, v)
			return err
		})
	}
	return table, nil
}

var errShort = errors.New("an attribute of a virtual function is too short")

func parseVF(entry *netlink.AttributeDecoder, isEthernet bool) (VF, error) {
	var v VF
	for entry.Next() {
		b := entry.Bytes()
		least := map[uint16]int{
			unix.IFLA_VF_MAC: 4 + ethernet, unix.IFLA_VF_VLAN: 8, unix.IFLA_VF_SPOOFCHK: 8, unix.IFLA_VF_TRUST: 8,
			unix.IFLA_VF_IB_NODE_GUID: 16, unix.IFLA_VF_IB_PORT_GUID: 16,
		}[entry.Type()]
		if len(b) < least {
			return VF{}, fmt.Errorf("%w: type %d has %d bytes, at least %d are right", errShort, entry.Type(), len(b), least)
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
		return VF{}, fmt.Errorf("a virtual function has the index %d", v.Index)
	}
	return v, nil
}

func setting(v uint32) Setting {
	switch v {
	case unsaid:
		return Unknown
	case 0:
		return Off
	default:
		return On
	}
}
