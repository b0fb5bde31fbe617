// Package vflink asks for and changes what the kernel has of the virtual
// functions of a network device: the physical function's table of them
// (rtnetlink), the mode of its embedded switch (devlink) and vDPA devices.
//
// The kernel does what a request says before the call that sends it returns,
// whatever deadline the socket has: behind a driver that hangs, so does the
// call. A context bounds the waits for answers; who needs more calls from a
// goroutine that may be left behind.
package vflink

import (
	"context"
	"fmt"
	"math"
	"net"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/genetlink"
)

// Kernel is that of this machine, in the network namespace of the calling
// thread. Its zero value is ready.
type Kernel struct{}

// Link is the network device of that name with its table of virtual functions.
func (Kernel) Link(ctx context.Context, name string) (Link, error) {
	l, err := get(ctx, name)
	if err != nil {
		return Link{}, fail("read", subject{link: name}, err)
	}
	return l, nil
}

func get(ctx context.Context, name string) (Link, error) {
	request, err := getRequest(name)
	if err != nil {
		return Link{}, err
	}
	messages, err := genetlink.Execute(ctx, unix.NETLINK_ROUTE, netlink.Message{
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
	return Link{}, fmt.Errorf("the kernel's %d answers have no link", len(messages))
}

// SetMTU sets how many bytes a packet on a link has at most.
func (Kernel) SetMTU(ctx context.Context, name string, mtu int) error {
	s := subject{link: name, mtu: true}
	if mtu <= 0 || mtu > math.MaxInt32 {
		return fail(fmt.Sprintf("set the MTU to %d on", mtu), s, unix.EINVAL)
	}
	err := set(ctx, name, false, func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.IFLA_MTU, uint32(mtu)) })
	return fail(fmt.Sprintf("set the MTU to %d on", mtu), s, err)
}

// SetUp brings a link up administratively.
func (Kernel) SetUp(ctx context.Context, name string) error {
	return fail("bring up", subject{link: name}, set(ctx, name, true, func(*netlink.AttributeEncoder) {}))
}

// SetMAC sets the Ethernet address that a virtual function gets. Its driver
// takes it when it begins, so a bound one has to be bound again.
func (Kernel) SetMAC(ctx context.Context, name string, vf int, mac net.HardwareAddr) error {
	what := fmt.Sprintf("set the MAC address to %s for", mac)
	if len(mac) != ethernet {
		return fail(what, subject{link: name, vf: &vf}, fmt.Errorf("%w: an address of %d bytes is right, that has %d", unix.EINVAL, ethernet, len(mac)))
	}
	return setVF(ctx, what, name, vf, attribute{unix.IFLA_VF_MAC, vfMAC(vf, mac)})
}

// SetTrust lets a virtual function change its address and its filters.
func (Kernel) SetTrust(ctx context.Context, name string, vf int, on bool) error {
	return setVF(ctx, fmt.Sprintf("set trust to %t for", on), name, vf, attribute{unix.IFLA_VF_TRUST, vfSwitch(vf, on)})
}

// SetSpoofCheck lets the card drop what a virtual function sends from an address
// that is not its own.
func (Kernel) SetSpoofCheck(ctx context.Context, name string, vf int, on bool) error {
	return setVF(ctx, fmt.Sprintf("set spoof checking to %t for", on), name, vf, attribute{unix.IFLA_VF_SPOOFCHK, vfSwitch(vf, on)})
}

// SetGUIDs sets the GUIDs of node and port of an InfiniBand function.
func (Kernel) SetGUIDs(ctx context.Context, name string, vf int, node, port uint64) error {
	return setVF(ctx, fmt.Sprintf("set the GUIDs to %016x (node) and %016x (port) for", node, port), name, vf,
		attribute{unix.IFLA_VF_IB_NODE_GUID, vfGUID(vf, node)}, attribute{unix.IFLA_VF_IB_PORT_GUID, vfGUID(vf, port)})
}

func setVF(ctx context.Context, what, name string, vf int, attributes ...attribute) error {
	s := subject{link: name, vf: &vf}
	if vf < 0 || vf >= math.MaxUint16 {
		return fail(what, s, unix.EINVAL)
	}
	return fail(what, s, set(ctx, name, false, func(ae *netlink.AttributeEncoder) { encodeVF(ae, attributes) }))
}

func set(ctx context.Context, name string, up bool, encode func(*netlink.AttributeEncoder)) error {
	request, err := setRequest(name, up, encode)
	if err != nil {
		return err
	}
	_, err = genetlink.Execute(ctx, unix.NETLINK_ROUTE, netlink.Message{
		Header: netlink.Header{Type: unix.RTM_SETLINK, Flags: netlink.Request | netlink.Acknowledge}, Data: request,
	})
	return err
}

// ErrNoFamily: the kernel lacks a family of generic netlink, which its module
// or its configuration brings.
var ErrNoFamily = genetlink.ErrNoFamily

// generic sends a request to a family of generic netlink by its name.
func generic(ctx context.Context, family string, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
	id, err := genetlink.Family(ctx, family)
	if err != nil {
		return nil, err
	}
	return genetlink.Ask(ctx, id, command, flags, encode)
}
