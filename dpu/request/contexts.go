package request

import (
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// Limits of a device's contexts (bytes, entries), which are recorded and
// returned by GetDevice.
const (
	maxContexts = 128 << 10
	maxKeys     = 1024
)

// check refuses contexts that cannot be recorded, by size first, to bound the
// work.
func (c Contexts) check() error {
	entries, size := 0, 0
	for _, m := range c.maps() {
		entries += len(m.of)
		for key, value := range m.of {
			size += len(key) + len(value)
		}
	}
	switch {
	case entries > maxKeys:
		return errs.Errorf(errs.Invalid, "the contexts have %d keys in total, at most %d are allowed", entries, maxKeys)
	case size > maxContexts:
		return errs.Errorf(errs.Invalid, "the contexts have %d bytes in total, at most %d are allowed", size, maxContexts)
	}
	for _, m := range c.maps() {
		for _, key := range slices.Sorted(maps.Keys(m.of)) {
			switch value := m.of[key]; {
			case access.HoldsSecret(key, value) && !access.LooksSecret(key) && access.IsPath(value):
				return errs.Errorf(errs.Invalid, "%s: %s holds a path (not shown): give the name of a file in the key directory, without slashes", m.name, access.Quote(key))
			case access.HoldsSecret(key, value):
				return errs.Errorf(errs.Invalid, "%s: %s looks like an NVMe or Ceph key (not shown): secrets are not allowed here. Put the key into a file of the key directory and give the file's name: at most 63 letters, digits, dots, dashes and underscores", m.name, access.Quote(key))
			case !utf8.ValidString(key), !utf8.ValidString(value): // JSON would not preserve it
				return errs.Errorf(errs.Invalid, "%s: key %s or its value is not UTF-8", m.name, access.Quote(key))
			}
		}
	}
	return nil
}

type named struct {
	name string
	of   map[string]string
}

func (c Contexts) maps() []named {
	return []named{{"publish_context", c.Publish}, {"volume_context", c.Volume}, {"storage_parameters", c.Storage}}
}

// Equal compares contexts; nil and empty maps are equal.
func (c Contexts) Equal(d Contexts) bool { return len(c.Differing(d)) == 0 }

// Differing returns the keys (no values) whose values differ, sorted, such as
// volume_context/nqn.
func (c Contexts) Differing(d Contexts) []string {
	var all []string
	for i, ours := range c.maps() {
		theirs := d.maps()[i].of
		for key, value := range ours.of {
			if other, has := theirs[key]; !has || other != value {
				all = append(all, ours.name+"/"+key)
			}
		}
		for key := range theirs {
			if _, has := ours.of[key]; !has {
				all = append(all, ours.name+"/"+key)
			}
		}
	}
	slices.Sort(all)
	return all
}
