package grants

import (
	"cmp"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Grace is how long a device counts as held after it was given out, whatever
// anybody says: the kubelet lists a pod only after all its Allocates.
const Grace = 2 * time.Minute

// Merge says which devices pods have, for inventory.Assign, and which records are
// over, for Remove. It is pure; held is by resource and id.
//
// With known, the kubelet has told who holds what: held are the holders, with
// their devices as recorded, and devices within Grace. Holders of other plugins'
// resources go along; inventory.Assign knows which are of ours. A record whose device
// nobody holds is over.
//
// Without, a device counts as held within Grace, and while something that it had
// is in no namespace of ours though its driver is the same: its network devices
// or its RDMA devices. Its record is over once all of that is back. Of devices
// that had neither (vfio-pci, uio), or that are gone or have another driver,
// nobody can tell: they do not count as held, and their records stay until the
// kubelet is known. Such devices lose nothing to a pod that filters ask for.
//
// Of several records of one device the newest counts: it could only be given out
// when the others were over.
func Merge(records []Record, holders []podresources.Holder, known bool, s *inventory.Snapshot, now time.Time) (held []inventory.HeldDevice, drop []Record) {
	told := map[key]bool{}
	if known {
		for _, h := range holders {
			told[key{h.Resource, h.ID}] = true
		}
	}
	current, look := newest(records), at(s)
	for _, r := range records {
		switch k := (key{r.Resource, r.ID}); {
		case told[k]:
			held = append(held, inventory.HeldDevice{Resource: r.Resource, ID: r.ID, Last: r.Device()})
			delete(told, k)
		case current[r.ID] != k:
			drop = append(drop, r)
		case r.young(now):
			held = append(held, inventory.HeldDevice{Resource: r.Resource, ID: r.ID, Last: r.Device()})
		case known:
			drop = append(drop, r)
		default:
			switch found := look[r.ID]; r.trace(found) {
			case away:
				held = append(held, inventory.HeldDevice{Resource: r.Resource, ID: r.ID, Last: r.Device()})
			case back:
				drop = append(drop, r)
			}
		}
	}
	for k := range told {
		held = append(held, inventory.HeldDevice{Resource: k.resource, ID: k.id})
	}
	slices.SortFunc(held, func(a, b inventory.HeldDevice) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(drop, compare)
	return held, drop
}

// key names a record.
type key struct{ resource, id string }

// newest is the record of each device that counts, by id.
func newest(records []Record) map[string]key {
	current := map[string]Record{}
	for _, r := range records {
		c, some := current[r.ID]
		if !some || cmp.Or(r.At.Compare(c.At), cmp.Compare(r.Resource, c.Resource)) > 0 {
			current[r.ID] = r
		}
	}
	keys := make(map[string]key, len(current))
	for id, r := range current {
		keys[id] = key{r.Resource, id}
	}
	return keys
}

// at is the devices of a snapshot by id.
func at(s *inventory.Snapshot) map[string]inventory.Device {
	all := make(map[string]inventory.Device, len(s.Functions)+len(s.Auxiliary))
	for i := range s.Functions {
		f := &s.Functions[i]
		all[f.Address] = inventory.Device{ID: f.Address, Function: f}
	}
	for i := range s.Auxiliary {
		a := &s.Auxiliary[i]
		all[a.Name] = inventory.Device{ID: a.Name, Function: &a.Parent, Auxiliary: a}
	}
	return all
}

// young tells a record within Grace. One far in the future was made before the
// clock was set back.
func (r Record) young(now time.Time) bool { return now.Sub(r.At).Abs() < Grace }

// trace is what can be seen of a device that was given out.
type trace int

const (
	none trace = iota // nothing
	away              // something of it is elsewhere
	back              // all of it is here
)

func (r Record) trace(now inventory.Device) trace {
	var links, rdma, linksNow, rdmaNow int
	switch {
	case now.Function == nil || (now.Auxiliary == nil) != (r.Auxiliary == nil):
		return none
	case r.Auxiliary != nil:
		if now.Auxiliary.Driver != r.Auxiliary.Driver {
			return none
		}
		links, rdma = len(r.Auxiliary.Netdev), len(r.Auxiliary.RDMA)
		linksNow, rdmaNow = len(now.Auxiliary.Netdev), len(now.Auxiliary.RDMA)
	default:
		if now.Function.Driver != r.Function.Driver {
			return none
		}
		links, rdma = len(r.Function.Netdevs), len(r.Function.RDMA)
		linksNow, rdmaNow = len(now.Function.Netdevs), len(now.Function.RDMA)
	}
	switch {
	case links+rdma == 0:
		return none
	case linksNow < links, rdmaNow < rdma:
		return away
	}
	return back
}
