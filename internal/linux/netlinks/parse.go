package netlinks

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	sizeofLink    = unix.SizeofIfInfomsg
	sizeofRoute   = unix.SizeofRtMsg
	sizeofNextHop = unix.SizeofRtNexthop
	skipStats     = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	nextHopID     = 30     // RTA_NH_ID
)

// errNextHop: the route has a next-hop object and no link, as with
// net.ipv4.nexthop_compat_mode=0.
var errNextHop = errors.New("a default route has a next-hop object and no link: set net.ipv4.nexthop_compat_mode to 1")

func linkRequest() []byte {
	// Statistics would be most of an answer.
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{{
		Type: unix.IFLA_EXT_MASK, Data: binary.NativeEndian.AppendUint32(nil, skipStats),
	}})
	if err != nil {
		panic(err) // cannot happen: one attribute of four bytes
	}
	return append(make([]byte, sizeofLink), attributes...)
}

func routeRequest(family byte) []byte {
	request := make([]byte, sizeofRoute)
	request[0] = family
	return request
}

func parseLink(data []byte) (Link, error) {
	if len(data) < sizeofLink {
		return Link{}, fmt.Errorf("link message of %d bytes: want at least %d", len(data), sizeofLink)
	}
	l := Link{
		Encapsulation: encapsulation(binary.NativeEndian.Uint16(data[2:])),
		Index:         int(int32(binary.NativeEndian.Uint32(data[4:]))),
	}
	flags := binary.NativeEndian.Uint32(data[8:])
	l.Up, l.Running = flags&unix.IFF_UP != 0, flags&unix.IFF_RUNNING != 0
	ad, err := netlink.NewAttributeDecoder(data[sizeofLink:])
	if err != nil {
		return Link{}, fmt.Errorf("link %d: %w", l.Index, err)
	}
	elsewhere := false
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
			ad.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == unix.IFLA_INFO_KIND {
						l.Kind = info.String()
					}
				}
				return nil
			})
		case unix.IFLA_PROP_LIST:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					if list.Type() == unix.IFLA_ALT_IFNAME {
						l.Names = append(l.Names, list.String())
					}
				}
				return nil
			})
		}
	}
	if elsewhere || l.Lower == l.Index {
		l.Lower = 0 // an index of another namespace is another link here
	}
	if err := ad.Err(); err != nil {
		return Link{}, fmt.Errorf("link %d: %w", l.Index, err)
	}
	return l, nil
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

// parseDefault returns the links of a default route, and none of another route.
func parseDefault(data []byte) ([]int, error) {
	if len(data) < sizeofRoute {
		return nil, fmt.Errorf("route message of %d bytes: want at least %d", len(data), sizeofRoute)
	}
	if to, kind := data[1], data[7]; to != 0 || kind != unix.RTN_UNICAST {
		return nil, nil
	}
	ad, err := netlink.NewAttributeDecoder(data[sizeofRoute:])
	if err != nil {
		return nil, fmt.Errorf("a default route: %w", err)
	}
	var links []int
	object := false
	for ad.Next() {
		switch ad.Type() {
		case unix.RTA_OIF:
			links = append(links, int(ad.Uint32()))
		case nextHopID:
			object = true
		case unix.RTA_MULTIPATH:
			ad.Do(func(b []byte) error {
				hops, err := parseNextHops(b)
				links = append(links, hops...)
				return err
			})
		}
	}
	if err := ad.Err(); err != nil {
		return nil, fmt.Errorf("a default route: %w", err)
	}
	if object && len(links) == 0 {
		return nil, errNextHop
	}
	return links, nil
}

// parseNextHops returns the links of a list of struct rtnexthop, each followed by
// attributes.
func parseNextHops(b []byte) ([]int, error) {
	var links []int
	for len(b) >= sizeofNextHop {
		length := int(binary.NativeEndian.Uint16(b))
		if length < sizeofNextHop || length > len(b) {
			return nil, fmt.Errorf("next hop of %d bytes with %d left", length, len(b))
		}
		links = append(links, int(int32(binary.NativeEndian.Uint32(b[4:]))))
		b = b[min((length+3)&^3, len(b)):]
	}
	return links, nil
}
