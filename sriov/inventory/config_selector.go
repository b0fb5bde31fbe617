package inventory

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/strictjson"
)

// What upstream skips with a log line is a warning; what makes it exit is an
// error.
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
		// Other warnings about a resource that is left out are dropped.
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
	if types := []string{virtioType, vhostType}; s.VDPAType != "" && !slices.Contains(types, s.VDPAType) {
		f := fields["vdpaType"]
		r.warn(NoEffect, f.Value, f.path, "there is no vDPA type %q: no device matches; %s", s.VDPAType, proposal(s.VDPAType, types))
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

var (
	hexID        = regexp.MustCompile(`^[0-9a-f]{4}$`)
	partitionKey = regexp.MustCompile(`^0x[0-9a-f]{4}$`)
)

// checkValue warns about a value that no device can have; sysfs values are
// case-sensitive.
func (r *configReader) checkValue(v *strictjson.Value, path, key string) {
	text := v.Text
	switch key {
	case "vendors", "devices":
		r.checkForm(v, path, hexID.MatchString, "four hexadecimal digits in lower case", strings.TrimPrefix(strings.ToLower(text), "0x"))
	case "pciAddresses":
		near := strings.ToLower(text)
		if strings.Count(near, ":") == 1 {
			near = "0000:" + near
		}
		r.checkForm(v, path, isAddress, "a PCI address such as 0000:3b:02.1 in lower case", near)
	case "pKeys":
		digits := strings.TrimPrefix(strings.ToLower(text), "0x")
		r.checkForm(v, path, partitionKey.MatchString, "a partition key as sysfs writes it, such as 0x8001", "0x"+strings.Repeat("0", max(0, 4-len(digits)))+digits)
	case "auxTypes":
		if text != scalable {
			r.fail(v, path, "there is no auxiliary type %q, want %q", text, scalable)
		}
	case "linkTypes":
		if text != "ether" && text != "infiniband" {
			r.warn(Surprising, v, path, "%q is neither ether nor infiniband: network functions hardly have another link type", text)
		}
	case "acpiIndexes":
		if text == "" {
			r.warn(Surprising, v, path, "the empty value matches every function without an ACPI index")
		}
	case "drivers", "ddpProfiles":
		if text == "" {
			r.warn(NoEffect, v, path, "the empty value matches no device")
		} else if key == "drivers" {
			r.checkDriver(v, path)
		}
	}
}

// checkDriver warns about names that are no drivers of functions. Each of them was
// reported upstream as a pool that stays empty.
func (r *configReader) checkDriver(v *strictjson.Value, path string) {
	switch name := v.Text; name {
	case "mlx4_ib", "mlx5_ib", "irdma", "bnxt_re", "qedr", "hns_roce":
		function := map[string]string{
			"mlx4_ib": "mlx4_core", "mlx5_ib": "mlx5_core", "irdma": "iavf", "bnxt_re": "bnxt_en", "qedr": "qede", "hns_roce": "hns3",
		}[name]
		r.warn(Surprising, v, path, "%q matches no device: it is the driver of an RDMA device; the driver of its function is %q, and isRdma selects functions with RDMA", name, function)
	case "netdevice", "vfio", "accelerator", "auxNetDevice":
		r.warn(Surprising, v, path, "%q matches no device: no driver has this name; leave drivers out, or write the name that explain shows, such as \"iavf\", \"mlx5_core\" or \"vfio-pci\"", name)
	}
}

// checkForm warns about a malformed value, and suggests near if that is well
// formed.
func (r *configReader) checkForm(v *strictjson.Value, path string, hasForm func(string) bool, want, near string) {
	if hasForm(v.Text) {
		return
	}
	hint := "want " + want
	if hasForm(near) {
		hint = fmt.Sprintf("did you mean %q? Want %s", near, want)
	}
	r.warn(NoEffect, v, path, "%q matches no device; %s", v.Text, hint)
}

func (r *configReader) checkItems(f configField, items []PFItem, isPF func(name string) bool) {
	for n, i := range items {
		v, path := f.Items[n], fmt.Sprintf("%s[%d]", f.path, n)
		if _, err := ParsePFItem(i.Text); err != nil {
			r.warn(BadRange, v, path, "%v", err)
		}
		if i.Name == "" {
			r.warn(NoEffect, v, path, "%q names no PF: no device matches", i.Text)
			continue
		}
		if !isPF(i.Name) {
			r.warn(NoEffect, v, path, "%q matches no device; want the address of a PF such as 0000:3b:00.1", i.Name)
		}
		first := slices.IndexFunc(items, func(o PFItem) bool { return strings.EqualFold(o.Name, i.Name) })
		if first < n {
			r.warn(NoEffect, v, path, "only the first item of a PF counts, which is %q; write all its functions there, for example %q", items[first].Text, i.Name+"#0-3,5")
		}
		for _, s := range i.Spans {
			if s.First > s.Last {
				r.warn(NoEffect, v, path, "the range %d-%d of %q is empty; did you mean %d-%d?", s.First, s.Last, i.Text, s.Last, s.First)
			}
		}
	}
}

// PFItem is an element of pfNames or rootDevices: a PF and its selected
// functions. "eth0" selects all functions, "eth0#0-3,5" selects five.
type PFItem struct {
	Text  string
	Name  string
	All   bool
	Spans []IndexRange // unless All
}

// IndexRange is an inclusive range of function indexes. It is empty if First >
// Last.
type IndexRange struct{ First, Last int }

// Has reports whether the item selects a function.
func (i PFItem) Has(index int) bool {
	return i.All || slices.ContainsFunc(i.Spans, func(s IndexRange) bool { return s.First <= index && index <= s.Last })
}

// ParsePFItem parses one item. With an error it returns the ranges before the
// first invalid one, as upstream does.
func ParsePFItem(text string) (PFItem, error) {
	name, functions, some := strings.Cut(text, "#")
	i := PFItem{Text: text, Name: name, All: !some}
	if !some {
		return i, nil
	}
	if strings.Contains(functions, "#") {
		return i, fmt.Errorf("%q has more than one #: it names no function, want for example %q", text, name+"#0-3,5")
	}
	for part := range strings.SplitSeq(functions, ",") {
		s, err := parseIndexRange(part)
		if err != nil {
			return i, fmt.Errorf("%q: %w; it and what follows it name no function, want for example %q", text, err, name+"#0-3,5")
		}
		i.Spans = append(i.Spans, s)
	}
	return i, nil
}

// UnmarshalText implements encoding.TextUnmarshaler with ParsePFItem.
func (i *PFItem) UnmarshalText(text []byte) (err error) {
	*i, err = ParsePFItem(string(text))
	return err
}

func parseIndexRange(text string) (IndexRange, error) {
	low, high, isRange := strings.Cut(text, "-")
	first, err := strconv.Atoi(low)
	if err != nil {
		return IndexRange{}, fmt.Errorf("%q is neither a number nor a range", text)
	}
	if !isRange {
		return IndexRange{First: first, Last: first}, nil
	}
	last, err := strconv.Atoi(high)
	if err != nil || strings.Contains(high, "-") {
		return IndexRange{}, fmt.Errorf("%q is neither a number nor a range", text)
	}
	return IndexRange{First: first, Last: last}, nil
}
