package inventory

import (
	"cmp"
	"slices"
)

// candidate is a device that can be in a pool, with the values that filters
// compare.
type candidate struct {
	Device
	kind    DeviceType
	leftOut string // why it is excluded from all pools; "" if not excluded
	held    bool   // a pod holds it
	kept    []int  // if held: the selectors that keep it, one per resource
	gone    bool   // a pod holds it, but it does not exist on the machine
	wrong   string // see Member

	pfName, root     string // name and address of its PF; "" for a function that is not a VF: PF filters never match it
	index            int    // as PFItem's
	link             string
	canRDMA, hasRDMA bool
}

// prepareCandidates returns the selectors in order of precedence, and all
// devices by type and id.
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

// linkDown returns a reason if the link of a device's PF is down, or its own
// link if it is not a VF. Devices without a network device have no reason.
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

// unusable returns why a device is excluded from all pools; "" if it is usable.
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

// pKey returns the InfiniBand partition key. RoCE devices have partition keys
// in sysfs too, but they have no meaning.
func (d *candidate) pKey() string {
	if d.link != "infiniband" {
		return ""
	}
	return d.Function.PKey
}

// linkType returns the link type of a device's own network device, otherwise of
// its PF's.
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
