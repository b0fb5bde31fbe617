package grants

import (
	"cmp"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Grace is how long a device counts as held regardless of the kubelet, which
// lists a pod only after all its Allocate calls.
const Grace = 2 * time.Minute

// Merge returns the devices that pods hold, sorted, for inventory.Assign, and
// the stale records, for Remove.
//
// If known, holders is the kubelet's report, which decides, together with
// Grace; a record without a holder is stale. Holders of other resources are
// included.
//
// Otherwise a device counts as held within Grace, and while its driver is
// unchanged and one of its network or RDMA devices is missing on the host. Its
// record is stale when all exist again. Devices that had neither (vfio-pci,
// uio), do not exist, or have another driver do not count as held; their
// records wait for the kubelet's report. No filter depends on what such devices
// lose to a pod.
//
// The newest of a device's records counts: it could be allocated again only
// after the others were stale.
func Merge(records []Record, holders []podresources.Holder, known bool, s *inventory.Snapshot, now time.Time) (held []inventory.HeldDevice, stale []Record) {
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
		k, t := key{r.Resource, r.ID}, unknown
		switch {
		case reported[k]:
			delete(reported, k)
			t = inPod
		case current[r.ID].Resource != r.Resource:
			t = returned
		case r.withinGrace(now):
			t = inPod
		case known:
			t = returned
		default:
			t = r.presence(devices[r.ID])
		}
		switch t {
		case inPod:
			held = append(held, inventory.HeldDevice{Resource: r.Resource, ID: r.ID, Last: r.Device()})
		case returned:
			stale = append(stale, r)
		}
	}
	for k := range reported {
		held = append(held, inventory.HeldDevice{Resource: k.resource, ID: k.id})
	}
	slices.SortFunc(held, func(a, b inventory.HeldDevice) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(stale, compare)
	return held, stale
}

type key struct{ resource, id string }

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

// A record far in the future is older than a backward clock change.
func (r Record) withinGrace(now time.Time) bool { return now.Sub(r.At).Abs() < Grace }

// presence is what a snapshot shows about an allocated device.
type presence int

const (
	unknown  presence = iota
	inPod             // a network or RDMA device is missing
	returned          // all network and RDMA devices exist
)

func (r Record) presence(now inventory.Device) presence {
	if now.Function == nil || (now.Auxiliary == nil) != (r.Auxiliary == nil) {
		return unknown
	}
	driver, links, rdma := driverAndCounts(*r.Device())
	driverNow, linksNow, rdmaNow := driverAndCounts(now)
	switch {
	case driver != driverNow, links+rdma == 0:
		return unknown
	case linksNow < links, rdmaNow < rdma:
		return inPod
	}
	return returned
}

func driverAndCounts(d inventory.Device) (driver string, links, rdma int) {
	if a := d.Auxiliary; a != nil {
		return a.Driver, len(a.Netdev), len(a.RDMA)
	}
	return d.Function.Driver, len(d.Function.Netdevs), len(d.Function.RDMA)
}
