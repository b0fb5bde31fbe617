package netlinks

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	sizeofLink = unix.SizeofIfInfomsg
	ethernet   = 6

	notReported = 1<<32 - 1 // switch without a value
)

// VF is an entry of a physical function's VF table.
type VF struct {
	Index int
	MAC   net.HardwareAddr // nil: none, or not Ethernet
	VLAN  int
	QoS   int  // 802.1p priority of VLAN
	QinQ  bool // VLAN is a service tag (802.1ad)
	Trust Setting
	Spoof Setting // spoof checking

	LinkState        int // 0 follows the physical function, 1 is up, 2 is down
	MinRate, MaxRate int // Mbit/s; 0: no limit

	// GUIDs: the next fields are reported (InfiniBand), most significant byte
	// first; 0 is unset.
	GUIDs              bool
	NodeGUID, PortGUID uint64
}

// Setting is a switch that drivers do not always report.
type Setting uint8

const (
	Unknown Setting = iota
	Off
	On
)

// VF returns the entry with the given index.
func (l Link) VF(index int) (VF, bool) {
	for _, v := range l.VFs {
		if v.Index == index {
			return v, true
		}
	}
	return VF{}, false
}

func parseLink(data []byte) (Link, error) {
	if len(data) < sizeofLink {
		return Link{}, fmt.Errorf("link message of %d bytes: want at least %d", len(data), sizeofLink)
	}
	kind, flags := binary.NativeEndian.Uint16(data[2:]), binary.NativeEndian.Uint32(data[8:])
	l := Link{
		Encapsulation: encapsulation(kind), Index: int(int32(binary.NativeEndian.Uint32(data[4:]))),
		Up: flags&unix.IFF_UP != 0, Running: flags&unix.IFF_RUNNING != 0,
	}
	ad, err := netlink.NewAttributeDecoder(data[sizeofLink:])
	if err != nil {
		return Link{}, fmt.Errorf("link %d: %w", l.Index, err)
	}
	elsewhere, numVFs := false, 0
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			l.Name = ad.String()
		case unix.IFLA_ADDRESS:
			l.MAC = net.HardwareAddr(ad.Bytes()).String()
		case unix.IFLA_MTU:
			l.MTU = int(ad.Uint32())
		case unix.IFLA_MASTER:
			l.Master = int(ad.Uint32())
		case unix.IFLA_LINK:
			l.Lower = int(ad.Uint32())
		case unix.IFLA_LINK_NETNSID:
			elsewhere = true
		case unix.IFLA_PHYS_PORT_NAME:
			l.PortName = ad.String()
		case unix.IFLA_PHYS_SWITCH_ID:
			l.SwitchID = hex.EncodeToString(ad.Bytes())
		case unix.IFLA_LINKINFO:
			l.Kind = strings.Join(texts(ad, unix.IFLA_INFO_KIND), "")
		case unix.IFLA_PROP_LIST:
			l.Names = texts(ad, unix.IFLA_ALT_IFNAME)
		case unix.IFLA_NUM_VF:
			numVFs = int(ad.Uint32())
		case unix.IFLA_VFINFO_LIST:
			ad.Nested(func(list *netlink.AttributeDecoder) (err error) {
				l.VFs, err = parseTable(list, kind == unix.ARPHRD_ETHER)
				return err
			})
		}
	}
	if elsewhere || l.Lower == l.Index {
		l.Lower = 0 // the index belongs to another network namespace
	}
	if err := ad.Err(); err != nil {
		return Link{}, fmt.Errorf("link %d: %w", l.Index, err)
	}
	// The kernel writes the wrong length for a table that is too long.
	if len(l.VFs) != 0 && len(l.VFs) != numVFs {
		return Link{}, fmt.Errorf("link %d: the table has %d entries for %d virtual functions: the kernel cannot report so many", l.Index, len(l.VFs), numVFs)
	}
	return l, nil
}

func texts(ad *netlink.AttributeDecoder, kind uint16) (all []string) {
	ad.Nested(func(nested *netlink.AttributeDecoder) error {
		for nested.Next() {
			if nested.Type() == kind {
				all = append(all, nested.String())
			}
		}
		return nil
	})
	return all
}

func encapsulation(number uint16) string {
	switch number {
	case unix.ARPHRD_ETHER:
		return "ether"
	case unix.ARPHRD_INFINIBAND:
		return "infiniband"
	case unix.ARPHRD_LOOPBACK:
		return "loopback"
	case unix.ARPHRD_NONE:
		return "none"
	default:
		return fmt.Sprintf("arphrd-%d", number)
	}
}

func parseTable(list *netlink.AttributeDecoder, isEthernet bool) ([]VF, error) {
	var table []VF
	for list.Next() {
		if list.Type() != unix.IFLA_VF_INFO {
			return nil, fmt.Errorf("the VF table has an entry of type %d: want %d", list.Type(), unix.IFLA_VF_INFO)
		}
		list.Nested(func(entry *netlink.AttributeDecoder) error {
			v, err := parseVF(entry, isEthernet)
			table = append(table, v)
			return err
		})
	}
	slices.SortFunc(table, func(a, b VF) int { return a.Index - b.Index })
	return table, nil
}

var errShort = errors.New("an attribute of a VF is too short")

func parseVF(entry *netlink.AttributeDecoder, isEthernet bool) (VF, error) {
	var v VF
	for entry.Next() {
		b := entry.Bytes()
		least := map[uint16]int{
			unix.IFLA_VF_MAC: 4 + ethernet, unix.IFLA_VF_VLAN: 12, unix.IFLA_VF_SPOOFCHK: 8, unix.IFLA_VF_TRUST: 8,
			unix.IFLA_VF_IB_NODE_GUID: 16, unix.IFLA_VF_IB_PORT_GUID: 16, unix.IFLA_VF_LINK_STATE: 8, unix.IFLA_VF_RATE: 12,
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
			v.VLAN, v.QoS = int(binary.NativeEndian.Uint32(b[4:])), int(binary.NativeEndian.Uint32(b[8:]))
		case unix.IFLA_VF_VLAN_LIST:
			entry.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					info := list.Bytes() // struct ifla_vf_vlan_info
					v.QinQ = v.QinQ || len(info) >= 14 && binary.BigEndian.Uint16(info[12:]) == unix.ETH_P_8021AD
				}
				return nil
			})
		case unix.IFLA_VF_LINK_STATE:
			v.LinkState = int(binary.NativeEndian.Uint32(b[4:]))
		case unix.IFLA_VF_RATE:
			v.MinRate, v.MaxRate = int(binary.NativeEndian.Uint32(b[4:])), int(binary.NativeEndian.Uint32(b[8:]))
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
