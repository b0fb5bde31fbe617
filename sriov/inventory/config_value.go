package inventory

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/strictjson"
)

var (
	hexID        = regexp.MustCompile(`^[0-9a-f]{4}$`)
	partitionKey = regexp.MustCompile(`^0x[0-9a-f]{4}$`)
)

// checkValue warns of a value that no device can have. Values are compared as
// written, letter case included, with those of sysfs.
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
		}
	}
}

// checkForm warns of a value without the form that all devices have; near is
// proposed if it has that form.
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

// checkItems warns of elements of pfNames or rootDevices; isPF reports whether
// a PF can have the name.
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
