// Package table is what the plugin remembers: devices, and the objects they are
// made of. What a call of it returned without an error survives a power cut. It
// holds no secret. An object is on record before anybody is asked to make it,
// and until it is certain that it is gone.
package table

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
)

// Phase is how far a device is.
type Phase string

// The phases. Only a device that is Made was ever answered.
const (
	Making   Phase = "making"
	Made     Phase = "made"
	Removing Phase = "removing"
)

// Device is the device of a volume.
type Device struct {
	Volume   string                 `json:"volume"`
	Name     string                 `json:"name,omitempty"` // device_name; empty until it is known
	Phase    Phase                  `json:"phase"`
	Mode     request.Mode           `json:"mode"`
	Modes    []storagev1.AccessMode `json:"modes,omitempty"`
	Contexts request.Contexts       `json:"contexts"`
	Objects  []plan.ID              `json:"objects"` // in the order of making
	// Namespace is what the device is, of those on a controller: all that was
	// found out about it.
	Namespace plan.Choice `json:"namespace,omitzero"`
	// Process is the identity of the SNAP process that it was made in.
	Process string    `json:"process,omitempty"`
	Since   time.Time `json:"since"` // when the phase began
}

// Object is something that was asked for.
type Object struct {
	plan.Object
	// Foreign: it was there when it was asked for, and is not ours to remove.
	Foreign bool `json:"foreign,omitempty"`
	// As is the name that a controller has which somebody else attached.
	As string `json:"as,omitempty"`
	// Doubt is set while an object was asked for without an answer: until then
	// it may still come, also after it was removed.
	Doubt time.Time `json:"doubt,omitzero"`
	// Asked is the path of the attach without an answer. It is zero when there is
	// more than one, or an earlier release recorded it: the path then does not
	// show that all have ended.
	Asked netip.AddrPort `json:"asked,omitzero"`
	// Process is the identity of the SNAP process that it was asked for in.
	Process string `json:"process,omitempty"`
}

// There is the object by the name that it has in the process.
func (o Object) There() plan.Object {
	there := o.Object
	if o.As != "" {
		there.Name = o.As
	}
	return there
}

// Table is safe for many goroutines. Records that it takes and returns are
// copies.
type Table struct {
	store   *store.Store
	writing chan struct{} // holds one token: the right to look and then write

	mu sync.RWMutex
	index
}

func devicesBucket() store.Bucket[Device] { return store.Bucket[Device]{Name: "devices"} }
func objectsBucket() store.Bucket[Object] { return store.Bucket[Object]{Name: "objects"} }

// Role and Version are those of the store.
const (
	Role    = "dpu"
	Version = 1
)

// Open reads everything. A record that cannot be, or that contradicts another,
// is refused by its name: what was made of it could not be taken back. Errors:
// those of package store, of which store.ErrDamaged is for such records.
func Open(ctx context.Context, s *store.Store) (*Table, error) {
	t := &Table{store: s, writing: make(chan struct{}, 1), index: newIndex()}
	t.writing <- struct{}{}
	err := s.View(ctx, func(tx *store.Tx) error {
		for e, err := range objectsBucket().Range(tx, "") {
			if err := cmp.Or(err, t.checkObject(e.Key, e.Value)); err != nil {
				return err
			}
			t.setObject(e.Value)
		}
		for e, err := range devicesBucket().Range(tx, "") {
			if err := cmp.Or(err, t.checkDevice(e.Key, e.Value)); err != nil {
				return err
			}
			t.setDevice(e.Value)
		}
		for e, err := range identitiesBucket().Range(tx, "") {
			if err != nil {
				return err
			}
			t.identities[e.Key] = e.Value
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Device returns that of a volume.
func (t *Table) Device(volumeID string) (Device, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, ok := t.devices[volumeID]
	return d.clone(), ok
}

// List returns devices that keep admits, in the order of their volumes, from
// behind a volume on; max at most, and whether there are more.
func (t *Table) List(after string, max int, keep func(Device) bool) (page []Device, more bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	from, found := slices.BinarySearch(t.order, after)
	if found {
		from++
	}
	for _, id := range t.order[from:] {
		d := t.devices[id]
		switch {
		case !keep(d):
		case len(page) == max:
			return page, true
		default:
			page = append(page, d.clone())
		}
	}
	return page, false
}

// Count says how many devices are in each phase, and how many objects there are.
func (t *Table) Count() (devices map[Phase]int, objects int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	devices = map[Phase]int{Making: 0, Made: 0, Removing: 0}
	for _, d := range t.devices {
		devices[d.Phase]++
	}
	return devices, len(t.objects)
}

// Object returns one.
func (t *Table) Object(id plan.ID) (Object, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	o, ok := t.objects[id]
	return o.clone(), ok
}

// Objects returns all, in the order of their kinds and names.
func (t *Table) Objects() []Object {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sorted(maps.Keys(t.objects))
}

// Users are the volumes whose devices need an object, sorted.
func (t *Table) Users(id plan.ID) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.users[id])
}

// Unused are the objects that no device needs, in the order of their kinds and
// names.
func (t *Table) Unused() []Object {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sorted(maps.Keys(t.unused))
}

// Put records a device, in place of what its volume had, together with objects.
// Errors: errs.Precondition when another volume has the device's name, or
// what one of the objects takes for itself; errs.Internal for an object of
// the device that is not on record, or for one that is no object; for a device
// that is Making also errs.Precondition when the disk is full: the last of the
// room is for deleting.
func (t *Table) Put(ctx context.Context, d Device, objects ...Object) error {
	d = d.clone()
	if d.Phase == Making {
		err := t.store.Spare(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return errs.Errorf(errs.Precondition, "volume %s: the disk with the record is full; the room that is left is kept for deleting devices: %w", d.Volume, err)
		}
	}
	return t.put(ctx, &d, objects)
}

// PutObject records an object. Errors: as Put.
func (t *Table) PutObject(ctx context.Context, o Object) error { return t.put(ctx, nil, []Object{o}) }

func (t *Table) put(ctx context.Context, d *Device, objects []Object) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	objects = slices.Clone(objects)
	for i, o := range objects {
		objects[i] = o.clone()
	}
	if err := t.admit(d, objects); err != nil {
		return err
	}
	if err := t.store.Update(ctx, func(tx *store.Tx) error {
		for _, o := range objects {
			if err := objectsBucket().Put(tx, o.ID.String(), o); err != nil {
				return err
			}
		}
		if d == nil {
			return nil
		}
		if uuid := d.identity(); uuid != "" {
			if err := identitiesBucket().Put(tx, d.Volume, uuid); err != nil {
				return err
			}
		}
		return devicesBucket().Put(tx, d.Volume, *d)
	}); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range objects {
		t.setObject(o)
	}
	if d != nil {
		t.setDevice(*d)
	}
	return nil
}

// Drop forgets the device of a volume, and objects; what is not there is
// forgotten already. Error: errs.Internal for an object that the device of
// another volume needs.
func (t *Table) Drop(ctx context.Context, volumeID string, objects ...plan.ID) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	if err := t.admitDrop(volumeID, objects); err != nil {
		return err
	}
	if err := t.store.Update(ctx, func(tx *store.Tx) error {
		for _, id := range objects {
			if err := objectsBucket().Delete(tx, id.String()); err != nil {
				return err
			}
		}
		if volumeID == "" {
			return nil
		}
		return devicesBucket().Delete(tx, volumeID)
	}); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropDevice(volumeID)
	for _, id := range objects {
		t.dropObject(id)
	}
	return nil
}

// begin waits for the right to write, so that nothing changes between a look
// and the record that follows from it.
func (t *Table) begin(ctx context.Context) error {
	select {
	case <-t.writing:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Table) end() { t.writing <- struct{}{} }

func (d Device) clone() Device {
	d.Modes, d.Objects = slices.Clone(d.Modes), slices.Clone(d.Objects)
	d.Contexts = request.Contexts{Publish: maps.Clone(d.Contexts.Publish), Volume: maps.Clone(d.Contexts.Volume), Storage: maps.Clone(d.Contexts.Storage)}
	return d
}

func (o Object) clone() Object {
	o.Object = o.Object.Clone()
	return o
}
