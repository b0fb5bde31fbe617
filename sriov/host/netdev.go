package host

import (
	"context"
	"fmt"

	"github.com/cleatproject/cleat/internal/linux/vflink"
	"github.com/cleatproject/cleat/sriov/plan"
)

// setLink sets the network device of a function unless it is so, and looks again.
func (h *Host) setLink(ctx context.Context, c *call, address string, wrong func(vflink.Link) string, set func(netdev string) error) error {
	f, err := h.function(address)
	if err != nil {
		return err
	}
	defer f.dir.Close()
	netdev, err := f.netdev()
	if err != nil {
		return err
	}
	c.at("read the link %s", netdev)
	l, err := h.config.Network.Link(ctx, netdev)
	if err != nil || wrong(l) == "" {
		return err
	}
	c.at("change the link %s", netdev)
	if err := set(netdev); err != nil {
		return err
	}
	if l, err = h.config.Network.Link(ctx, netdev); err != nil {
		return err
	}
	if w := wrong(l); w != "" {
		return fmt.Errorf("the kernel took it, but %s", w)
	}
	return nil
}

func (h *Host) setMTU(ctx context.Context, c *call, s plan.SetMTU) error {
	if s.MTU <= 0 || s.MTU > 1<<16 {
		return fmt.Errorf("an MTU of %d: 68 to 65536 are right", s.MTU)
	}
	return h.setLink(ctx, c, s.Address, func(l vflink.Link) string {
		if l.MTU == s.MTU {
			return ""
		}
		return fmt.Sprintf("the MTU of %s is %d", l.Name, l.MTU)
	}, func(netdev string) error { return h.config.Network.SetMTU(ctx, netdev, s.MTU) })
}

func (h *Host) setUp(ctx context.Context, c *call, s plan.SetUp) error {
	return h.setLink(ctx, c, s.Address, func(l vflink.Link) string {
		if l.Up {
			return ""
		}
		return l.Name + " is down"
	}, func(netdev string) error { return h.config.Network.SetUp(ctx, netdev) })
}

func (h *Host) setESwitch(ctx context.Context, c *call, s plan.SetESwitch) error {
	if s.Mode != plan.Legacy && s.Mode != plan.Switchdev {
		return fmt.Errorf("the mode %.40q: %s and %s are right", s.Mode, plan.Legacy, plan.Switchdev)
	}
	c.at("read the mode of the embedded switch of %s", s.PF)
	has, err := h.config.Network.ESwitch(ctx, s.PF)
	if err != nil {
		return err
	}
	// What tells no mode has none but the legacy one.
	if has == s.Mode || has == "" && s.Mode == plan.Legacy {
		return nil
	}
	c.at("set the mode of the embedded switch of %s", s.PF)
	if err := h.config.Network.SetESwitch(ctx, s.PF, s.Mode); err != nil {
		return err
	}
	if has, err = h.config.Network.ESwitch(ctx, s.PF); err != nil {
		return err
	}
	if has != s.Mode {
		return fmt.Errorf("the kernel took it, but the mode is %q", has)
	}
	return nil
}
