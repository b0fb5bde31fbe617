package inventory

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// filter is a filter of a selector that is set. A device that it refuses has
// found, which is none of wanted.
type filter struct {
	key    string // its key in config.json
	wanted []string
	passes func(*candidate) bool
	found  func(*candidate) string
}

// preparedSelector is one of a resource, ready to be asked about many devices.
type preparedSelector struct {
	resource int // in Config.Resources
	index    int // in Resource.Selectors
	kind     DeviceType
	checks   []filter // in upstream's order
	rdma     bool     // containers get device nodes of RDMA
}

// prepareSelectors are all of a configuration, in the order in which they may take.
func prepareSelectors(c Config) []preparedSelector {
	var all []preparedSelector
	for i, r := range c.Resources {
		for j, s := range r.Selectors {
			all = append(all, preparedSelector{resource: i, index: j, kind: r.Type, checks: filters(r.Type, s), rdma: s.RDMA && r.Type != Accelerator})
		}
	}
	return all
}

// refusal returns the first check that refuses a device of the selector's
// type, nil if none does.
func (s *preparedSelector) refusal(d *candidate) *filter {
	for i := range s.checks {
		if !s.checks[i].passes(d) {
			return &s.checks[i]
		}
	}
	return nil
}

// wrong is what is wrong with a device that the selector takes, and no pod has:
// drivers say what can do RDMA, also where there is nothing to give to a
// container.
func (s *preparedSelector) wrong(d *candidate) string {
	if !s.rdma || d.rdmaHere {
		return d.wrong
	}
	const none = "it can do RDMA and has no RDMA device here: its driver's module for RDMA is not loaded, or the device is in another network namespace"
	if d.wrong == "" {
		return none
	}
	return d.wrong + "; " + none
}

// filters are the filters that a type of device has, of those that are set.
func filters(t DeviceType, s Selector) []filter {
	all := []filter{
		stringFilter("vendors", s.Vendors, func(d *candidate) string { return d.vendor }),
		stringFilter("devices", s.Devices, func(d *candidate) string { return d.model }),
		stringFilter("drivers", s.Drivers, func(d *candidate) string { return d.driver }),
	}
	if t == AuxNetDevice {
		all = append(all, stringFilter("auxTypes", s.AuxTypes, func(d *candidate) string { return d.auxType }))
	} else {
		all = append(all, stringFilter("pciAddresses", s.PCIAddresses, func(d *candidate) string { return d.address }))
	}
	if t == NetDevice {
		all = append(all, stringFilter("acpiIndexes", s.ACPIIndexes, func(d *candidate) string { return d.acpi }))
	}
	if t != Accelerator {
		all = append(all,
			pfFilter("pfNames", s.PFNames, func(d *candidate) foldedName { return d.pfName }),
			pfFilter("rootDevices", s.RootDevices, func(d *candidate) foldedName { return d.root }),
			stringFilter("linkTypes", s.LinkTypes, func(d *candidate) string { return d.link }))
	}
	if t == NetDevice {
		all = append(all,
			nonEmptyFilter(stringFilter("ddpProfiles", s.DDPProfiles, func(d *candidate) string { return d.ddp })),
			nonEmptyFilter(stringFilter("pKeys", s.PKeys, func(d *candidate) string { return d.pKey })))
	}
	if t != Accelerator && s.RDMA {
		all = append(all, filter{key: "isRdma", wanted: []string{"true"},
			passes: func(d *candidate) bool { return d.rdma },
			found:  func(d *candidate) string { return fmt.Sprint(d.rdma) }})
	}
	if t == NetDevice && s.VDPAType != "" {
		all = append(all, nonEmptyFilter(stringFilter("vdpaType", []string{s.VDPAType}, func(d *candidate) string { return d.vdpa })))
	}
	return slices.DeleteFunc(all, func(c filter) bool { return len(c.wanted) == 0 })
}

// stringFilter is a filter that compares as values stand.
func stringFilter(key string, wanted []string, found func(*candidate) string) filter {
	c := filter{key: key, wanted: wanted, found: found}
	set := make(map[string]bool, len(wanted))
	for _, w := range wanted {
		set[w] = true
	}
	c.passes = func(d *candidate) bool { return set[found(d)] }
	return c
}

// nonEmptyFilter is a filter that a device without the property never passes.
func nonEmptyFilter(c filter) filter {
	passes := c.passes
	c.passes = func(d *candidate) bool { return c.found(d) != "" && passes(d) }
	return c
}

// pfFilter is a filter by PF: of the items with the PF's name, in any letter
// case, only the first is asked.
func pfFilter(key string, items []PFItem, pf func(*candidate) foldedName) filter {
	c := filter{key: key}
	byName := make(map[string]PFItem, len(items))
	for _, i := range items {
		c.wanted = append(c.wanted, i.Text)
		if _, later := byName[fold(i.Name)]; !later {
			byName[fold(i.Name)] = i
		}
	}
	c.passes = func(d *candidate) bool {
		n := pf(d)
		if n.text == "" {
			return false
		}
		i, known := byName[n.folded]
		return known && i.Has(d.index)
	}
	c.found = func(d *candidate) string {
		n := pf(d)
		if n.text == "" {
			return ""
		}
		return fmt.Sprintf("%s#%d", n.text, d.index)
	}
	return c
}

// foldedName is one that is compared in any letter case, folded once.
type foldedName struct{ text, folded string }

func newFoldedName(text string) foldedName { return foldedName{text, fold(text)} }

// fold makes equal what strings.EqualFold calls equal.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		switch { // the fast way: the least of an ASCII letter's equals is its capital
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case r <= unicode.MaxASCII:
			return r
		}
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, s)
}
