package table

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
)

// index holds the records in memory.
type index struct {
	devices map[string]Device
	byName  map[string]string
	order   []string
	objects map[plan.ID]Object
	users   map[plan.ID][]string // no empty lists
	unused  map[plan.ID]struct{}
	takers  map[string]plan.ID // see plan.Object.Exclusive
	// By volume; see Identity.
	identities map[string]string
}

func newIndex() index {
	return index{
		devices: map[string]Device{}, byName: map[string]string{}, objects: map[plan.ID]Object{},
		users: map[plan.ID][]string{}, unused: map[plan.ID]struct{}{}, takers: map[string]plan.ID{},
		identities: map[string]string{},
	}
}

func (x *index) setObject(o Object) {
	x.dropObject(o.ID)
	x.objects[o.ID] = o
	if taken := o.Exclusive(); taken != "" {
		x.takers[taken] = o.ID
	}
	x.noteUse(o.ID)
}

func (x *index) dropObject(id plan.ID) {
	if o, ok := x.objects[id]; ok {
		delete(x.objects, id)
		delete(x.takers, o.Exclusive())
	}
	x.noteUse(id)
}

func (x *index) noteUse(id plan.ID) {
	if _, known := x.objects[id]; known && len(x.users[id]) == 0 {
		x.unused[id] = struct{}{}
	} else {
		delete(x.unused, id)
	}
}

func (x *index) setDevice(d Device) {
	x.dropDevice(d.Volume)
	x.devices[d.Volume] = d
	if d.Name != "" {
		x.byName[d.Name] = d.Volume
	}
	for _, id := range d.Objects {
		x.users[id] = with(x.users[id], d.Volume)
		x.noteUse(id)
	}
	x.order = with(x.order, d.Volume)
	if uuid := d.identity(); uuid != "" {
		x.identities[d.Volume] = uuid
	}
}

func (x *index) dropDevice(volumeID string) {
	d, ok := x.devices[volumeID]
	if !ok {
		return
	}
	delete(x.devices, volumeID)
	delete(x.byName, d.Name)
	for _, id := range d.Objects {
		if x.users[id] = without(x.users[id], volumeID); len(x.users[id]) == 0 {
			delete(x.users, id)
		}
		x.noteUse(id)
	}
	x.order = without(x.order, volumeID)
}

// with and without move the tail of a list: microseconds for ten thousand
// volumes, compared with milliseconds for the write to disk.
func with(sorted []string, s string) []string {
	at, found := slices.BinarySearch(sorted, s)
	if found {
		return sorted
	}
	return slices.Insert(sorted, at, s)
}

func without(sorted []string, s string) []string {
	at, found := slices.BinarySearch(sorted, s)
	if !found {
		return sorted
	}
	return slices.Delete(sorted, at, at+1)
}

func (x *index) sorted(ids iter.Seq[plan.ID]) []Object {
	var all []Object
	for id := range ids {
		all = append(all, x.objects[id].clone())
	}
	slices.SortFunc(all, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// subject returns the prefix of a message; empty for nil.
func (d *Device) subject() string {
	if d == nil {
		return ""
	}
	return "volume " + d.Volume + ": "
}

// admit checks that records are consistent with the existing ones. d is
// optional.
func (t *Table) admit(d *Device, objects []Object) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	coming, takers := map[plan.ID]bool{}, map[string]plan.ID{}
	for _, o := range objects {
		if !o.Fits() {
			return errs.Errorf(errs.Internal, "the fields of %s do not match its kind", o.ID)
		}
		coming[o.ID] = true
		taken := o.Exclusive()
		if taken == "" {
			continue
		}
		if other, has := takers[taken]; has && other != o.ID {
			return errs.Errorf(errs.Internal, "%s and %s would both use %q", other, o.ID, taken)
		}
		takers[taken] = o.ID
		if other, has := t.takers[taken]; has && other != o.ID {
			return errs.Errorf(errs.Precondition, "%s%q is already in use by %s of %s; two volumes cannot share it", d.subject(), taken, other, t.holders(other))
		}
	}
	if d == nil {
		return nil
	}
	if d.Volume == "" {
		return errs.Errorf(errs.Internal, "device without a volume")
	}
	if other := t.byName[d.Name]; other != "" && other != d.Volume {
		return errs.Errorf(errs.Precondition, "volume %s: device %s already belongs to volume %s; two volumes cannot share a namespace: check nsId, uuid or nguid in their contexts", d.Volume, d.Name, other)
	}
	for _, id := range d.Objects {
		if _, known := t.objects[id]; !known && !coming[id] {
			return errs.Errorf(errs.Internal, "volume %s: %s, an object of its device, is not on record", d.Volume, id)
		}
	}
	return nil
}

func (x *index) holders(id plan.ID) string {
	if len(x.users[id]) == 0 {
		return "a device that is still being removed"
	}
	return fmt.Sprintf("volumes %q", x.users[id])
}

func (t *Table) admitDrop(volumeID string, objects []plan.ID) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, id := range objects {
		for _, user := range t.users[id] {
			if user != volumeID {
				return errs.Errorf(errs.Internal, "cannot drop %s: the device of volume %s needs it", id, user)
			}
		}
	}
	return nil
}

func (x *index) checkObject(key string, o Object) error {
	taken := o.Exclusive()
	switch {
	case o.ID.String() != key:
		return damaged("object", key, "it belongs to %q", o.ID)
	case o.Name == "" || !o.Fits():
		return damaged("object", key, "its fields do not match its kind")
	case taken != "" && x.takers[taken].Name != "":
		return damaged("object", key, "%s also uses %q", x.takers[taken], taken)
	}
	return nil
}

// checkDevice requires loaded objects.
func (x *index) checkDevice(key string, d Device) error {
	switch {
	case d.Volume != key:
		return damaged("device", key, "it belongs to volume %q", d.Volume)
	case d.Phase != Creating && d.Phase != Ready && d.Phase != Removing:
		return damaged("device", key, "its phase is %q", d.Phase)
	case d.Mode != request.Block && d.Mode != request.Filesystem:
		return damaged("device", key, "its volume mode is %q", d.Mode)
	case d.Phase == Ready && (d.Name == "" || len(d.Objects) == 0):
		return damaged("device", key, "its phase is made, but it has no name or no objects")
	case d.Name != "" && x.byName[d.Name] != "":
		return damaged("device", key, "volume %s also has device %s", x.byName[d.Name], d.Name)
	}
	for _, id := range d.Objects {
		if _, known := x.objects[id]; !known {
			return damaged("device", key, "its object %q is not on record", id)
		}
	}
	return nil
}

func damaged(what, key, format string, args ...any) error {
	return errs.Errorf(errs.Internal, "record %q of a %s: %w: %s", key, what, store.ErrDamaged, fmt.Sprintf(format, args...))
}
