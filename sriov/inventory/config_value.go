package inventory

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// value warns of a value that no device can have. Values are compared as they
// stand, letter case included, with what sysfs says.
func (r *configReader) value(n *jsonValue, path, key string) {
	v := n.text
	switch key {
	case "vendors", "devices":
		if !regexp.MustCompile(`^[0-9a-f]{4}$`).MatchString(v) {
			r.never(n, path, "four hexadecimal digits in lower case", strings.TrimPrefix(strings.ToLower(v), "0x"), regexp.MustCompile(`^[0-9a-f]{4}$`))
		}
	case "pciAddresses":
		if !isPCIAddress(v) {
			near := strings.ToLower(v)
			if strings.Count(near, ":") == 1 {
				near = "0000:" + near
			}
			r.never(n, path, "a PCI address such as 0000:3b:02.1 in lower case", near, addressForm())
		}
	case "auxTypes":
		if v != "sf" {
			r.fail(n, path, "there is no auxiliary type %q, want \"sf\"", v)
		}
	case "linkTypes":
		if known := []string{"ether", "infiniband"}; !slices.Contains(known, v) {
			r.warn(Surprising, n, path, "%q is none of %s: network functions hardly have another link type", v, strings.Join(known, ", "))
		}
	case "pKeys":
		if !regexp.MustCompile(`^0x[0-9a-f]{4}$`).MatchString(v) {
			r.never(n, path, "a partition key as sysfs writes it, such as 0x8001", padded(v), regexp.MustCompile(`^0x[0-9a-f]{4}$`))
		}
	case "acpiIndexes":
		if v == "" {
			r.warn(Surprising, n, path, "the empty value matches every function without an ACPI index")
		}
	case "drivers", "ddpProfiles":
		if v == "" {
			r.warn(NoEffect, n, path, "the empty value matches no device")
		}
	}
}

// never warns of a value that matches nothing; near is proposed if it is of
// the right form.
func (r *configReader) never(n *jsonValue, path, want, near string, form *regexp.Regexp) {
	hint := "want " + want
	if form.MatchString(near) {
		hint = fmt.Sprintf("did you mean %q? Want %s", near, want)
	}
	r.warn(NoEffect, n, path, "%q matches no device; %s", n.text, hint)
}

// padded writes a partition key with all its digits: 0x1 is 0x0001.
func padded(v string) string {
	digits := strings.TrimPrefix(strings.ToLower(v), "0x")
	return "0x" + strings.Repeat("0", max(0, 4-len(digits))) + digits
}

func addressForm() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
}

func isPCIAddress(v string) bool { return addressForm().MatchString(v) }

func (r *configReader) vdpaType(n *jsonValue, path string) {
	known := []string{"virtio", "vhost"}
	if n.text == "" || slices.Contains(known, n.text) {
		return
	}
	hint := "want one of " + strings.Join(known, ", ")
	if near := errs.Nearest(strings.ToLower(n.text), known); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	r.warn(NoEffect, n, path, "there is no vDPA type %q: no device matches; %s", n.text, hint)
}

// item warns of the last of items, an element of pfNames or rootDevices.
func (r *configReader) item(n *jsonValue, path, key string, items []PFItem, err error) {
	i := items[len(items)-1]
	if err != nil {
		r.warn(BadRange, n, path, "%v", err)
	}
	if i.Name == "" {
		r.warn(NoEffect, n, path, "%q names no PF: no device matches", i.Text)
		return
	}
	if key == "rootDevices" && !isPCIAddress(strings.ToLower(i.Name)) {
		r.warn(NoEffect, n, path, "%q matches no device; want the address of a PF such as 0000:3b:00.1", i.Name)
	}
	same := func(o PFItem) bool { return strings.EqualFold(o.Name, i.Name) }
	if first := slices.IndexFunc(items, same); first < len(items)-1 {
		r.warn(NoEffect, n, path, "only the first item of a PF counts, which is %q; write all its functions there, for example %q", items[first].Text, i.Name+"#0-3,5")
	}
	for _, s := range i.Spans {
		if s.First > s.Last {
			r.warn(NoEffect, n, path, "the range %d-%d of %q is empty; did you mean %d-%d?", s.First, s.Last, i.Text, s.Last, s.First)
		}
	}
}
