package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PoolWarningKind is usable as a metric label.
type PoolWarningKind string

const (
	EmptyPool      PoolWarningKind = "empty"
	Contested      PoolWarningKind = "contested" // two resources select the same devices: the first has them
	UnknownPF      PoolWarningKind = "unknown-pf"
	OtherName      PoolWarningKind = "other-name" // a PF's alternative name: upstream knows only the first
	HostRoute      PoolWarningKind = "host-route" // upstream leaves out only functions with a default route, not auxiliary devices
	SharedFunction PoolWarningKind = "shared"     // a function and its auxiliary devices: two pods can share it
)

// PoolWarning describes a possibly unintended effect of an assignment.
type PoolWarning struct {
	Kind     PoolWarningKind
	Resource string
	Text     string
}

// String returns the text with its resource.
func (w PoolWarning) String() string {
	if w.Resource == "" {
		return w.Text
	}
	return w.Resource + ": " + w.Text
}

// poolWarnings returns warnings in the order of resources, then of kinds.
func poolWarnings(c Config, a *Assignment, all []candidate, lost contest) []PoolWarning {
	pfs := findPFs(all)
	holders := map[string]string{} // by function address
	for _, p := range a.Pools {
		for _, m := range p.Members {
			if m.Auxiliary == nil {
				holders[m.ID] = p.Resource.FullName()
			}
		}
	}
	var found []PoolWarning
	for i, p := range a.Pools {
		name := p.Resource.FullName()
		if len(p.Members) == 0 {
			found = append(found, PoolWarning{EmptyPool, name, "no device is in it"})
		}
		for _, winner := range slices.Sorted(maps.Keys(lost[i])) {
			found = append(found, PoolWarning{Contested, name, fmt.Sprintf("%s that it selects went to %s, which comes before it",
				listIDs(lost[i][winner]), c.Resources[winner].FullName())})
		}
		for _, s := range p.Resource.Selectors {
			found = append(found, pfs.unmatched(name, s)...)
		}
		if ids := routed(p); len(ids) > 0 {
			found = append(found, PoolWarning{HostRoute, name, listIDs(ids) + " carries a default route: allocating it to a pod disconnects this machine"})
		}
		found = append(found, shared(p, holders)...)
	}
	return found
}

func routed(p Pool) []string {
	var ids []string
	for _, m := range p.Members {
		if m.Auxiliary != nil && m.Auxiliary.DefaultRoute {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

func shared(p Pool, holders map[string]string) []PoolWarning {
	ids := map[string][]string{}
	for _, m := range p.Members {
		if m.Auxiliary != nil && holders[m.Function.Address] != "" {
			ids[m.Function.Address] = append(ids[m.Function.Address], m.ID)
		}
	}
	var found []PoolWarning
	for _, address := range slices.Sorted(maps.Keys(ids)) {
		found = append(found, PoolWarning{SharedFunction, p.Resource.FullName(), fmt.Sprintf("%s are on %s, which is itself a device of %s",
			listIDs(ids[address]), address, holders[address])})
	}
	return found
}

// contest has ids by losing and winning resource.
type contest map[int]map[int][]string

func (c contest) add(winner, loser int, id string) {
	if c[loser] == nil {
		c[loser] = map[int][]string{}
	}
	if ids := c[loser][winner]; len(ids) == 0 || ids[len(ids)-1] != id {
		c[loser][winner] = append(ids, id)
	}
}

func listIDs(ids []string) string {
	const most = 4
	if len(ids) <= most {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
}

// knownPFs has lower-case names and PF addresses.
type knownPFs struct {
	names, addresses map[string]string
	otherNames       map[string]string // primary by alternative
	withoutVFs       map[string]bool   // neither VFs nor PFs with VFs
}

func findPFs(all []candidate) knownPFs {
	k := knownPFs{map[string]string{}, map[string]string{}, map[string]string{}, map[string]bool{}}
	for i := range all {
		d, f := &all[i], all[i].Function
		if f.Kind == AcceleratorClass || d.gone {
			continue
		}
		address := f.PF
		if d.Auxiliary != nil {
			address = f.Address
		}
		k.addresses[strings.ToLower(address)] = address
		for j, name := range f.PFNames {
			if j == 0 {
				k.names[strings.ToLower(name)] = address
			} else {
				k.otherNames[strings.ToLower(name)] = f.PFNames[0]
			}
		}
		if d.kind == NetDevice && d.index == NoIndex && f.VFs == 0 {
			k.withoutVFs[f.Address] = true
		}
	}
	return k
}

func (k knownPFs) unmatched(resource string, s Selector) []PoolWarning {
	var found []PoolWarning
	check := func(key string, items []PFItem, known map[string]string) {
		for _, i := range items {
			address, exists := known[strings.ToLower(i.Name)]
			name, isOther := k.otherNames[strings.ToLower(i.Name)]
			switch {
			case exists && k.withoutVFs[address] && len(s.AuxTypes) == 0:
				found = append(found, PoolWarning{UnknownPF, resource, fmt.Sprintf("%s %q has no VFs now; the function itself is never taken by its name", key, i.Text)})
			case exists:
			case key == "pfNames" && isOther:
				found = append(found, PoolWarning{OtherName, resource, fmt.Sprintf("pfNames %q is another name of %s; only that name counts", i.Text, name)})
			default:
				found = append(found, PoolWarning{UnknownPF, resource, fmt.Sprintf("%s %q fits no function of this machine", key, i.Text)})
			}
		}
	}
	check("pfNames", s.PFNames, k.names)
	check("rootDevices", s.RootDevices, k.addresses)
	slices.SortStableFunc(found, func(a, b PoolWarning) int { return cmp.Compare(b.Kind, a.Kind) })
	return found
}
