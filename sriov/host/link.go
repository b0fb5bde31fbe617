package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
)

func (h *Host) setMTU(ctx context.Context, c *call, s plan.SetMTU) error {
	if s.MTU <= 0 || s.MTU > 1<<16 {
		return fmt.Errorf("MTU of %d: want 68 to 65536", s.MTU)
	}
	return h.changeLink(ctx, c, s.Address, func(l netlinks.Link) string {
		if l.MTU == s.MTU {
			return ""
		}
		return fmt.Sprintf("the MTU of %s is %d", l.Name, l.MTU)
	}, func(netdev string) error { return h.config.Network.SetMTU(ctx, netdev, s.MTU) })
}

func (h *Host) setUp(ctx context.Context, c *call, s plan.SetUp) error {
	return h.changeLink(ctx, c, s.Address, func(l netlinks.Link) string {
		if l.Up {
			return ""
		}
		return l.Name + " is down"
	}, func(netdev string) error { return h.config.Network.SetUp(ctx, netdev) })
}

func (h *Host) changeLink(ctx context.Context, c *call, address string, wrong func(netlinks.Link) string, change func(netdev string) error) error {
	netdev, err := h.netdev(address)
	if err != nil {
		return err
	}
	return ensure(func(bool) (string, error) {
		c.setCurrent("read the link %s", netdev)
		l, err := h.config.Network.Link(ctx, netdev)
		if err != nil {
			return "", err
		}
		return wrong(l), nil
	}, func() error {
		c.setCurrent("change the link %s", netdev)
		return change(netdev)
	})
}

func (h *Host) netdev(address string) (string, error) {
	f, err := h.function(address)
	if err != nil {
		return "", err
	}
	defer f.dir.Close()
	return f.netdev()
}

func (h *Host) setESwitch(ctx context.Context, c *call, s plan.SetESwitch) error {
	if s.Mode != nodestate.Legacy && s.Mode != nodestate.Switchdev {
		return fmt.Errorf("mode %.40q: want %s or %s", s.Mode, nodestate.Legacy, nodestate.Switchdev)
	}
	return ensure(func(changed bool) (string, error) {
		c.setCurrent("read the mode of the embedded switch of %s", s.PF)
		mode, err := h.config.Network.ESwitch(ctx, s.PF)
		// No mode means legacy.
		if err != nil || mode == s.Mode || !changed && mode == "" && s.Mode == nodestate.Legacy {
			return "", err
		}
		return fmt.Sprintf("the mode is %q", mode), nil
	}, func() error {
		c.setCurrent("set the mode of the embedded switch of %s", s.PF)
		return h.config.Network.SetESwitch(ctx, s.PF, s.Mode)
	})
}

func (h *Host) setFlowSteering(ctx context.Context, c *call, s plan.SetFlowSteering) error {
	return ensure(func(bool) (string, error) {
		c.setCurrent("read the flow steering mode of %s", s.PF)
		mode, err := h.config.Network.FlowSteering(ctx, s.PF)
		if err != nil || mode == s.Mode {
			return "", err
		}
		return fmt.Sprintf("the flow steering mode is %q", mode), nil
	}, func() error {
		c.setCurrent("set the flow steering mode of %s", s.PF)
		return h.config.Network.SetFlowSteering(ctx, s.PF, s.Mode)
	})
}

func (h *Host) setTCOffload(ctx context.Context, c *call, s plan.SetTCOffload) error {
	netdev, err := h.netdev(s.PF)
	if err != nil {
		return err
	}
	return ensure(func(bool) (string, error) {
		c.setCurrent("read hw-tc-offload of %s", netdev)
		state, err := h.config.Network.TCOffload(ctx, netdev)
		if err != nil || state == nodestate.On {
			return "", err
		}
		return fmt.Sprintf("hw-tc-offload of %s is %q", netdev, state), nil
	}, func() error {
		c.setCurrent("turn on hw-tc-offload of %s", netdev)
		return h.config.Network.SetTCOffload(ctx, netdev)
	})
}

// acceptable adds how functions are offered although the driver refuses a step.
func acceptable(err error, kind string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w, or accept it: --accept=%s", err, kind)
}

func (h *Host) changeEntry(ctx context.Context, c *call, e plan.Entry, wrong func(v netlinks.VF, changed bool) string, change func(netdev string) error) error {
	netdev, err := h.uplink(e)
	if err != nil {
		return err
	}
	return ensure(func(changed bool) (string, error) {
		c.setCurrent("read the VF table of %s", netdev)
		l, err := h.config.Network.Link(ctx, netdev)
		if err != nil {
			return "", err
		}
		v, ok := l.VF(e.VF)
		if !ok {
			return "", fmt.Errorf("the VF table of %s (%s) has %d entries, and none with index %d: the driver has no such table, or is just creating the functions", netdev, e.PF, len(l.VFs), e.VF)
		}
		return wrong(v, changed), nil
	}, func() error {
		c.setCurrent("change VF %d in the table of %s", e.VF, netdev)
		return change(netdev)
	})
}

// uplink fails if the VF index belongs to another function by now.
func (h *Host) uplink(e plan.Entry) (string, error) {
	pf, err := h.function(e.PF)
	if err != nil {
		return "", err
	}
	defer pf.dir.Close()
	if e.VF < 0 || e.VF > 1<<16-1 {
		return "", fmt.Errorf("virtual function index %d: want 0 to 65535", e.VF)
	}
	address, err := pf.link(fmt.Sprintf("virtfn%d", e.VF))
	if err != nil {
		return "", err
	}
	if address != e.Address {
		return "", fmt.Errorf("virtual function %d of %s is %q, want %s: read the machine's state again", e.VF, e.PF, address, e.Address)
	}
	return pf.netdev()
}

func (h *Host) setMAC(ctx context.Context, c *call, s plan.SetMAC) error {
	mac, err := net.ParseMAC(s.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return fmt.Errorf("invalid MAC address %.40q of a function: want six bytes as in 02:00:5e:10:00:01, the first one even", s.MAC)
	}
	want := mac
	if bytes.Equal(mac, make([]byte, len(mac))) {
		want = nil // of the VF's driver
	}
	return h.changeEntry(ctx, c, s.Entry, func(v netlinks.VF, changed bool) string {
		// Some drivers report the address that the VF's driver chose, so
		// equality before the change proves nothing.
		if changed && bytes.Equal(v.MAC, want) {
			return ""
		}
		return fmt.Sprintf("the administrative address is %q", v.MAC)
	}, func(netdev string) error { return h.config.Network.SetMAC(ctx, netdev, s.VF, mac) })
}

func (h *Host) setGUID(ctx context.Context, c *call, s plan.SetGUID) error {
	guid, err := parseGUID(s.GUID)
	if err != nil {
		return err
	}
	return h.changeEntry(ctx, c, s.Entry, func(v netlinks.VF, changed bool) string {
		switch {
		case v.GUIDs && v.NodeGUID == guid && v.PortGUID == guid:
			return ""
		case !v.GUIDs && changed:
			return "" // not reported by old kernels
		}
		return fmt.Sprintf("the GUIDs are %q (node) and %q (port)", formatGUID(v.NodeGUID), formatGUID(v.PortGUID))
	}, func(netdev string) error { return h.config.Network.SetGUIDs(ctx, netdev, s.VF, guid, guid) })
}

// parseGUID parses 00:11:22:33:44:55:66:77.
func parseGUID(s string) (uint64, error) {
	b, err := net.ParseMAC(s)
	if err != nil || len(b) != 8 || !strings.EqualFold(b.String(), s) || bytes.Equal(b, make([]byte, 8)) {
		return 0, fmt.Errorf("invalid GUID %.40q: want eight bytes as in 00:11:22:33:44:55:66:77, not all zero", s)
	}
	return binary.BigEndian.Uint64(b), nil
}

func formatGUID(guid uint64) string {
	if guid == 0 {
		return ""
	}
	return net.HardwareAddr(binary.BigEndian.AppendUint64(nil, guid)).String()
}

func (h *Host) setTrust(ctx context.Context, c *call, s plan.SetTrust) error {
	return h.changeEntry(ctx, c, s.Entry, func(v netlinks.VF, changed bool) string {
		return wrongSetting("trust", v.Trust, s.On, changed)
	}, func(netdev string) error { return h.config.Network.SetTrust(ctx, netdev, s.VF, s.On) })
}

func (h *Host) setSpoofCheck(ctx context.Context, c *call, s plan.SetSpoofCheck) error {
	return h.changeEntry(ctx, c, s.Entry, func(v netlinks.VF, changed bool) string {
		return wrongSetting("spoof checking", v.Spoof, s.On, changed)
	}, func(netdev string) error { return h.config.Network.SetSpoofCheck(ctx, netdev, s.VF, s.On) })
}

func (h *Host) setVLAN(ctx context.Context, c *call, s plan.SetVLAN) error {
	if s.VLAN < 0 || s.VLAN > 4095 || s.QoS < 0 || s.QoS > 7 {
		return fmt.Errorf("VLAN %d with priority %d: want 0 to 4095, and 0 to 7", s.VLAN, s.QoS)
	}
	return h.changeEntry(ctx, c, s.Entry, func(v netlinks.VF, _ bool) string {
		if v.VLAN == s.VLAN && v.QoS == s.QoS && v.QinQ == s.QinQ {
			return ""
		}
		return fmt.Sprintf("the VLAN is %d with priority %d", v.VLAN, v.QoS)
	}, func(netdev string) error { return h.config.Network.SetVLAN(ctx, netdev, s.VF, s.VLAN, s.QoS, s.QinQ) })
}

func (h *Host) setRates(ctx context.Context, c *call, s plan.SetRates) error {
	return h.changeEntry(ctx, c, s.Entry, func(v netlinks.VF, _ bool) string {
		if v.MinRate == s.Min && v.MaxRate == s.Max {
			return ""
		}
		return fmt.Sprintf("the rates are %d and %d Mbit/s", v.MinRate, v.MaxRate)
	}, func(netdev string) error { return h.config.Network.SetRates(ctx, netdev, s.VF, s.Min, s.Max) })
}

func (h *Host) setLinkState(ctx context.Context, c *call, s plan.SetLinkState) error {
	return h.changeEntry(ctx, c, s.Entry, func(v netlinks.VF, _ bool) string {
		if v.LinkState == s.State {
			return ""
		}
		return fmt.Sprintf("the link state is %d", v.LinkState)
	}, func(netdev string) error { return h.config.Network.SetLinkState(ctx, netdev, s.VF, s.State) })
}

// wrongSetting trusts a driver that accepts a setting but never reports it.
func wrongSetting(what string, has netlinks.Setting, want, changed bool) string {
	if has == netlinks.Unknown && changed || has != netlinks.Unknown && (has == netlinks.On) == want {
		return ""
	}
	return fmt.Sprintf("%s is %s", what, map[netlinks.Setting]string{netlinks.Unknown: "not reported", netlinks.On: "on", netlinks.Off: "off"}[has])
}
