package pool

import (
	"cmp"
	"slices"

	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
)

// device is one that could be in a pool, in the words that filters use.
type device struct {
	Device
	kind    config.DeviceType
	leftOut string // why no pool may have it; "" is none

	vendor, model, driver string // for an auxiliary device, of its parent
	address, acpi         string
	auxType               string
	pfName                name // empty for a function that is no VF: it is never taken by its PF
	root                  name // likewise
	index                 int
	link                  string
	ddp, pKey             string
	rdma                  bool
	vdpa                  string // virtio, vhost
}

// devices are all of a snapshot, by type and id.
func devices(s *discovery.Snapshot) []device {
	byAddress := make(map[string]*discovery.Function, len(s.Functions))
	for i := range s.Functions {
		byAddress[s.Functions[i].Address] = &s.Functions[i]
	}
	all := make([]device, 0, len(s.Functions)+len(s.Auxiliary))
	for i := range s.Functions {
		all = append(all, function(&s.Functions[i], byAddress))
	}
	for i := range s.Auxiliary {
		all = append(all, auxiliary(&s.Auxiliary[i], byAddress))
	}
	slices.SortStableFunc(all, func(a, b device) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.ID, b.ID))
	})
	return all
}

func function(f *discovery.Function, byAddress map[string]*discovery.Function) device {
	d := device{
		Device: Device{ID: f.Address, Function: f}, kind: config.NetDevice,
		vendor: f.Vendor, model: f.Device, driver: f.Driver, address: f.Address, acpi: f.ACPIIndex,
		index: f.VF, ddp: f.DDPProfile, rdma: len(f.RDMA) > 0 || f.RDMACapable,
	}
	if f.VF != discovery.NoIndex {
		d.root, d.pfName = named(f.PF), named(first(f.PFNames))
	}
	d.link = link(f.Netdevs, d.pfName.text, byAddress[f.PF])
	// RoCE has partition keys in sysfs too; they mean nothing there.
	if d.link == "infiniband" {
		d.pKey = f.PKey
	}
	if f.VDPA != nil {
		d.vdpa = map[string]string{"virtio_vdpa": "virtio", "vhost_vdpa": "vhost"}[f.VDPA.Driver]
	}
	switch {
	case f.Kind == discovery.Accelerator:
		d.kind = config.Accelerator
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

func auxiliary(a *discovery.Auxiliary, byAddress map[string]*discovery.Function) device {
	p := &a.Parent
	d := device{
		Device: Device{ID: a.Name, Function: p, Auxiliary: a}, kind: config.AuxNetDevice,
		vendor: p.Vendor, model: p.Device, driver: p.Driver, auxType: a.Type,
		pfName: named(first(p.PFNames)), root: named(p.Address), index: a.Index, rdma: len(a.RDMA) > 0,
	}
	d.link = link(a.Netdev, d.pfName.text, byAddress[p.PF], p)
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

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// link is the link type of a device: that of its own network device, else
// that of the PF's by its name.
func link(own []discovery.Netdev, pfName string, pfs ...*discovery.Function) string {
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
