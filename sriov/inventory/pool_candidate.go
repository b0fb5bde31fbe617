package inventory

import (
	"cmp"
	"slices"
)

type candidate struct {
	Device
	kind    DeviceType
	leftOut string
	held    bool
	kept    []int // if held: one selector per resource
	gone    bool  // held, but does not exist
	wrong   string

	pfName, root     string // of its PF; "" unless a VF: PF filters never match it
	index            int
	link             string
	canRDMA, hasRDMA bool
}

func prepareCandidates(c Config, s *Snapshot, o AssignOptions) ([]preparedSelector, []candidate) {
	byAddress := make(map[string]*Function, len(s.Functions))
	for i := range s.Functions {
		byAddress[s.Functions[i].Address] = &s.Functions[i]
	}
	sels := prepareSelectors(c)
	w := newHeldAssigner(c, sels, o.Held, byAddress)
	all := make([]candidate, 0, len(s.Functions)+len(s.Auxiliary))
	add := func(now Device) {
		h := w.held[now.ID]
		d := describe(h.merge(now), byAddress)
		if o.LinkHealth {
			d.wrong = linkDown(now, byAddress)
		}
		if h != nil {
			h.found = true
			w.assign(h, &d, now)
		}
		all = append(all, d)
	}
	for d := range s.Devices() {
		add(d)
	}
	all = append(all, w.gone()...)
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.ID, b.ID))
	})
	return sels, all
}

// linkDown checks the link of the PF, or the own link if the device is not a
// VF.
func linkDown(d Device, byAddress map[string]*Function) string {
	pf := byAddress[d.Function.PF]
	if pf == nil || d.Function.Kind == AcceleratorClass || len(pf.Netdevs) == 0 {
		return ""
	}
	if n := pf.Netdevs[0]; n.Link != "" && !n.Up {
		return "the link of " + n.Name + " is down"
	}
	return ""
}

func describe(d Device, byAddress map[string]*Function) candidate {
	f := d.Function
	c := candidate{Device: d, kind: NetDevice, index: f.VF, hasRDMA: len(f.RDMA) > 0, canRDMA: len(f.RDMA) > 0 || f.RDMACapable}
	if f.Kind == AcceleratorClass {
		c.kind = Accelerator
	}
	if f.VF != NoIndex {
		c.pfName, c.root = cmp.Or(f.PFNames...), f.PF
	}
	own, pfs := f.Netdevs, []*Function{byAddress[f.PF]}
	if a := d.Auxiliary; a != nil {
		c.kind, c.index, c.pfName, c.root = AuxNetDevice, a.Index, cmp.Or(f.PFNames...), f.Address
		c.hasRDMA, c.canRDMA = len(a.RDMA) > 0, len(a.RDMA) > 0 || a.RDMACapable
		own, pfs = a.Netdev, append(pfs, f)
	}
	c.link, c.leftOut = linkType(own, c.pfName, pfs), c.unusable()
	return c
}

func (d *candidate) unusable() string {
	f := d.Function
	switch {
	case d.kind == AuxNetDevice && f.Driver == "":
		return "its parent " + f.Address + " has no driver"
	case d.kind == AuxNetDevice && d.pfName == "":
		return "its parent " + f.Address + " has no network device"
	case d.kind == AuxNetDevice && d.index < 0:
		return "it has no SF number: only scalable functions have one"
	case d.kind == NetDevice && f.DefaultRoute:
		return "one of its network devices carries the default route"
	case d.kind == NetDevice && f.IsPF():
		return "it is a physical function with virtual ones"
	case f.Driver == "":
		return "it has no driver"
	}
	return ""
}

// RoCE devices have partition keys in sysfs too, without a meaning.
func (d *candidate) pKey() string {
	if d.link != "infiniband" {
		return ""
	}
	return d.Function.PKey
}

func linkType(own []Netdev, pfName string, pfs []*Function) string {
	if len(own) > 0 {
		return own[0].Link
	}
	for _, pf := range pfs {
		if pf == nil {
			continue
		}
		if i := slices.IndexFunc(pf.Netdevs, func(n Netdev) bool { return n.Name == pfName }); i >= 0 {
			return pf.Netdevs[i].Link
		}
	}
	return ""
}
