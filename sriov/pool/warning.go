package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
)

// Kind sorts warnings; it is short and fixed, as the label of a metric must be.
type Kind string

// The kinds.
const (
	Empty     Kind = "empty"      // a resource without a device
	Contested Kind = "contested"  // two resources want the same devices: the first one has them
	UnknownPF Kind = "unknown-pf" // an item of pfNames or rootDevices fits no PF
	OtherName Kind = "other-name" // an item of pfNames is a PF's alternative name: upstream knows only the first
	HostRoute Kind = "host-route" // an auxiliary device carries a default route: upstream leaves out only functions that do
	Shared    Kind = "shared"     // a function and its auxiliary devices are in pools, so that two pods may share it
)

// Warning is something about an assignment that may surprise.
type Warning struct {
	Kind     Kind
	Resource string // full name
	Text     string
}

// String is the text with the resource that it is about.
func (w Warning) String() string {
	if w.Resource == "" {
		return w.Text
	}
	return w.Resource + ": " + w.Text
}

// warnings are in the order of resources; about one resource, in that of the
// kinds.
func warnings(c config.Config, a *Assignment, all []device, lost contest) []Warning {
	pfs := physical(all)
	holders := map[string]string{} // full names by address of a function in a pool
	for _, p := range a.Pools {
		for _, m := range p.Members {
			if m.Auxiliary == nil {
				holders[m.ID] = p.Resource.FullName()
			}
		}
	}
	var found []Warning
	for i, p := range a.Pools {
		name := p.Resource.FullName()
		if len(p.Members) == 0 {
			found = append(found, Warning{Empty, name, "no device is in it"})
		}
		for _, winner := range slices.Sorted(maps.Keys(lost[i])) {
			found = append(found, Warning{Contested, name, fmt.Sprintf("%s that it selects went to %s, which stands before it",
				listed(lost[i][winner]), c.Resources[winner].FullName())})
		}
		for _, s := range p.Resource.Selectors {
			found = append(found, pfs.unknown(name, s)...)
		}
		if ids := routed(p); len(ids) > 0 {
			found = append(found, Warning{HostRoute, name, listed(ids) + " carries a default route: the pod that gets it cuts this machine off"})
		}
		found = append(found, shared(p, holders)...)
	}
	return found
}

// routed are the auxiliary devices of a pool with a default route.
func routed(p Pool) []string {
	var ids []string
	for _, m := range p.Members {
		if m.Auxiliary != nil && m.Auxiliary.DefaultRoute {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// shared warns of auxiliary devices whose parent is in a pool itself.
func shared(p Pool, holders map[string]string) []Warning {
	ids := map[string][]string{}
	for _, m := range p.Members {
		if m.Auxiliary != nil && holders[m.Function.Address] != "" {
			ids[m.Function.Address] = append(ids[m.Function.Address], m.ID)
		}
	}
	var found []Warning
	for _, address := range slices.Sorted(maps.Keys(ids)) {
		found = append(found, Warning{Shared, p.Resource.FullName(), fmt.Sprintf("%s live on %s, which is a device of %s itself",
			listed(ids[address]), address, holders[address])})
	}
	return found
}

// contest holds, by resource that lost and resource that won, the devices.
type contest map[int]map[int][]string

func (c contest) add(winner, loser int, id string) {
	if c[loser] == nil {
		c[loser] = map[int][]string{}
	}
	// Several selectors of one resource may lose the same device.
	if ids := c[loser][winner]; len(ids) == 0 || ids[len(ids)-1] != id {
		c[loser][winner] = append(ids, id)
	}
}

// listed names the first of many.
func listed(ids []string) string {
	const most = 4
	if len(ids) <= most {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
}

// roots are the functions that items can name.
type roots struct {
	names, others, addresses map[string]string // by folded name: the first name, or the address
	single                   map[string]bool   // addresses of functions that are no VF and carry no PF's functions
}

func physical(all []device) roots {
	r := roots{map[string]string{}, map[string]string{}, map[string]string{}, map[string]bool{}}
	for i := range all {
		f := all[i].Function
		if f.Kind == discovery.Accelerator || all[i].gone {
			continue
		}
		address := f.PF
		if all[i].Auxiliary != nil {
			address = f.Address
		}
		r.addresses[fold(address)] = address
		for j, name := range f.PFNames {
			if j == 0 {
				r.names[fold(name)] = address
			} else {
				r.others[fold(name)] = f.PFNames[0]
			}
		}
	}
	for i := range all {
		if address := all[i].Function.Address; all[i].kind == config.NetDevice && !all[i].gone && all[i].index == discovery.NoIndex && all[i].Function.VFs == 0 {
			r.single[address] = true
		}
	}
	return r
}

// unknown warns of items that can match nothing on this machine.
func (r roots) unknown(resource string, s config.Selector) []Warning {
	var found []Warning
	ask := func(key string, items []config.Item, known map[string]string) {
		for _, i := range items {
			address, exists := known[fold(i.Name)]
			other, otherwise := r.others[fold(i.Name)]
			switch {
			case exists && r.single[address] && len(s.AuxTypes) == 0:
				found = append(found, Warning{UnknownPF, resource, fmt.Sprintf("%s %q has no VFs now; the function itself is never taken by its name", key, i.Text)})
			case exists:
			case key == "pfNames" && otherwise:
				found = append(found, Warning{OtherName, resource, fmt.Sprintf("pfNames %q is another name of %s; only that name counts", i.Text, other)})
			default:
				found = append(found, Warning{UnknownPF, resource, fmt.Sprintf("%s %q fits no function of this machine", key, i.Text)})
			}
		}
	}
	ask("pfNames", s.PFNames, r.names)
	ask("rootDevices", s.RootDevices, r.addresses)
	slices.SortStableFunc(found, func(a, b Warning) int { return cmp.Compare(b.Kind, a.Kind) })
	return found
}
