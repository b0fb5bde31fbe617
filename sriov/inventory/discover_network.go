package inventory

import (
	"context"
	"fmt"
	"slices"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// network is the network devices of this namespace, and where they hang.
type network struct {
	functions map[string][]Netdev // by address of the function
	auxiliary map[string][]Netdev // by name of the auxiliary device
	// What carries a default route, also through something that lies above it.
	routed map[devicePath]bool
	uplink map[string]port           // of a PF, by address
	ports  map[representation]string // names of representors
}

// listTries bounds how often the devices in sysfs and the kernel's links are
// listed until both have the same names: udev renames devices as they come.
const listTries = 3

// network asks for all links at once, instead of for each device.
func (s *scan) network(ctx context.Context) *network {
	n := &network{
		functions: map[string][]Netdev{}, auxiliary: map[string][]Netdev{},
		routed: map[devicePath]bool{}, uplink: map[string]port{}, ports: map[representation]string{},
	}
	at, names, links := s.listLinks(ctx)
	byName := linksByName(links)
	for _, l := range links {
		if r, ok := represents(l); ok {
			n.ports[r] = l.Name
		}
	}
	for _, name := range names {
		where, link := at[name], byName[name]
		device := Netdev{
			Name: name, Names: link.Names, Link: link.Encapsulation,
			MAC: link.MAC, MTU: link.MTU, Up: link.Running,
		}
		switch {
		case !where.isFunction():
			if where.address != "" {
				n.auxiliary[where.below] = append(n.auxiliary[where.below], device)
			}
		case isRepresentor(link): // it is of somebody else's port
		default:
			n.functions[where.address] = append(n.functions[where.address], device)
			if link.SwitchID != "" {
				n.uplink[where.address] = uplinkPort(link, where.address)
			}
		}
	}
	routes, err := s.config.Links.DefaultRoutes(ctx)
	if err != nil {
		s.problem(WhatRoutes, err)
	}
	for name := range carriers(links, routes) {
		if where := at[name]; where.address != "" {
			n.routed[where] = true
		}
	}
	return n
}

// listLinks is where each network device hangs, their names in order, and the
// kernel's links.
func (s *scan) listLinks(ctx context.Context) (map[string]devicePath, []string, []netlinks.Link) {
	for try := 1; ; try++ {
		at, names := map[string]devicePath{}, []string(nil)
		s.each("class/net", 2, func(_ sysfs.Dir, name string, where devicePath) {
			at[name] = where
			names = append(names, name)
		})
		links, err := s.config.Links.Links(ctx)
		if err != nil {
			s.problem(WhatLinks, err)
			return at, names, nil
		}
		byName := linksByName(links)
		var unknown []string
		for _, name := range names {
			if _, known := byName[name]; !known {
				unknown = append(unknown, name)
			}
		}
		if len(unknown) == 0 {
			return at, names, links
		}
		if try == listTries {
			for _, name := range unknown {
				s.problem(name, fmt.Errorf("class/net has the network device %q and the kernel's list of links does not: both must be of one network namespace", name))
			}
			return at, names, links
		}
	}
}

func linksByName(links []netlinks.Link) map[string]netlinks.Link {
	byName := make(map[string]netlinks.Link, len(links))
	for _, l := range links {
		byName[l.Name] = l
	}
	return byName
}

// carriers is the names of the links that the routes use and of all that lie
// below: a VLAN's link, the members of a bond or bridge. What Open vSwitch
// forwards where only its own rules tell, so all its ports count.
func carriers(links []netlinks.Link, routes []int) map[string]bool {
	byIndex := map[int]netlinks.Link{}
	members := map[int][]int{}
	for _, l := range links {
		byIndex[l.Index] = l
	}
	var switched []int
	for _, l := range links {
		if l.Master == 0 {
			continue
		}
		members[l.Master] = append(members[l.Master], l.Index)
		if byIndex[l.Master].Kind == "openvswitch" {
			switched = append(switched, l.Index)
		}
	}
	names, seen := map[string]bool{}, map[int]bool{}
	for below := slices.Clone(routes); len(below) > 0; {
		index := below[len(below)-1]
		below = below[:len(below)-1]
		l, known := byIndex[index]
		if !known || seen[index] {
			continue
		}
		seen[index] = true
		names[l.Name] = true
		below = append(below, members[index]...)
		if l.Lower != 0 {
			below = append(below, l.Lower)
		}
		if l.Kind == "openvswitch" {
			below = append(below, switched...)
			switched = nil
		}
	}
	return names
}

// tell puts what is known of network devices into the functions.
func (n *network) tell(functions devices) {
	for at := range n.routed {
		if f := functions.at[at.address]; f != nil && !isScalable(at) {
			f.DefaultRoute = true
		}
	}
	for _, f := range functions.ordered {
		f.Netdevs = n.functions[f.Address]
		f.PFNames = pfNames(n.functions[f.PF])
		if f.VF == NoIndex {
			continue
		}
		if up, ok := n.uplink[f.PF]; ok {
			f.Representor = n.ports[representation{up, f.VF}]
			if f.Representor == "" { // older kernels number them without the PF
				f.Representor = n.ports[representation{port{up.switchID, anyPF}, f.VF}]
			}
		}
	}
}

// isScalable tells a network device of a scalable function, whose routes are
// not those of the function above.
func isScalable(at devicePath) bool {
	_, kind, _, ok := parseAuxiliary(at.below)
	return ok && kind == scalable
}

// pfNames is by what a PF is known: first the names that sysfs has.
func pfNames(of []Netdev) []string {
	var names, others []string
	for _, d := range of {
		names = append(names, d.Name)
		others = append(others, d.Names...)
	}
	return append(names, others...)
}
