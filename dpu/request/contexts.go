package request

import (
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// maxContexts bounds the contexts of a device, in bytes, and maxKeys their
// entries: they are kept, and given back by GetDevice.
const (
	maxContexts = 128 << 10
	maxKeys     = 1024
)

// check refuses contexts that cannot be kept. How many there are comes first,
// so that nothing is read that could be without end.
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
		return errs.Errorf(errs.Invalid, "the contexts have %d keys together, %d are possible", entries, maxKeys)
	case size > maxContexts:
		return errs.Errorf(errs.Invalid, "the contexts have %d bytes together, %d are possible", size, maxContexts)
	}
	for _, m := range c.maps() {
		for _, key := range slices.Sorted(maps.Keys(m.of)) {
			switch value := m.of[key]; {
			case access.HoldsSecret(key, value) && !access.LooksSecret(key) && access.IsPath(value):
				return errs.Errorf(errs.Invalid, "%s: %s holds a path (not shown): a key is a file of the directory of keys, and its name has no slash, so that it cannot lead out of the directory of keys", m.name, access.Quote(key))
			case access.HoldsSecret(key, value):
				return errs.Errorf(errs.Invalid, "%s: %s holds what is, or may be, a key of NVMe or Ceph itself (not shown): this contract carries no secrets; put the key into a file of the directory of keys, and give the file's name, of at most 63 letters, digits, dots, dashes and underscores", m.name, access.Quote(key))
			case !utf8.ValidString(key), !utf8.ValidString(value): // it would not come back from the record as it was
				return errs.Errorf(errs.Invalid, "%s: key %s or its value is not UTF-8", m.name, access.Quote(key))
			}
		}
	}
	return nil
}

// named is one of the maps of a CreateDevice.
type named struct {
	name string
	of   map[string]string
}

func (c Contexts) maps() []named {
	return []named{{"publish_context", c.Publish}, {"volume_context", c.Volume}, {"storage_parameters", c.Storage}}
}

// Equal compares; nil and empty maps are the same.
func (c Contexts) Equal(d Contexts) bool { return len(c.Differing(d)) == 0 }

// Differing names the keys in which two differ, sorted, as volume_context/nqn.
// It names no values.
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
