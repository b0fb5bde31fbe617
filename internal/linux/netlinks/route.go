package netlinks

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	sizeofRoute   = unix.SizeofRtMsg
	sizeofNextHop = unix.SizeofRtNexthop
	nextHopID     = 30 // RTA_NH_ID
)

// errNextHop: no link attribute, as with net.ipv4.nexthop_compat_mode=0.
var errNextHop = errors.New("a default route has a next-hop object and no link: set net.ipv4.nexthop_compat_mode to 1")

// parseDefault returns nil for other routes.
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
