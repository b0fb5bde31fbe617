package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// filter passes devices whose found value is in wanted.
type filter struct {
	key    string
	wanted []string // empty: not set
	passes func(*candidate) bool
	found  func(*candidate) string
}

// preparedSelector is fast to compare with many devices.
type preparedSelector struct {
	resource int
	index    int
	kind     DeviceType
	filters  []filter
	rdma     bool
}

func prepareSelectors(c Config) []preparedSelector {
	var all []preparedSelector
	for i, r := range c.Resources {
		for j, s := range r.Selectors {
			all = append(all, preparedSelector{resource: i, index: j, kind: r.Type, filters: filters(s), rdma: s.RDMA})
		}
	}
	return all
}

func (s *preparedSelector) refusal(d *candidate) *filter {
	for i := range s.filters {
		if !s.filters[i].passes(d) {
			return &s.filters[i]
		}
	}
	return nil
}

// unhealthy checks free devices: a driver can report RDMA without an RDMA
// device for the container.
func (s *preparedSelector) unhealthy(d *candidate) string {
	if !s.rdma || d.hasRDMA {
		return d.wrong
	}
	return joinReasons(d.wrong, "it is RDMA capable but has no RDMA device in this network namespace: the driver's RDMA module is not loaded, or the RDMA device is in another namespace")
}

func filters(s Selector) []filter {
	return slices.DeleteFunc(allFilters(s), func(f filter) bool { return len(f.wanted) == 0 })
}

// allFilters returns the filters in upstream's order.
func allFilters(s Selector) []filter {
	var rdma, vdpa []string
	if s.RDMA {
		rdma = []string{"true"}
	}
	if s.VDPAType != "" {
		vdpa = []string{s.VDPAType}
	}
	return []filter{
		newFilter("vendors", s.Vendors, func(d *candidate) string { return d.Function.Vendor }),
		newFilter("devices", s.Devices, func(d *candidate) string { return d.Function.Device }),
		newFilter("drivers", s.Drivers, func(d *candidate) string { return d.Function.Driver }),
		newFilter("auxTypes", s.AuxTypes, func(d *candidate) string { return d.Auxiliary.Type }),
		newFilter("pciAddresses", s.PCIAddresses, func(d *candidate) string { return d.Function.Address }),
		newFilter("acpiIndexes", s.ACPIIndexes, func(d *candidate) string { return d.Function.ACPIIndex }),
		newPFFilter("pfNames", s.PFNames, func(d *candidate) string { return d.pfName }),
		newPFFilter("rootDevices", s.RootDevices, func(d *candidate) string { return d.root }),
		newFilter("linkTypes", s.LinkTypes, func(d *candidate) string { return d.link }),
		newNonEmptyFilter("ddpProfiles", s.DDPProfiles, func(d *candidate) string { return d.Function.DDPProfile }),
		newNonEmptyFilter("pKeys", s.PKeys, (*candidate).pKey),
		newFilter("isRdma", rdma, func(d *candidate) string { return strconv.FormatBool(d.canRDMA) }),
		newNonEmptyFilter("vdpaType", vdpa, func(d *candidate) string {
			if d.Function.VDPA == nil || vdpaType(d.Function.VDPA.Driver) == invalidType {
				return ""
			}
			return vdpaType(d.Function.VDPA.Driver)
		}),
	}
}

func newFilter(key string, wanted []string, found func(*candidate) string) filter {
	set := make(map[string]bool, len(wanted))
	for _, w := range wanted {
		set[w] = true
	}
	return filter{key, wanted, func(d *candidate) bool { return set[found(d)] }, found}
}

func newNonEmptyFilter(key string, wanted []string, found func(*candidate) string) filter {
	f := newFilter(key, wanted, found)
	passes := f.passes
	f.passes = func(d *candidate) bool { return found(d) != "" && passes(d) }
	return f
}

// newPFFilter ignores case. Of several items with the same name only the first
// counts.
func newPFFilter(key string, items []PFItem, pf func(*candidate) string) filter {
	var wanted []string
	for _, i := range items {
		wanted = append(wanted, i.Text)
	}
	passes := func(d *candidate) bool {
		name := pf(d)
		i := slices.IndexFunc(items, func(i PFItem) bool { return strings.EqualFold(i.Name, name) })
		return name != "" && i >= 0 && items[i].Has(d.index)
	}
	found := func(d *candidate) string {
		if name := pf(d); name != "" {
			return fmt.Sprintf("%s#%d", name, d.index)
		}
		return ""
	}
	return filter{key, wanted, passes, found}
}
