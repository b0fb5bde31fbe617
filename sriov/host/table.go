package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/vflink"
	"github.com/cleatproject/cleat/sriov/plan"
)

// entry is of the table that a PF has of its virtual functions.
type entry struct {
	pf, address string
	vf          int
}

// setEntry sets a virtual function's entry unless it is so, and looks again.
// wrong says what is not as it has to be.
func (h *Host) setEntry(ctx context.Context, c *call, e entry, wrong func(vflink.VF) string, set func(netdev string) error) error {
	netdev, err := h.uplink(e)
	if err != nil {
		return err
	}
	v, err := h.entry(ctx, c, e, netdev)
	if err != nil || wrong(v) == "" {
		return err
	}
	c.at("change VF %d in the table of %s", e.vf, netdev)
	if err := set(netdev); err != nil {
		return err
	}
	if v, err = h.entry(ctx, c, e, netdev); err != nil {
		return err
	}
	if w := wrong(v); w != "" {
		return fmt.Errorf("the kernel took it, but %s", w)
	}
	return nil
}

// uplink is the network device of the PF, of which the function must be the one
// that was meant.
func (h *Host) uplink(e entry) (string, error) {
	if err := checkAddress(e.pf); err != nil {
		return "", err
	}
	pf, err := h.function(e.pf)
	if err != nil {
		return "", err
	}
	defer pf.dir.Close()
	if e.vf < 0 || e.vf > 1<<16-1 {
		return "", fmt.Errorf("%d is no index of a virtual function: 0 to 65535 are right", e.vf)
	}
	address, err := pf.link(fmt.Sprintf("virtfn%d", e.vf))
	if err != nil {
		return "", err
	}
	if address != e.address {
		return "", fmt.Errorf("virtual function %d of %s is %q and not %s: look again at what there is", e.vf, e.pf, address, e.address)
	}
	return pf.netdev()
}

func (h *Host) entry(ctx context.Context, c *call, e entry, netdev string) (vflink.VF, error) {
	c.at("read the table of %s", netdev)
	l, err := h.config.Network.Link(ctx, netdev)
	if err != nil {
		return vflink.VF{}, err
	}
	v, known := l.VF(e.vf)
	if !known {
		return vflink.VF{}, fmt.Errorf("the table of %s (%s) has %d virtual functions, and none of index %d: its driver has no such table, or is just making them", netdev, e.pf, len(l.VFs), e.vf)
	}
	return v, nil
}

func (h *Host) setMAC(ctx context.Context, c *call, s plan.SetMAC) error {
	mac, err := net.ParseMAC(s.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return fmt.Errorf("%.40q is no address for a function: six bytes as 02:00:5e:10:00:01 are right, the first one even", s.MAC)
	}
	want := mac
	if bytes.Equal(mac, make([]byte, len(mac))) {
		want = nil // the function chooses its own
	}
	// The table of some drivers shows what the function's driver has chosen, so
	// that it has the address says nothing before it was set.
	set := false
	return h.setEntry(ctx, c, entry{s.PF, s.Address, s.VF}, func(v vflink.VF) string {
		if set && bytes.Equal(v.MAC, want) {
			return ""
		}
		return fmt.Sprintf("the administrative address is %q", v.MAC)
	}, func(netdev string) error {
		set = true
		return h.config.Network.SetMAC(ctx, netdev, s.VF, mac)
	})
}

func (h *Host) setGUID(ctx context.Context, c *call, s plan.SetGUID) error {
	guid, err := parseGUID(s.GUID)
	if err != nil {
		return err
	}
	set := false
	return h.setEntry(ctx, c, entry{s.PF, s.Address, s.VF}, func(v vflink.VF) string {
		switch {
		case v.GUIDs && v.NodeGUID == guid && v.PortGUID == guid:
			return ""
		case !v.GUIDs && set:
			return "" // old kernels do not tell
		}
		return fmt.Sprintf("the GUIDs are %q (node) and %q (port)", formatGUID(v.NodeGUID), formatGUID(v.PortGUID))
	}, func(netdev string) error {
		set = true
		return h.config.Network.SetGUIDs(ctx, netdev, s.VF, guid, guid)
	})
}

// parseGUID takes 00:11:22:33:44:55:66:77.
func parseGUID(s string) (uint64, error) {
	b, err := net.ParseMAC(s)
	if err != nil || len(b) != 8 || !strings.EqualFold(b.String(), s) || bytes.Equal(b, make([]byte, 8)) {
		return 0, fmt.Errorf("%.40q is no GUID: eight bytes as 00:11:22:33:44:55:66:77 are right, and not all zero", s)
	}
	return binary.BigEndian.Uint64(b), nil
}

// formatGUID is "" of none.
func formatGUID(guid uint64) string {
	if guid == 0 {
		return ""
	}
	return net.HardwareAddr(binary.BigEndian.AppendUint64(nil, guid)).String()
}

func (h *Host) setTrust(ctx context.Context, c *call, s plan.SetTrust) error {
	set := false
	return h.setEntry(ctx, c, entry{s.PF, s.Address, s.VF}, func(v vflink.VF) string {
		return wrongSetting("trust", v.Trust, s.On, set)
	}, func(netdev string) error {
		set = true
		return h.config.Network.SetTrust(ctx, netdev, s.VF, s.On)
	})
}

func (h *Host) setSpoofCheck(ctx context.Context, c *call, s plan.SetSpoofCheck) error {
	set := false
	return h.setEntry(ctx, c, entry{s.PF, s.Address, s.VF}, func(v vflink.VF) string {
		return wrongSetting("spoof checking", v.Spoof, s.On, set)
	}, func(netdev string) error {
		set = true
		return h.config.Network.SetSpoofCheck(ctx, netdev, s.VF, s.On)
	})
}

// wrongSetting takes a driver at its word that takes a setting and never tells it.
func wrongSetting(what string, has vflink.Setting, want, set bool) string {
	if has == vflink.Unknown && set || has != vflink.Unknown && (has == vflink.On) == want {
		return ""
	}
	return fmt.Sprintf("%s is %s", what, map[vflink.Setting]string{vflink.Unknown: "not told", vflink.On: "on", vflink.Off: "off"}[has])
}
