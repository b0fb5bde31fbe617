package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// filter is a filter of a selector. It passes a device whose found is in wanted.
type filter struct {
	key    string   // in config.json
	wanted []string // none: the filter is not set
	passes func(*candidate) bool
	found  func(*candidate) string
}

// preparedSelector is a selector that is compared with many devices.
type preparedSelector struct {
	resource int // in Config.Resources
	index    int // in Resource.Selectors
	kind     DeviceType
	filters  []filter
	rdma     bool // containers get device nodes of RDMA
}

// prepareSelectors returns all selectors in the order in which they take
// devices.
func prepareSelectors(c Config) []preparedSelector {
	var all []preparedSelector
	for i, r := range c.Resources {
		for j, s := range r.Selectors {
			all = append(all, preparedSelector{resource: i, index: j, kind: r.Type, filters: filters(s), rdma: s.RDMA})
		}
	}
	return all
}

// refusal returns the first filter that refuses a device of the selector's
// type, nil if none does.
func (s *preparedSelector) refusal(d *candidate) *filter {
	for i := range s.filters {
		if !s.filters[i].passes(d) {
			return &s.filters[i]
		}
	}
	return nil
}

// unhealthy is why a device that the selector takes, and no pod has, is not
// healthy: a driver can report RDMA where no RDMA device exists to give to a
// container.
func (s *preparedSelector) unhealthy(d *candidate) string {
	if !s.rdma || d.hasRDMA {
		return d.wrong
	}
	return joinReasons(d.wrong, "it can do RDMA and has no RDMA device here: its driver's module for RDMA is not loaded, or the device is in another network namespace")
}

// filters returns the filters that are set.
func filters(s Selector) []filter {
	return slices.DeleteFunc(allFilters(s), func(f filter) bool { return len(f.wanted) == 0 })
}

// allFilters has all filters in upstream's order, also those that are not set.
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

// newFilter compares values as written, letter case included.
func newFilter(key string, wanted []string, found func(*candidate) string) filter {
	set := make(map[string]bool, len(wanted))
	for _, w := range wanted {
		set[w] = true
	}
	return filter{key, wanted, func(d *candidate) bool { return set[found(d)] }, found}
}

// newNonEmptyFilter refuses every device without the property.
func newNonEmptyFilter(key string, wanted []string, found func(*candidate) string) filter {
	f := newFilter(key, wanted, found)
	passes := f.passes
	f.passes = func(d *candidate) bool { return found(d) != "" && passes(d) }
	return f
}

// newPFFilter compares names of PFs in any letter case. Of the items with one
// name only the first counts.
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
