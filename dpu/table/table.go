// Package table records devices and their objects, without secrets. Changes are
// durable when a call succeeds. An object is recorded before it is created, and
// until it is certainly removed.
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

// Phase of a device's life cycle.
type Phase string

// Only a device in phase Ready was ever returned to a caller.
const (
	Creating Phase = "making"
	Ready    Phase = "made"
	Removing Phase = "removing"
)

// Device is the device of a volume.
type Device struct {
	Volume   string                 `json:"volume"`
	Name     string                 `json:"name,omitempty"` // empty until known
	Phase    Phase                  `json:"phase"`
	Mode     request.Mode           `json:"mode"`
	Modes    []storagev1.AccessMode `json:"modes,omitempty"`
	Contexts request.Contexts       `json:"contexts"`
	Objects  []plan.ID              `json:"objects"` // in the order of creation
	// Namespace of the controller, with all known identifiers.
	Namespace plan.Choice `json:"namespace,omitzero"`
	// Process is the SNAP process that holds the device.
	Process string    `json:"process,omitempty"`
	Since   time.Time `json:"since"` // of the phase
}

// Object is the record of an object.
type Object struct {
	plan.Object
	// Foreign: the object existed before, and this plugin must not remove it.
	Foreign bool `json:"foreign,omitempty"`
	// ForeignName is the name of another program's controller.
	ForeignName string `json:"as,omitempty"`
	// UnansweredUntil: an unanswered call can still create the object until
	// then, even after its removal.
	UnansweredUntil time.Time `json:"doubt,omitzero"`
	// UnansweredPath is the path of the unanswered attach. It is zero if
	// several are unanswered, or in records of earlier releases.
	UnansweredPath netip.AddrPort `json:"asked,omitzero"`
	// Process is the SNAP process of the last call.
	Process string `json:"process,omitempty"`
}

// Actual returns the object with its name in the SNAP process.
func (o Object) Actual() plan.Object {
	there := o.Object
	if o.ForeignName != "" {
		there.Name = o.ForeignName
	}
	return there
}

// Table is safe for concurrent use. Records are copied on input and output.
type Table struct {
	store   *store.Store
	writing chan struct{} // serialises read-modify-write operations

	mu sync.RWMutex
	index
}

func devicesBucket() store.Bucket[Device] { return store.Bucket[Device]{Name: "devices"} }
func objectsBucket() store.Bucket[Object] { return store.Bucket[Object]{Name: "objects"} }

// Role and Version identify the store.
const (
	Role    = "dpu"
	Version = 1
)

// Open refuses a record that is invalid or contradicts another
// (store.ErrDamaged), since its objects could not be removed. Other errors:
// those of package store.
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

// Device returns the device of a volume.
func (t *Table) Device(volumeID string) (Device, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, ok := t.devices[volumeID]
	return d.clone(), ok
}

// List returns at most max devices accepted by keep, sorted by volume, after a
// volume, and whether more follow.
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

// Count returns the number of devices by phase, and the number of objects.
func (t *Table) Count() (devices map[Phase]int, objects int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	devices = map[Phase]int{Creating: 0, Ready: 0, Removing: 0}
	for _, d := range t.devices {
		devices[d.Phase]++
	}
	return devices, len(t.objects)
}

// Object returns the record of an object.
func (t *Table) Object(id plan.ID) (Object, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	o, ok := t.objects[id]
	return o.clone(), ok
}

// Objects returns all objects, sorted by kind and name.
func (t *Table) Objects() []Object {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sorted(maps.Keys(t.objects))
}

// Users returns the volumes whose devices need an object, sorted.
func (t *Table) Users(id plan.ID) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.users[id])
}

// Unused returns the objects that no device needs, sorted by kind and name.
func (t *Table) Unused() []Object {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sorted(maps.Keys(t.unused))
}

// Put records a device, replacing that of its volume, together with objects.
// Errors: errs.Precondition if another volume has the device's name or an
// exclusive resource of an object, or if the disk is full in phase Creating,
// since deletes need the remaining space; errs.Internal for an invalid or
// unrecorded object.
func (t *Table) Put(ctx context.Context, d Device, objects ...Object) error {
	d = d.clone()
	if d.Phase == Creating {
		err := t.store.Spare(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return errs.Errorf(errs.Precondition, "volume %s: the disk with the plugin's records is full, and the remaining space is reserved for deleting devices: %w", d.Volume, err)
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

// Drop removes the records of a device and of objects. It is idempotent. Error:
// errs.Internal for an object that another volume's device needs.
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

// begin keeps records unchanged between a check and the write that depends on
// it.
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
