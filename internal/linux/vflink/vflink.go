// Package vflink configures links, virtual functions (VFs), embedded switches
// and vDPA devices, and reads their state.
//
// It uses vishvananda/netlink, except to read the VF table (package netlinks)
// and the eSwitch mode (package devlink).
//
// The kernel executes requests inside sendmsg(2): if a driver hangs, the call
// hangs, regardless of socket timeouts. Callers that must not hang use a
// goroutine that they can abandon.
package vflink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// Kernel calls the kernel in the network namespace of the calling thread.
type Kernel struct{}

// Link returns the link with its VF table.
func (Kernel) Link(ctx context.Context, name string) (netlinks.Link, error) {
	l, err := netlinks.Kernel{}.Link(ctx, name)
	return l, fail("read", subject{link: name}, err)
}

// SetMTU sets the MTU of a link.
func (Kernel) SetMTU(ctx context.Context, name string, mtu int) error {
	what, s := fmt.Sprintf("set the MTU to %d on", mtu), subject{link: name, mtu: true}
	if mtu <= 0 || mtu > math.MaxInt32 {
		return fail(what, s, unix.EINVAL)
	}
	return change(ctx, what, s, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, mtu) })
}

// SetUp brings a link up administratively.
func (Kernel) SetUp(ctx context.Context, name string) error {
	return change(ctx, "bring up", subject{link: name}, (*netlink.Handle).LinkSetUp)
}

// SetMAC sets a VF's administrative address, used when its driver is bound
// again.
func (Kernel) SetMAC(ctx context.Context, name string, vf int, mac net.HardwareAddr) error {
	what := fmt.Sprintf("set the MAC address to %s for", mac)
	if len(mac) != 6 {
		return fail(what, subject{link: name, vf: &vf}, fmt.Errorf("%w: the address has %d bytes, want 6", unix.EINVAL, len(mac)))
	}
	return changeVF(ctx, what, name, vf, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetVfHardwareAddr(l, vf, mac) })
}

// SetTrust sets whether a VF can change its address and its filters.
func (Kernel) SetTrust(ctx context.Context, name string, vf int, on bool) error {
	return changeVF(ctx, fmt.Sprintf("set trust to %t for", on), name, vf,
		func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetVfTrust(l, vf, on) })
}

// SetSpoofCheck makes the card drop a VF's packets with a foreign source
// address.
func (Kernel) SetSpoofCheck(ctx context.Context, name string, vf int, on bool) error {
	return changeVF(ctx, fmt.Sprintf("set spoof checking to %t for", on), name, vf,
		func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetVfSpoofchk(l, vf, on) })
}

// SetVLAN makes the card tag a VF's packets; VLAN 0 ends it. qinq selects a
// service tag (802.1ad).
func (Kernel) SetVLAN(ctx context.Context, name string, vf, vlan, qos int, qinq bool) error {
	return changeVF(ctx, fmt.Sprintf("set the VLAN to %d for", vlan), name, vf,
		func(h *netlink.Handle, l netlink.Link) error {
			if qinq {
				return h.LinkSetVfVlanQosProto(l, vf, vlan, qos, unix.ETH_P_8021AD)
			}
			return h.LinkSetVfVlanQos(l, vf, vlan, qos)
		})
}

// SetRates limits a VF's rates in Mbit/s; 0 is no limit.
func (Kernel) SetRates(ctx context.Context, name string, vf, lowest, highest int) error {
	return changeVF(ctx, fmt.Sprintf("set the rates to %d and %d Mbit/s for", lowest, highest), name, vf,
		func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetVfRate(l, vf, lowest, highest) })
}

// SetLinkState sets the link that a VF sees: 0 follows the physical function,
// 1 is up, 2 is down.
func (Kernel) SetLinkState(ctx context.Context, name string, vf, state int) error {
	return changeVF(ctx, fmt.Sprintf("set the link state to %d for", state), name, vf,
		func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetVfState(l, vf, uint32(state)) })
}

// SetGUIDs sets the node and port GUID of an InfiniBand function.
func (Kernel) SetGUIDs(ctx context.Context, name string, vf int, node, port uint64) error {
	return changeVF(ctx, fmt.Sprintf("set the GUIDs to %016x (node) and %016x (port) for", node, port), name, vf,
		func(h *netlink.Handle, l netlink.Link) error {
			if err := h.LinkSetVfGUID(l, vf, binary.BigEndian.AppendUint64(nil, node), nl.IFLA_VF_IB_NODE_GUID); err != nil {
				return err
			}
			return h.LinkSetVfGUID(l, vf, binary.BigEndian.AppendUint64(nil, port), nl.IFLA_VF_IB_PORT_GUID)
		})
}

func changeVF(ctx context.Context, what, name string, vf int, set func(*netlink.Handle, netlink.Link) error) error {
	s := subject{link: name, vf: &vf}
	if vf < 0 || vf >= math.MaxUint16 {
		return fail(what, s, unix.EINVAL)
	}
	return change(ctx, what, s, set)
}

// change looks up the link by index: the library's lookup by name fails for
// large VF tables, and ignores the error.
func change(ctx context.Context, what string, s subject, set func(*netlink.Handle, netlink.Link) error) error {
	index, err := netlinks.Kernel{}.Index(ctx, s.link)
	if err == nil {
		err = set(netlinks.NewHandle(), &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}})
	}
	return fail(what, s, err)
}

type subject struct {
	link     string
	vf       *int
	function string // or name of a vDPA device
	mtu      bool
}

func (s subject) String() string {
	switch {
	case s.function != "":
		return s.function
	case s.vf != nil:
		return fmt.Sprintf("VF %d of %s", *s.vf, s.link)
	}
	return s.link
}

// fail adds a hint to the kernel's error; nil stays nil.
func fail(what string, s subject, err error) error {
	if err == nil {
		return nil
	}
	if h := hint(s, err); h != "" {
		return fmt.Errorf("%s %s: %w (%s)", what, s, err, h)
	}
	return fmt.Errorf("%s %s: %w", what, s, err)
}

func hint(s subject, err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return "the driver refuses it, or the process lacks CAP_NET_ADMIN"
	case errors.Is(err, unix.ENOENT) && s.function != "":
		return "the kernel does not have this family of generic netlink: load its module (vdpa for vDPA devices)"
	case errors.Is(err, unix.ENODEV) && s.function == "":
		return "this network namespace has no such link"
	case errors.Is(err, unix.ENODEV):
		return "the function does not exist, or its driver does not support this"
	case errors.Is(err, unix.EOPNOTSUPP) && s.vf != nil:
		return "the driver of the link does not support it: the link must be the physical function's, and its driver must have a VF table"
	case errors.Is(err, unix.EOPNOTSUPP):
		return "the driver does not support it"
	case errors.Is(err, unix.EINVAL) && s.mtu:
		return "ip -d link shows the MTUs that the driver allows: minmtu and maxmtu"
	case errors.Is(err, unix.EINVAL) && s.vf != nil:
		return "the physical function must have a VF of that index, and a MAC address must be a unicast one"
	case errors.Is(err, unix.EBUSY):
		return "something uses it: a guest, a container, or other functions of the device"
	}
	return ""
}
