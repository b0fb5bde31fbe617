package grants

import (
	"cmp"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Grace is how long a device counts as held after it was allocated, whatever the
// kubelet reports: it lists a pod only after all its Allocates.
const Grace = 2 * time.Minute

// Merge returns the devices that pods have, for inventory.Assign, and the records
// that are over, for Remove. It is pure; held is by resource and id.
//
// If known, the kubelet has reported the holders: held are these, with their
// devices as recorded, and devices within Grace. Holders of other plugins'
// resources are included; inventory.Assign ignores them. A record whose device
// has no holder is over.
//
// Otherwise a device counts as held within Grace, and while one of its network or
// RDMA devices is in no namespace of ours though its driver is the same. Its
// record is over when all of them are back. Devices that had neither (vfio-pci,
// uio), are gone or have another driver do not count as held, and their records
// stay until the kubelet reports. Such devices lose nothing to a pod that filters
// need.
//
// Of several records of one device the newest counts: it could only be allocated
// when the others were over.
func Merge(records []Record, holders []podresources.Holder, known bool, s *inventory.Snapshot, now time.Time) (held []inventory.HeldDevice, over []Record) {
	reported := map[key]bool{}
	if known {
		for _, h := range holders {
			reported[key{h.Resource, h.ID}] = true
		}
	}
	devices := map[string]inventory.Device{}
	for d := range s.Devices() {
		devices[d.ID] = d
	}
	current := newest(records)
	for _, r := range records {
		k, t := key{r.Resource, r.ID}, none
		switch {
		case reported[k]:
			delete(reported, k)
			t = away
		case current[r.ID].Resource != r.Resource:
			t = back
		case r.young(now):
			t = away
		case known:
			t = back
		default:
			t = r.trace(devices[r.ID])
		}
		switch t {
		case away:
			held = append(held, inventory.HeldDevice{Resource: r.Resource, ID: r.ID, Last: r.Device()})
		case back:
			over = append(over, r)
		}
	}
	for k := range reported {
		held = append(held, inventory.HeldDevice{Resource: k.resource, ID: k.id})
	}
	slices.SortFunc(held, func(a, b inventory.HeldDevice) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(over, compare)
	return held, over
}

// key identifies a record.
type key struct{ resource, id string }

// newest returns the record of each device that counts, by id.
func newest(records []Record) map[string]Record {
	current := map[string]Record{}
	for _, r := range records {
		c, exists := current[r.ID]
		if !exists || cmp.Or(r.At.Compare(c.At), cmp.Compare(r.Resource, c.Resource)) > 0 {
			current[r.ID] = r
		}
	}
	return current
}

// young reports whether a record is within Grace. One far in the future was made
// before the clock was set back.
func (r Record) young(now time.Time) bool { return now.Sub(r.At).Abs() < Grace }

// trace is what a snapshot shows of an allocated device.
type trace int

const (
	none trace = iota // nothing
	away              // a network or RDMA device of it is missing: a pod has it
	back              // all of them exist
)

func (r Record) trace(now inventory.Device) trace {
	if now.Function == nil || (now.Auxiliary == nil) != (r.Auxiliary == nil) {
		return none
	}
	driver, links, rdma := parts(*r.Device())
	driverNow, linksNow, rdmaNow := parts(now)
	switch {
	case driver != driverNow, links+rdma == 0:
		return none
	case linksNow < links, rdmaNow < rdma:
		return away
	}
	return back
}

// parts returns the driver and the number of network and RDMA devices.
func parts(d inventory.Device) (driver string, links, rdma int) {
	if a := d.Auxiliary; a != nil {
		return a.Driver, len(a.Netdev), len(a.RDMA)
	}
	return d.Function.Driver, len(d.Function.Netdevs), len(d.Function.RDMA)
}
