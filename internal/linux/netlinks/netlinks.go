// Package netlinks lists and watches the links (network devices) of a network
// namespace and those that default routes use, by rtnetlink(7): one dump for all
// links, however many exist.
//
// vishvananda/netlink v1.3.1 cannot do it: it dumps all links with their VF tables,
// reads neither physical port names nor switch IDs of more than four bytes nor
// next-hop objects, and its watch ends when events are lost. Its dumps can panic,
// see package vflink.
package netlinks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network device.
type Link struct {
	Index int
	Name  string
	Names []string // alternative names
	// Encapsulation is ether, infiniband, loopback, none, or arphrd-N where N
	// is the kernel's number.
	Encapsulation string
	Kind          string // vlan, bond, bridge, openvswitch, ...; "" of a plain device
	MAC           string // 02:00:5e:10:00:01, of InfiniBand 20 bytes; "": none
	MTU           int
	Up            bool // administratively
	Running       bool // up, and operational
	Master        int  // index of its bond, bridge, ...; 0: none
	Lower         int  // index of the link below, such as a VLAN's; 0: none in this namespace
	PortName      string
	SwitchID      string // lower-case hexadecimal; "": none
}

// Kernel is the kernel's rtnetlink in the network namespace of the calling thread.
// Its zero value is ready.
type Kernel struct{}

// maxTries bounds how often a list is read that changes meanwhile.
const maxTries = 5

// Links lists all links, by index.
func (Kernel) Links(ctx context.Context) ([]Link, error) {
	var links []Link
	err := dump(ctx, unix.RTM_GETLINK, linkRequest(), unix.RTM_NEWLINK, func(data []byte) error {
		l, err := parseLink(data)
		if err == nil {
			links = append(links, l)
		}
		return err
	}, func() { links = nil })
	if err != nil {
		return nil, fmt.Errorf("list the links: %w", err)
	}
	slices.SortFunc(links, func(a, b Link) int { return a.Index - b.Index })
	return links, nil
}

// DefaultRoutes lists the indices of the links that default routes of IPv4 and
// IPv6 use, in any routing table, sorted. Routes that reject packets do not count.
// With an error it returns the links that it found.
func (Kernel) DefaultRoutes(ctx context.Context) ([]int, error) {
	var found []int
	var failed []error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		var links []int
		var hidden error
		err := dump(ctx, unix.RTM_GETROUTE, routeRequest(family), unix.RTM_NEWROUTE, func(data []byte) error {
			used, err := parseDefault(data)
			if errors.Is(err, errNextHop) {
				hidden = err // does not concern the other routes
				return nil
			}
			links = append(links, used...)
			return err
		}, func() { links, hidden = nil, nil })
		if err = errors.Join(err, hidden); err != nil {
			failed = append(failed, fmt.Errorf("list the default routes: %w", err))
		}
		found = append(found, links...)
	}
	slices.Sort(found)
	return slices.Compact(found), errors.Join(failed...)
}

// dump calls each with the entries of a list, in order. If the list changed while
// it was read, dump calls restart and reads it again.
func dump(ctx context.Context, list uint16, request []byte, entry uint16, each func([]byte) error, restart func()) error {
	for range maxTries {
		messages, err := Execute(ctx, unix.NETLINK_ROUTE, netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(list), Flags: netlink.Request | netlink.Dump},
			Data:   request,
		})
		if err != nil {
			return err
		}
		interrupted, err := consume(messages, entry, each)
		if err != nil || !interrupted {
			return err
		}
		restart()
	}
	return fmt.Errorf("the list changed while it was read, %d times in a row", maxTries)
}

func consume(messages []netlink.Message, entry uint16, each func([]byte) error) (interrupted bool, err error) {
	for _, m := range messages {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return true, nil
		}
		if uint16(m.Header.Type) != entry {
			continue
		}
		if err := each(m.Data); err != nil {
			return false, err
		}
	}
	return false, nil
}
