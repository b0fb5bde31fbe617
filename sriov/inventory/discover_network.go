package inventory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// listTries bounds attempts to get the same names from sysfs and netlink: udev
// renames new devices.
const listTries = 3

// network uses one netlink request for all devices.
func (s *scan) network(ctx context.Context) {
	at, links, byName := s.listLinks(ctx)
	uplinks := map[string]port{} // by PF
	representors := map[representation]string{}
	for _, l := range links {
		if r, ok := represents(l); ok {
			representors[r] = l.Name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(at)) {
		where, link := at[name], byName[name]
		f, a := s.functions[where.address], s.auxiliary[where.below]
		device := Netdev{
			Name: name, Names: link.Names, Link: link.Encapsulation,
			MAC: link.MAC, MTU: link.MTU, Up: link.Running,
		}
		switch {
		case !where.isFunction():
			if a != nil && where.address != "" {
				a.Netdev = append(a.Netdev, device)
			}
		case f == nil || isRepresentor(link): // the port of another function
		default:
			f.Netdevs = append(f.Netdevs, device)
			if link.SwitchID != "" {
				uplinks[where.address] = uplinkPort(link, where.address)
			}
		}
	}
	s.routes(ctx, at, links)
	for _, f := range s.functions {
		if pf := s.functions[f.PF]; pf != nil {
			f.PFNames = pfNames(pf.Netdevs)
		}
		if up, ok := uplinks[f.PF]; ok && f.VF != NoIndex {
			// Older kernels number representors without the PF.
			f.Representor = cmp.Or(representors[representation{up, f.VF}], representors[representation{port{up.switchID, anyPF}, f.VF}])
		}
	}
}

// routes marks devices with a default route, also through an upper link such as
// a VLAN.
func (s *scan) routes(ctx context.Context, at map[string]devicePath, links []netlinks.Link) {
	routes, err := s.config.Links.DefaultRoutes(ctx)
	s.problem(WhatRoutes, err)
	for name := range carriers(links, routes) {
		where := at[name]
		if a := s.auxiliary[where.below]; a != nil && a.Parent.Address == where.address {
			a.DefaultRoute = true
		} else if f := s.functions[where.address]; f != nil && !isScalable(where) {
			f.DefaultRoute = true
		}
	}
}

func (s *scan) listLinks(ctx context.Context) (at map[string]devicePath, links []netlinks.Link, byName map[string]netlinks.Link) {
	for try := 1; ; try++ {
		at, byName = map[string]devicePath{}, map[string]netlinks.Link{}
		s.eachDevice("class/net", 2, func(_ sysfs.Dir, name string, where devicePath) { at[name] = where })
		links, err := s.config.Links.Links(ctx)
		if err != nil {
			s.problem(WhatLinks, err)
			return at, nil, nil
		}
		for _, l := range links {
			byName[l.Name] = l
		}
		var unknown []string
		for name := range at {
			if _, known := byName[name]; !known {
				unknown = append(unknown, name)
			}
		}
		if len(unknown) > 0 && try < listTries {
			continue
		}
		for _, name := range unknown {
			device := name
			if at[name].isFunction() {
				device = at[name].address
			}
			s.problemOf(device, name, fmt.Errorf("class/net has the network device %q and the kernel's list of links does not: both must be of one network namespace", name))
		}
		return at, links, byName
	}
}

// carriers returns the links of the routes and all their lower links (of VLANs,
// bonds, bridges). Open vSwitch hides its forwarding rules, so all its ports
// count.
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

// Routes of a scalable function's network device do not count for the parent.
func isScalable(at devicePath) bool {
	_, kind, _, ok := parseAuxiliary(at.below)
	return ok && kind == scalable
}

func pfNames(of []Netdev) []string {
	var names, others []string
	for _, d := range of {
		names = append(names, d.Name)
		others = append(others, d.Names...)
	}
	return append(names, others...)
}

// anyPF: port names of older kernels have only the VF index.
const anyPF = -1

// port is a PF as seen by its embedded switch.
type port struct {
	switchID string
	pf       int
}

type representation struct {
	port
	vf int
}

// Port names are p0 for the uplink, and pf0vf3, pf0sf88, c1pf0 or, in older
// kernels, 3 for representors.
func isRepresentor(l netlinks.Link) bool {
	if l.SwitchID == "" || l.PortName == "" {
		return false
	}
	first := l.PortName[0]
	return strings.HasPrefix(l.PortName, "pf") || first == 'c' || first >= '0' && first <= '9'
}

// Names with a c (controller) are functions of a host whose DPU is this
// machine.
func represents(l netlinks.Link) (representation, bool) {
	if !isRepresentor(l) {
		return representation{}, false
	}
	of := port{l.SwitchID, anyPF}
	index := l.PortName
	if rest, ok := strings.CutPrefix(index, "pf"); ok {
		pf, vf, ok := strings.Cut(rest, "vf")
		n, err := strconv.ParseUint(pf, 10, 16)
		if !ok || err != nil {
			return representation{}, false
		}
		of.pf, index = int(n), vf
	}
	vf, err := strconv.ParseUint(index, 10, 16)
	return representation{of, int(vf)}, err == nil
}

// p1 is PF 1. For other port names it is the PCI function number, as drivers
// number ports.
func uplinkPort(l netlinks.Link, address string) port {
	if n, err := strconv.ParseUint(strings.TrimPrefix(l.PortName, "p"), 10, 16); err == nil {
		return port{l.SwitchID, int(n)}
	}
	return port{l.SwitchID, int(address[len(address)-1] - '0')}
}
