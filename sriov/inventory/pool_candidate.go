package inventory

import (
	"cmp"
	"slices"
)

// candidate is one that could be in a pool, in the words that filters use.
type candidate struct {
	Device
	kind    DeviceType
	leftOut string // why no pool may have it; "" is none
	held    bool   // a pod has it
	kept    []int  // then: the selectors that keep it, one of each resource
	gone    bool   // a pod has it, the machine has not
	wrong   string // as Member.Wrong

	vendor, model, driver string // for an auxiliary device, of its parent
	address, acpi         string
	auxType               string
	pfName                foldedName // empty for a function that is no VF: it is never taken by its PF
	root                  foldedName // likewise
	index                 int
	link                  string
	ddp, pKey             string
	rdma, rdmaHere        bool   // it can do RDMA; it has an RDMA device
	vdpa                  string // virtio, vhost
}

// prepareCandidates is the selectors of a configuration, in the order in which they may
// take, and all devices by type and id.
func prepareCandidates(c Config, s *Snapshot, o AssignOptions) ([]preparedSelector, []candidate) {
	byAddress := make(map[string]*Function, len(s.Functions))
	for i := range s.Functions {
		byAddress[s.Functions[i].Address] = &s.Functions[i]
	}
	sels := prepareSelectors(c)
	w := newHeldAssigner(c, sels, o.Held, byAddress)
	all := make([]candidate, 0, len(s.Functions)+len(s.Auxiliary))
	add := func(now Device) {
		h, as := w.holds[now.ID], now
		if h != nil {
			as = h.overlay(now)
		}
		d := w.describe(as)
		if o.LinkHealth {
			d.wrong = linkDown(now, byAddress)
		}
		if h != nil {
			h.found = true
			w.settle(h, &d, now)
		}
		all = append(all, d)
	}
	for i := range s.Functions {
		f := &s.Functions[i]
		add(Device{ID: f.Address, Function: f})
	}
	for i := range s.Auxiliary {
		a := &s.Auxiliary[i]
		add(Device{ID: a.Name, Function: &a.Parent, Auxiliary: a})
	}
	all = append(all, w.gone()...)
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.ID, b.ID))
	})
	return sels, all
}

// linkDown says that the network a device would be on is not there: the link of
// its PF is down, or its own where it is no VF. Of a network device that nothing
// is known of, and without one, nobody can say so.
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

func describeFunction(f *Function, byAddress map[string]*Function) candidate {
	d := candidate{
		Device: Device{ID: f.Address, Function: f}, kind: NetDevice,
		vendor: f.Vendor, model: f.Device, driver: f.Driver, address: f.Address, acpi: f.ACPIIndex,
		index: f.VF, ddp: f.DDPProfile, rdma: len(f.RDMA) > 0 || f.RDMACapable, rdmaHere: len(f.RDMA) > 0,
	}
	if f.VF != NoIndex {
		d.root, d.pfName = newFoldedName(f.PF), newFoldedName(firstOf(f.PFNames))
	}
	d.link = linkType(f.Netdevs, d.pfName.text, byAddress[f.PF])
	// RoCE has partition keys in sysfs too; they mean nothing there.
	if d.link == "infiniband" {
		d.pKey = f.PKey
	}
	if f.VDPA != nil {
		d.vdpa = map[string]string{"virtio_vdpa": "virtio", "vhost_vdpa": "vhost"}[f.VDPA.Driver]
	}
	switch {
	case f.Kind == AcceleratorClass:
		d.kind = Accelerator
	case f.DefaultRoute:
		d.leftOut = "one of its network devices carries the default route"
	case f.IsPF():
		d.leftOut = "it is a physical function with virtual ones"
	}
	if d.leftOut == "" && f.Driver == "" {
		d.leftOut = "it has no driver"
	}
	return d
}

func describeAuxiliary(a *Auxiliary, byAddress map[string]*Function) candidate {
	p := &a.Parent
	d := candidate{
		Device: Device{ID: a.Name, Function: p, Auxiliary: a}, kind: AuxNetDevice,
		vendor: p.Vendor, model: p.Device, driver: p.Driver, auxType: a.Type,
		pfName: newFoldedName(firstOf(p.PFNames)), root: newFoldedName(p.Address), index: a.Index,
		rdma: len(a.RDMA) > 0 || a.RDMACapable, rdmaHere: len(a.RDMA) > 0,
	}
	d.link = linkType(a.Netdev, d.pfName.text, byAddress[p.PF], p)
	switch {
	case p.Driver == "":
		d.leftOut = "its parent " + p.Address + " has no driver"
	case d.pfName.text == "":
		d.leftOut = "its parent " + p.Address + " has no network device"
	case a.Index < 0:
		d.leftOut = "it has no index: only scalable functions have"
	}
	return d
}

func firstOf(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// linkType is the link type of a device: that of its own network device, else
// that of the PF's by its name.
func linkType(own []Netdev, pfName string, pfs ...*Function) string {
	if len(own) > 0 {
		return own[0].Link
	}
	for _, pf := range pfs {
		if pf == nil {
			continue
		}
		for _, n := range pf.Netdevs {
			if n.Name == pfName {
				return n.Link
			}
		}
	}
	return ""
}
