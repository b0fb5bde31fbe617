// Package netlinks reads and watches links (network devices), their tables of
// virtual functions (VFs) and default routes, by rtnetlink(7).
//
// vishvananda/netlink v1.3.1 cannot do this:
//   - It dumps all VF tables, and reads neither physical port names, switch IDs of more than four bytes nor next-hop objects.
//   - It reads no GUIDs, reads "spoof checking not reported" as on, numbers VFs by position, and always requests statistics.
//   - Its watch ends when events are lost, and its dumps can panic (see NewHandle).
package netlinks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network device.
type Link struct {
	Index int
	Name  string
	Names []string
	// Encapsulation is ether, infiniband, loopback, none, or arphrd-N.
	Encapsulation string
	Kind          string // vlan, bond, bridge, openvswitch, ...; "" for a physical device
	MAC           string // 02:00:5e:10:00:01; 20 bytes for InfiniBand; "" if unset
	MTU           int
	Up            bool
	Running       bool // up, and operational
	Master        int  // of its bond, bridge, ...; or 0
	Lower         int  // such as a VLAN's; 0 if not in this namespace
	PortName      string
	SwitchID      string // lower-case hexadecimal; "" if unset
	// VFs is the VF table sorted by index; nil in lists of links.
	VFs []VF
}

// Kernel reads rtnetlink in the network namespace of the calling thread.
type Kernel struct{}

const maxTries = 5

// Links lists all links, sorted by index.
func (Kernel) Links(ctx context.Context) ([]Link, error) {
	request, err := linkRequest("", withoutStats)
	if err != nil {
		return nil, err
	}
	messages, err := dump(ctx, unix.RTM_GETLINK, request)
	if err != nil {
		return nil, fmt.Errorf("list the links: %w", err)
	}
	var links []Link
	for _, m := range messages {
		l, err := parseLink(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list the links: %w", err)
		}
		links = append(links, l)
	}
	slices.SortFunc(links, func(a, b Link) int { return a.Index - b.Index })
	return links, nil
}

// for IFLA_EXT_MASK
const (
	withTable    = 1 << 0 // RTEXT_FILTER_VF
	withoutStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS, most of an answer
)

// Link returns the link with its VF table.
func (Kernel) Link(ctx context.Context, name string) (Link, error) {
	return get(ctx, name, withTable|withoutStats)
}

// Index returns the index of the link.
func (Kernel) Index(ctx context.Context, name string) (int, error) {
	l, err := get(ctx, name, withoutStats)
	return l.Index, err
}

func get(ctx context.Context, name string, mask uint32) (Link, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00") {
		return Link{}, fmt.Errorf("invalid link name %.40q: want 1 to %d bytes without space, slash and colon", name, unix.IFNAMSIZ-1)
	}
	request, err := linkRequest(name, mask)
	if err != nil {
		return Link{}, err
	}
	messages, err := Execute(ctx, unix.NETLINK_ROUTE, netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request}, Data: request,
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

func linkRequest(name string, mask uint32) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	if name != "" {
		ae.String(unix.IFLA_IFNAME, name)
	}
	ae.Uint32(unix.IFLA_EXT_MASK, mask)
	attributes, err := ae.Encode()
	return append(make([]byte, sizeofLink), attributes...), err
}

// DefaultRoutes lists, sorted, the links of default routes in any routing
// table, except those that reject packets. An error comes with the links found
// so far.
func (Kernel) DefaultRoutes(ctx context.Context) ([]int, error) {
	var found []int
	var failed []error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		messages, err := dump(ctx, unix.RTM_GETROUTE, append([]byte{family}, make([]byte, sizeofRoute-1)...))
		for _, m := range messages {
			links, parseErr := parseDefault(m.Data)
			found = append(found, links...)
			if err == nil {
				err = parseErr
			}
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("list the default routes: %w", err))
		}
	}
	slices.Sort(found)
	return slices.Compact(found), errors.Join(failed...)
}

// dump reads again if the list changed meanwhile.
func dump(ctx context.Context, list netlink.HeaderType, request []byte) ([]netlink.Message, error) {
	for range maxTries {
		messages, err := Execute(ctx, unix.NETLINK_ROUTE, netlink.Message{
			Header: netlink.Header{Type: list, Flags: netlink.Request | netlink.Dump}, Data: request,
		})
		if err != nil || !slices.ContainsFunc(messages, func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }) {
			return slices.DeleteFunc(messages, func(m netlink.Message) bool {
				return m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_NEWROUTE
			}), err
		}
	}
	return nil, fmt.Errorf("the list changed while it was read, %d times in a row", maxTries)
}
