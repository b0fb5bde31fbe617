package pool

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/cleatproject/cleat/sriov/config"
)

// check is a filter of a selector that is set. A device that it refuses has
// found, which is none of wanted.
type check struct {
	filter string // its key in config.json
	wanted []string
	passes func(*device) bool
	found  func(*device) string
}

// selector is one of a resource, ready to be asked about many devices.
type selector struct {
	resource int // in Config.Resources
	index    int // in Resource.Selectors
	kind     config.DeviceType
	checks   []check // in upstream's order
	rdma     bool    // containers get device nodes of RDMA
}

// selectors are all of a configuration, in the order in which they may take.
func selectors(c config.Config) []selector {
	var all []selector
	for i, r := range c.Resources {
		for j, s := range r.Selectors {
			all = append(all, selector{resource: i, index: j, kind: r.Type, checks: checks(r.Type, s), rdma: s.RDMA && r.Type != config.Accelerator})
		}
	}
	return all
}

// refusal returns the first check that refuses a device of the selector's
// type, nil if none does.
func (s *selector) refusal(d *device) *check {
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
func (s *selector) wrong(d *device) string {
	if !s.rdma || d.rdmaHere {
		return d.wrong
	}
	const none = "it can do RDMA and has no RDMA device here: its driver's module for RDMA is not loaded, or the device is in another network namespace"
	if d.wrong == "" {
		return none
	}
	return d.wrong + "; " + none
}

// checks are the filters that a type of device has, of those that are set.
func checks(t config.DeviceType, s config.Selector) []check {
	all := []check{
		word("vendors", s.Vendors, func(d *device) string { return d.vendor }),
		word("devices", s.Devices, func(d *device) string { return d.model }),
		word("drivers", s.Drivers, func(d *device) string { return d.driver }),
	}
	if t == config.AuxNetDevice {
		all = append(all, word("auxTypes", s.AuxTypes, func(d *device) string { return d.auxType }))
	} else {
		all = append(all, word("pciAddresses", s.PCIAddresses, func(d *device) string { return d.address }))
	}
	if t == config.NetDevice {
		all = append(all, word("acpiIndexes", s.ACPIIndexes, func(d *device) string { return d.acpi }))
	}
	if t != config.Accelerator {
		all = append(all,
			item("pfNames", s.PFNames, func(d *device) name { return d.pfName }),
			item("rootDevices", s.RootDevices, func(d *device) name { return d.root }),
			word("linkTypes", s.LinkTypes, func(d *device) string { return d.link }))
	}
	if t == config.NetDevice {
		all = append(all,
			nonEmpty(word("ddpProfiles", s.DDPProfiles, func(d *device) string { return d.ddp })),
			nonEmpty(word("pKeys", s.PKeys, func(d *device) string { return d.pKey })))
	}
	if t != config.Accelerator && s.RDMA {
		all = append(all, check{filter: "isRdma", wanted: []string{"true"},
			passes: func(d *device) bool { return d.rdma },
			found:  func(d *device) string { return fmt.Sprint(d.rdma) }})
	}
	if t == config.NetDevice && s.VDPAType != "" {
		all = append(all, nonEmpty(word("vdpaType", []string{s.VDPAType}, func(d *device) string { return d.vdpa })))
	}
	return slices.DeleteFunc(all, func(c check) bool { return len(c.wanted) == 0 })
}

// word is a filter that compares as values stand.
func word(filter string, wanted []string, found func(*device) string) check {
	c := check{filter: filter, wanted: wanted, found: found}
	set := make(map[string]bool, len(wanted))
	for _, w := range wanted {
		set[w] = true
	}
	c.passes = func(d *device) bool { return set[found(d)] }
	return c
}

// nonEmpty is a filter that a device without the property never passes.
func nonEmpty(c check) check {
	passes := c.passes
	c.passes = func(d *device) bool { return c.found(d) != "" && passes(d) }
	return c
}

// item is a filter by PF: of the items with the PF's name, in any letter
// case, only the first is asked.
func item(filter string, items []config.Item, pf func(*device) name) check {
	c := check{filter: filter}
	byName := make(map[string]config.Item, len(items))
	for _, i := range items {
		c.wanted = append(c.wanted, i.Text)
		if _, later := byName[fold(i.Name)]; !later {
			byName[fold(i.Name)] = i
		}
	}
	c.passes = func(d *device) bool {
		n := pf(d)
		if n.text == "" {
			return false
		}
		i, known := byName[n.folded]
		return known && i.Has(d.index)
	}
	c.found = func(d *device) string {
		n := pf(d)
		if n.text == "" {
			return ""
		}
		return fmt.Sprintf("%s#%d", n.text, d.index)
	}
	return c
}

// name is one that is compared in any letter case, folded once.
type name struct{ text, folded string }

func named(text string) name { return name{text, fold(text)} }

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
