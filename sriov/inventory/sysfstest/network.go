package sysfstest

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// Network is a fake host.Network on a Tree that behaves like igb on Linux 6.12.
type Network struct {
	Tree *Tree
	Mode string // of the RDMA subsystem
}

// The fault key is "netlink", the request and its subject: "netlink SetMAC
// eth0".
func (n Network) do(ctx context.Context, name, subject string, do func() error) error {
	if err := n.Tree.fault("netlink " + name + " " + subject); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	n.Tree.mu.Lock()
	defer n.Tree.mu.Unlock()
	return do()
}

// Link returns a link, with the VF table of a PF.
func (n Network) Link(ctx context.Context, name string) (link netlinks.Link, err error) {
	err = n.do(ctx, "Link", name, func() error {
		l, err := n.Tree.byName(name)
		if err != nil {
			return err
		}
		link = netlinks.Link{Index: l.Index, Name: l.Name, MTU: l.MTU, Up: l.Up}
		if pf := n.Tree.ofNetdev(name); pf != nil {
			for _, address := range n.Tree.virtual[pf.Address] {
				v := n.Tree.table[address].VF
				if l.Encapsulation != "ether" {
					v.MAC = nil
				}
				link.VFs = append(link.VFs, v)
			}
		}
		return nil
	})
	return link, err
}

// SetMTU accepts the usual Ethernet range.
func (n Network) SetMTU(ctx context.Context, name string, mtu int) error {
	return n.do(ctx, "SetMTU", name, func() error {
		l, err := n.Tree.byName(name)
		if err != nil {
			return err
		}
		if mtu < 68 || mtu > 9216 {
			return unix.EINVAL
		}
		l.MTU = mtu
		return nil
	})
}

// SetUp sets a link up.
func (n Network) SetUp(ctx context.Context, name string) error {
	return n.do(ctx, "SetUp", name, func() error {
		l, err := n.Tree.byName(name)
		if err == nil {
			l.Up, l.Running = true, true
		}
		return err
	})
}

// SetMAC sets the address that the driver uses when it is bound next.
func (n Network) SetMAC(ctx context.Context, name string, vf int, mac net.HardwareAddr) error {
	return n.set(ctx, "SetMAC", name, vf, func(v *entry) error {
		if slices.Equal(mac, make(net.HardwareAddr, len(mac))) {
			v.MAC, v.administrative = nil, false
			return nil
		}
		if len(mac) != 6 || mac[0]&1 != 0 {
			return unix.EINVAL
		}
		v.MAC, v.administrative = slices.Clone(mac), true
		return nil
	})
}

// SetTrust sets a VF's trust flag.
func (n Network) SetTrust(ctx context.Context, name string, vf int, on bool) error {
	return n.set(ctx, "SetTrust", name, vf, func(v *entry) error { v.Trust = setting(on); return nil })
}

// SetSpoofCheck sets a VF's spoof check flag.
func (n Network) SetSpoofCheck(ctx context.Context, name string, vf int, on bool) error {
	return n.set(ctx, "SetSpoofCheck", name, vf, func(v *entry) error { v.Spoof = setting(on); return nil })
}

// SetGUIDs sets a VF's GUIDs. The PF needs an InfiniBand link.
func (n Network) SetGUIDs(ctx context.Context, name string, vf int, node, port uint64) error {
	return n.set(ctx, "SetGUIDs", name, vf, func(v *entry) error {
		if l, err := n.Tree.byName(name); err != nil || l.Encapsulation != "infiniband" {
			return unix.EOPNOTSUPP
		}
		v.GUIDs, v.NodeGUID, v.PortGUID = true, node, port
		return nil
	})
}

// SetVLAN sets a VF's VLAN.
func (n Network) SetVLAN(ctx context.Context, name string, vf, vlan, qos int, qinq bool) error {
	return n.set(ctx, "SetVLAN", name, vf, func(v *entry) error { v.VLAN, v.QoS, v.QinQ = vlan, qos, qinq; return nil })
}

// SetRates sets a VF's rates.
func (n Network) SetRates(ctx context.Context, name string, vf, lowest, highest int) error {
	return n.set(ctx, "SetRates", name, vf, func(v *entry) error { v.MinRate, v.MaxRate = lowest, highest; return nil })
}

// SetLinkState sets the link that a VF sees.
func (n Network) SetLinkState(ctx context.Context, name string, vf, state int) error {
	return n.set(ctx, "SetLinkState", name, vf, func(v *entry) error { v.LinkState = state; return nil })
}

func setting(on bool) netlinks.Setting {
	if on {
		return netlinks.On
	}
	return netlinks.Off
}

func (n Network) set(ctx context.Context, request, name string, vf int, change func(*entry) error) error {
	return n.do(ctx, request, name, func() error {
		if _, err := n.Tree.byName(name); err != nil {
			return err
		}
		pf := n.Tree.ofNetdev(name)
		if pf == nil || pf.TotalVFs == 0 {
			return unix.EOPNOTSUPP
		}
		if vf < 0 || vf >= len(n.Tree.virtual[pf.Address]) {
			return unix.EINVAL
		}
		return change(n.Tree.table[n.Tree.virtual[pf.Address][vf]])
	})
}

// ESwitch returns the mode of an embedded switch.
func (n Network) ESwitch(ctx context.Context, address string) (mode string, err error) {
	err = n.do(ctx, "ESwitch", address, func() error { mode = n.Tree.eswitch[address]; return nil })
	return mode, err
}

// SetESwitch changes the mode of an embedded switch.
func (n Network) SetESwitch(ctx context.Context, address, mode string) error {
	return n.do(ctx, "SetESwitch", address, func() error {
		if n.Tree.eswitch[address] == "" {
			return unix.EOPNOTSUPP
		}
		n.Tree.eswitch[address] = mode
		return nil
	})
}

// TCOffload is off, as after a driver's start, or as set.
func (n Network) TCOffload(ctx context.Context, name string) (state string, err error) {
	err = n.do(ctx, "TCOffload", name, func() error {
		state = cmp.Or(n.Tree.offload[name], "off")
		return nil
	})
	return state, err
}

// SetTCOffload changes nothing if the feature is fixed, like the kernel.
func (n Network) SetTCOffload(ctx context.Context, name string) error {
	return n.do(ctx, "SetTCOffload", name, func() error {
		if n.Tree.offload[name] != "fixed" {
			n.Tree.offload[name] = "on"
		}
		return nil
	})
}

// TCOffload sets the state of hw-tc-offload of a link: on, off, fixed.
func (t *Tree) TCOffload(name, state string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.offload[name] = state
}

// FlowSteering is the default of mlx5_core, or as set.
func (n Network) FlowSteering(ctx context.Context, address string) (mode string, err error) {
	err = n.do(ctx, "FlowSteering", address, func() error {
		mode = cmp.Or(n.Tree.steering[address], "dmfs")
		return nil
	})
	return mode, err
}

// SetFlowSteering fails in switchdev mode, as with mlx5_core.
func (n Network) SetFlowSteering(ctx context.Context, address, mode string) error {
	return n.do(ctx, "SetFlowSteering", address, func() error {
		if n.Tree.eswitch[address] != "legacy" {
			return unix.EOPNOTSUPP
		}
		n.Tree.steering[address] = mode
		return nil
	})
}

// AddVDPA creates a vDPA device, bound to the first driver on the bus.
func (n Network) AddVDPA(ctx context.Context, name, address string) error {
	return n.do(ctx, "AddVDPA", address, func() error {
		if f := n.Tree.functions[address]; f == nil || !isNetwork(f.Driver) {
			return unix.ENODEV
		}
		return n.Tree.addVDPA(name, address)
	})
}

// DeleteVDPA removes a vDPA device.
func (n Network) DeleteVDPA(ctx context.Context, name string) error {
	return n.do(ctx, "DeleteVDPA", name, func() error { return n.Tree.removeVDPA(name) })
}

func (n Network) RDMAMode(ctx context.Context) (mode string, err error) {
	err = n.do(ctx, "RDMAMode", "", func() error { return nil })
	return n.Mode, err
}

// ESwitch adds an embedded switch to a PF.
func (t *Tree) ESwitch(pf, mode string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.eswitch[pf] = mode
}

// Entry returns a VF's entry in the VF table.
func (t *Tree) Entry(address string) netlinks.VF {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.table[address]
	if v == nil {
		t.t.Fatalf("there is no virtual function %s", address)
	}
	return v.VF
}

func (t *Tree) byName(name string) (*netlinks.Link, error) {
	for i := range t.links {
		if t.links[i].Name == name {
			return &t.links[i], nil
		}
	}
	return nil, unix.ENODEV
}

func (t *Tree) ofNetdev(name string) *Function {
	for _, f := range t.functions {
		if f.Netdev == name && isNetwork(f.Driver) {
			return f
		}
	}
	return nil
}

type entry struct {
	netlinks.VF
	administrative bool // its address was set by SetMAC
}

// driverMAC returns the administrative address, or else the driver's choice,
// which the VF table then shows.
func (t *Tree) driverMAC(address, chosen string) (mac string, err error) {
	v := t.table[address]
	if v == nil {
		return chosen, nil
	}
	if !v.administrative {
		v.MAC, err = net.ParseMAC(chosen)
	}
	return v.MAC.String(), err
}

func isVDPA(name string) bool { return strings.HasPrefix(name, "bus/vdpa/drivers/") }
