package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
	"github.com/cleatproject/cleat/internal/ovsdb"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
)

// Incomplete lists what could not be read and is missing in the state.
type Incomplete struct{ Problems []inventory.Problem }

func (e *Incomplete) Error() string {
	const most = 3
	var texts []string
	for _, p := range e.Problems[:min(most, len(e.Problems))] {
		texts = append(texts, fmt.Sprintf("%s: %v", p.What, p.Err))
	}
	if more := len(e.Problems) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return "read the SR-IOV functions: incomplete: " + strings.Join(texts, "; ")
}

// WhatRDMA is the mode of the RDMA subsystem, of an inventory.Problem.
const WhatRDMA = "the RDMA subsystem"

const readKey = "the machine"

// Read returns the machine's state. With an *Incomplete error the state is
// partial, with any other error empty.
func (h *Host) Read(ctx context.Context) (plan.State, error) {
	read := make(chan plan.State, 1)
	err := h.run(ctx, readKey, "read the SR-IOV functions", h.bounds.read, func(ctx context.Context, c *call) error {
		s, err := h.read(ctx, c)
		read <- s
		return err
	})
	select {
	case s := <-read:
		if _, partial := errors.AsType[*Incomplete](err); err == nil || partial {
			return s, err
		}
	default:
	}
	return plan.State{}, err
}

type scan struct {
	h        *Host
	c        *call
	boot     string
	problems []inventory.Problem
}

func (s *scan) problem(function string, err error) {
	s.problems = append(s.problems, inventory.Problem{What: function, Device: function, Err: err})
}

func (h *Host) read(ctx context.Context, c *call) (plan.State, error) {
	s := &scan{h: h, c: c}
	c.setCurrent("list the functions and the links")
	seen, err := inventory.Discover(ctx, inventory.DiscoverConfig{Sysfs: h.config.Sysfs, Links: h.config.Links, Devlink: inventory.NoDevlink{}})
	if err != nil {
		return plan.State{}, err
	}
	for _, p := range seen.Problems {
		if p.What != inventory.WhatRoutes { // not part of the state
			s.problems = append(s.problems, p)
		}
	}
	boot, err := os.ReadFile(h.config.BootID)
	if err != nil {
		return plan.State{}, fmt.Errorf("read the boot ID: %w", err)
	}
	s.boot = strings.TrimSpace(string(boot))
	state := plan.State{}
	c.setCurrent("read the mode of the RDMA subsystem")
	if state.RDMAMode, err = h.config.Network.RDMAMode(ctx); err != nil {
		s.problems = append(s.problems, inventory.Problem{What: WhatRDMA, Err: err})
	}
	virtual := map[string][]inventory.Function{}
	for _, f := range seen.Functions {
		if f.VF != inventory.NoIndex {
			virtual[f.PF] = append(virtual[f.PF], f)
		}
	}
	for _, f := range seen.Functions {
		switch {
		case f.Kind != inventory.NetworkClass || f.VF != inventory.NoIndex:
		case f.TotalVFs > 0:
			state.PFs = append(state.PFs, s.pf(ctx, f, virtual[f.Address]))
		default:
			state.Others = append(state.Others, plan.Function{Address: f.Address, Driver: f.Driver})
		}
	}
	s.bridges(ctx, &state)
	if err := ctx.Err(); err != nil {
		return plan.State{}, fmt.Errorf("read the SR-IOV functions: %w", err)
	}
	if len(s.problems) > 0 {
		return state, &Incomplete{s.problems}
	}
	return state, nil
}

func (s *scan) pf(ctx context.Context, f inventory.Function, virtual []inventory.Function) plan.PF {
	pf := plan.PF{
		Address: f.Address, Vendor: f.Vendor, Device: f.Device, Driver: f.Driver,
		TotalVFs: f.TotalVFs, NumVFs: f.VFs,
	}
	if len(f.Netdevs) > 0 {
		n := f.Netdevs[0]
		pf.Netdev, pf.Names, pf.Link, pf.MAC, pf.MTU = n.Name, append([]string{n.Name}, n.Names...), n.Link, n.MAC, n.MTU
	}
	var err error
	s.c.setCurrent("read the mode of the embedded switch of %s", f.Address)
	if pf.ESwitch, err = s.h.config.Network.ESwitch(ctx, f.Address); err != nil {
		s.problem(f.Address, err)
	}
	var link netlinks.Link
	if pf.Netdev != "" {
		s.c.setCurrent("read the VF table of %s", pf.Netdev)
		if link, err = s.h.config.Network.Link(ctx, pf.Netdev); err != nil {
			s.problem(pf.Address, err)
		}
		pf.Up = link.Up
	}
	if pf.Netdev != "" && pf.ESwitch == nodestate.Switchdev {
		s.c.setCurrent("read hw-tc-offload of %s", pf.Netdev)
		if pf.TCOffload, err = s.h.config.Network.TCOffload(ctx, pf.Netdev); err != nil {
			s.problem(f.Address, err)
		}
	}
	if pf.ESwitch != "" {
		s.c.setCurrent("read the flow steering mode of %s", f.Address)
		if pf.FlowSteering, err = s.h.config.Network.FlowSteering(ctx, f.Address); err != nil {
			s.problem(f.Address, err)
		}
	}
	slices.SortFunc(virtual, func(a, b inventory.Function) int { return cmp.Compare(a.VF, b.VF) })
	for _, v := range virtual {
		pf.VFs = append(pf.VFs, s.vf(v, link))
	}
	return pf
}

const ovsTimeout = 2 * time.Second

// bridges reads the bridges of Open vSwitch, which need not run here.
func (s *scan) bridges(ctx context.Context, state *plan.State) {
	s.c.setCurrent("read the bridges of Open vSwitch")
	ctx, cancel := context.WithTimeout(ctx, ovsTimeout)
	defer cancel()
	found, err := ovsdb.Bridges(ctx, s.h.config.OVS)
	if err != nil {
		state.BridgesUnknown = err.Error()
		return
	}
	state.Bridges = map[string]plan.Bridge{}
	for name, b := range found {
		state.Bridges[name] = plan.Bridge{Interfaces: b.Interfaces, PF: b.ExternalIDs[idPF], Config: b.ExternalIDs[idConfig]}
	}
}

// instance identifies a function until it is removed: sysfs numbers each
// directory once.
func (s *scan) instance(address string) string {
	f, err := s.h.function(address)
	if err == nil {
		defer f.dir.Close()
		var inode uint64
		if inode, err = f.dir.Inode(); err == nil {
			return fmt.Sprintf("%s/%d", s.boot, inode)
		}
	}
	if !sysfs.IsAbsent(err) { // not just removed
		s.problem(address, err)
	}
	return ""
}

func (s *scan) vf(f inventory.Function, pf netlinks.Link) plan.VF {
	v := plan.VF{Index: f.VF, Address: f.Address, Device: f.Device, Driver: f.Driver, Instance: s.instance(f.Address)}
	if len(f.Netdevs) > 0 {
		n := f.Netdevs[0]
		v.Netdev, v.MAC, v.MTU = n.Name, n.MAC, n.MTU
	}
	if t, known := pf.VF(f.VF); known {
		v.Known, v.AdminMAC = true, t.MAC.String()
		v.VLAN, v.QoS, v.QinQ = t.VLAN, t.QoS, t.QinQ
		v.LinkState, v.MinRate, v.MaxRate = t.LinkState, t.MinRate, t.MaxRate
		v.Trust, v.SpoofCheck = t.Trust == netlinks.On, t.Spoof == netlinks.On
		v.GUIDs, v.NodeGUID, v.PortGUID = t.GUIDs, formatGUID(t.NodeGUID), formatGUID(t.PortGUID)
	}
	for _, r := range f.RDMA {
		v.RDMA = append(v.RDMA, r.Name)
	}
	if f.VDPA != nil {
		v.VDPA = vdpaTypes[f.VDPA.Driver]
	}
	return v
}
