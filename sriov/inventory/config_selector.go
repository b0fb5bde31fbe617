package inventory

import (
	"fmt"
	"slices"
)

// selectors reads one selector or a list of them; false: the resource cannot
// be used. What upstream would leave out with a line in its log is left out
// with a Warning; what would make it exit is an error.
func (r *configReader) selectors(n *jsonValue, path string, t DeviceType) ([]Selector, bool) {
	items, paths := []*jsonValue{n}, []string{path}
	if n.kind == listKind {
		items, paths = n.items, nil
		for i := range items {
			paths = append(paths, fmt.Sprintf("%s[%d]", path, i))
		}
	}
	if len(items) == 0 {
		r.warn(DroppedResource, n, path, "the list is empty, want at least one selector: the resource is left out")
		return nil, false
	}
	// A resource that is left out is not warned about in detail.
	for i, item := range items {
		if item.kind == nullKind {
			r.fail(item, paths[i], "it is null, want an object")
			return nil, false
		}
		if at, where, wrong := r.misfit(item, paths[i], t); wrong != "" {
			r.warn(DroppedResource, at, where, "%s: the resource is left out", wrong)
			return nil, false
		}
	}
	before := len(r.errs)
	all := make([]Selector, len(items))
	for i, item := range items {
		all[i] = r.selector(item, paths[i], t)
	}
	return all, len(r.errs) == before
}

// The keys of a selector that hold no list of strings.
func isBoolKey(key string) bool   { return key == "isRdma" || key == "needVhostNet" }
func isStringKey(key string) bool { return key == "vdpaType" }

// misfit finds the first value of a selector that has a wrong type.
func (r *configReader) misfit(n *jsonValue, path string, t DeviceType) (at *jsonValue, where, wrong string) {
	if n.kind != objectKind {
		return n, path, fmt.Sprintf("it is %s, want an object", n.kind)
	}
	quiet := &configReader{textPosition: r.textPosition}
	quiet.members(n, path, keysOf(selectorLevel(t)), func(key string, value *jsonValue, path string) {
		want := "a list of strings"
		switch {
		case wrong != "" || value.kind == nullKind:
			return
		case isBoolKey(key) && value.kind == boolKind, isStringKey(key) && value.kind == textKind:
			return
		case isBoolKey(key):
			want = "true or false"
		case isStringKey(key):
			want = "a string"
		case value.kind == listKind:
			i := slices.IndexFunc(value.items, func(item *jsonValue) bool { return item.kind != textKind && item.kind != nullKind })
			if i < 0 {
				return
			}
			value, path, want = value.items[i], fmt.Sprintf("%s[%d]", path, i), "a string"
		}
		at, where, wrong = value, path, fmt.Sprintf("it is %s, want %s", value.kind, want)
	})
	return at, where, wrong
}

// selector reads an object without misfits.
func (r *configReader) selector(n *jsonValue, path string, t DeviceType) Selector {
	var s Selector
	lists := map[string]*[]string{"vendors": &s.Vendors, "devices": &s.Devices, "drivers": &s.Drivers, "pciAddresses": &s.PCIAddresses,
		"acpiIndexes": &s.ACPIIndexes, "auxTypes": &s.AuxTypes, "linkTypes": &s.LinkTypes, "ddpProfiles": &s.DDPProfiles, "pKeys": &s.PKeys}
	items := map[string]*[]PFItem{"pfNames": &s.PFNames, "rootDevices": &s.RootDevices}
	r.members(n, path, keysOf(selectorLevel(t)), func(key string, value *jsonValue, path string) {
		switch {
		case key == "isRdma":
			s.RDMA = value.truth
		case key == "needVhostNet":
			s.VhostNet = value.truth
		case key == "vdpaType":
			s.VDPAType = value.text
			r.vdpaType(value, path)
		case items[key] != nil:
			*items[key] = r.items(value, path, key)
		default:
			*lists[key] = r.strings(value, path, key)
		}
	})
	switch {
	case s.RDMA && s.VDPAType != "":
		r.fail(n, path, "isRdma and vdpaType %q exclude each other: take one away", s.VDPAType)
	case t == AuxNetDevice && len(s.AuxTypes) == 0:
		r.fail(n, path, "auxTypes is missing, want \"auxTypes\": [\"sf\"]")
	case !s.Filters():
		r.warn(CatchAll, n, path, "the selector has no filter: it takes every device of type %s that none before it took", t)
	}
	return s
}

func (r *configReader) strings(n *jsonValue, path, key string) []string {
	var all []string
	for i, item := range n.items {
		all = append(all, item.text)
		r.value(item, fmt.Sprintf("%s[%d]", path, i), key)
	}
	if key == "ddpProfiles" && len(all) > 0 && r.noDDPTool {
		r.warn(Surprising, n, path, "the program ddptool is not installed here: a function whose driver reports no profile by devlink (X710: none does) has none, and does not match")
	}
	if key == "linkTypes" && len(all) > 1 {
		r.warn(Surprising, n, path, "there are several link types: one is usual, as a container's network can only be of one")
	}
	return all
}

func (r *configReader) items(n *jsonValue, path, key string) []PFItem {
	var all []PFItem
	for i, item := range n.items {
		parsed, err := ParsePFItem(item.text)
		all = append(all, parsed)
		r.item(item, fmt.Sprintf("%s[%d]", path, i), key, all, err)
	}
	return all
}
