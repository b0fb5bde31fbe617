package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/strictjson"
)

// selectors reads one selector or a list of them; false: the resource cannot
// be used. What upstream leaves out with a log line is left out with a warning;
// what makes upstream exit is an error.
func (r *configReader) selectors(v *strictjson.Value, path string, t DeviceType) ([]Selector, bool) {
	items, paths := []*strictjson.Value{v}, []string{path}
	if v.Kind == strictjson.List {
		items, paths = v.Items, nil
		for i := range items {
			paths = append(paths, fmt.Sprintf("%s[%d]", path, i))
		}
	}
	if len(items) == 0 {
		r.warn(DroppedResource, v, path, "the list is empty, want at least one selector: the resource is left out")
		return nil, false
	}
	before := len(r.problems)
	all, fields := make([]Selector, len(items)), make([]map[string]configField, len(items))
	for i, item := range items {
		fields[i] = r.decode(item, paths[i], &all[i], t)
		wrong, failed := failure(r.problems[before:])
		if !failed {
			continue
		}
		// A resource that is left out has no other warnings.
		if item.Kind != strictjson.Null {
			wrong.Kind = DroppedResource
			wrong.Text += ": the resource is left out"
		}
		r.problems = append(r.problems[:before], wrong)
		return nil, false
	}
	for i, s := range all {
		r.checkSelector(items[i], paths[i], s, t, fields[i])
	}
	_, failed := failure(r.problems[before:])
	return all, !failed
}

// checkSelector finds selectors and values that select nothing, or everything.
func (r *configReader) checkSelector(v *strictjson.Value, path string, s Selector, t DeviceType, fields map[string]configField) {
	for key, f := range fields {
		for i, item := range f.Items {
			r.checkValue(item, fmt.Sprintf("%s[%d]", f.path, i), key)
		}
	}
	r.checkItems(fields["pfNames"], s.PFNames, func(string) bool { return true })
	r.checkItems(fields["rootDevices"], s.RootDevices, func(name string) bool { return isAddress(strings.ToLower(name)) })
	if len(s.DDPProfiles) > 0 && r.noDDPTool {
		f := fields["ddpProfiles"]
		r.warn(Surprising, f.Value, f.path, "the program ddptool is not installed here: a function whose driver reports no profile by devlink (X710: none does) has none, and does not match")
	}
	if len(s.LinkTypes) > 1 {
		f := fields["linkTypes"]
		r.warn(Surprising, f.Value, f.path, "there are several link types: one is usual, as a container's network can only be of one")
	}
	if types := []string{"virtio", "vhost"}; s.VDPAType != "" && !slices.Contains(types, s.VDPAType) {
		hint := "want one of " + strings.Join(types, ", ")
		if near := errs.Nearest(strings.ToLower(s.VDPAType), types); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		f := fields["vdpaType"]
		r.warn(NoEffect, f.Value, f.path, "there is no vDPA type %q: no device matches; %s", s.VDPAType, hint)
	}
	switch {
	case s.RDMA && s.VDPAType != "":
		r.fail(v, path, "isRdma and vdpaType %q exclude each other: remove one", s.VDPAType)
	case t == AuxNetDevice && len(s.AuxTypes) == 0:
		r.fail(v, path, "auxTypes is missing, want \"auxTypes\": [\"sf\"]")
	case len(filters(s)) == 0:
		r.warn(CatchAll, v, path, "the selector has no filter: it takes every device of type %s that no selector before it took", t)
	}
}
