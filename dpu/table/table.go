// Package table is what the plugin remembers: devices, and the objects they are
// made of. What a call of it returned without an error survives a power cut. It
// holds no secret. An object is on record before anybody is asked to make it,
// and until it is certain that it is gone.
package table

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
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
	// As is the name that a foreign controller has.
	As string `json:"as,omitempty"`
	// Doubt is set while an object was asked for without an answer: until then
	// it may still come, also after it was removed.
	Doubt time.Time `json:"doubt,omitzero"`
	// Process is the identity of the SNAP process that it was asked for in.
	Process string `json:"process,omitempty"`
}

// Table is safe for many goroutines. Records that it returns are copies.
type Table struct {
	store   *store.Store
	writing chan struct{} // holds one token: the right to look and then write

	mu      sync.RWMutex
	devices map[string]Device    // by volume
	byName  map[string]string    // device name to volume, of those that have a name
	objects map[plan.ID]Object   //
	users   map[plan.ID][]string // volumes, sorted
	order   []string             // volumes, sorted
}

func devicesBucket() store.Bucket[Device] { return store.Bucket[Device]{Name: "devices"} }
func objectsBucket() store.Bucket[Object] { return store.Bucket[Object]{Name: "objects"} }

// Role and Version are those of the store.
const (
	Role    = "dpu"
	Version = 1
)

// Open reads everything. Errors: those of package store.
func Open(ctx context.Context, s *store.Store) (*Table, error) {
	t := &Table{
		store: s, writing: make(chan struct{}, 1), devices: map[string]Device{}, byName: map[string]string{},
		objects: map[plan.ID]Object{}, users: map[plan.ID][]string{},
	}
	t.writing <- struct{}{}
	err := s.View(ctx, func(tx *store.Tx) error {
		for e, err := range objectsBucket().Range(tx, "") {
			if err != nil {
				return err
			}
			t.objects[e.Value.ID] = e.Value
		}
		for e, err := range devicesBucket().Range(tx, "") {
			if err != nil {
				return err
			}
			t.index(e.Value)
		}
		return nil
	})
	return t, err
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
	return o, ok
}

// Objects returns all, in the order of their kinds and names.
func (t *Table) Objects() []Object {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.objects), func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}

// Users are the volumes whose devices need an object, sorted.
func (t *Table) Users(id plan.ID) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.users[id])
}

// Unused are the objects that no device needs.
func (t *Table) Unused() []Object {
	return slices.DeleteFunc(t.Objects(), func(o Object) bool { return len(t.Users(o.ID)) > 0 })
}

// Put records a device, in place of what its volume had, together with objects.
// Errors: volume.Precondition when another volume has the device's name, or
// what one of the objects takes for itself.
func (t *Table) Put(ctx context.Context, d Device, objects ...Object) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	if err := t.conflict(d, objects); err != nil {
		return err
	}
	d = d.clone()
	if err := t.store.Update(ctx, func(tx *store.Tx) error {
		if err := putObjects(tx, objects); err != nil {
			return err
		}
		return devicesBucket().Put(tx, d.Volume, d)
	}); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range objects {
		t.objects[o.ID] = o
	}
	t.forget(d.Volume)
	t.index(d)
	return nil
}

// PutObject records an object.
func (t *Table) PutObject(ctx context.Context, o Object) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	if err := t.store.Update(ctx, func(tx *store.Tx) error { return putObjects(tx, []Object{o}) }); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.objects[o.ID] = o
	return nil
}

func putObjects(tx *store.Tx, objects []Object) error {
	for _, o := range objects {
		if err := objectsBucket().Put(tx, o.ID.String(), o); err != nil {
			return err
		}
	}
	return nil
}

// Drop forgets the device of a volume, and objects.
func (t *Table) Drop(ctx context.Context, volumeID string, objects ...plan.ID) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
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
	for _, id := range objects {
		delete(t.objects, id)
	}
	t.forget(volumeID)
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

// conflict finds the volume that has already what a device would take.
func (t *Table) conflict(d Device, objects []Object) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if other := t.byName[d.Name]; d.Name != "" && other != "" && other != d.Volume {
		return volume.Errorf(volume.Precondition, "volume %s: device %s is that of volume %s already; two volumes cannot be one namespace: look at nsId, uuid or nguid of their contexts", d.Volume, d.Name, other)
	}
	for _, o := range objects {
		taken := o.Exclusive()
		if taken == "" {
			continue
		}
		for id, other := range t.objects {
			if id == o.ID || other.Exclusive() != taken {
				continue
			}
			return volume.Errorf(volume.Precondition, "volume %s: %s is in use already, by %s of volumes %q", d.Volume, taken, id, t.users[id])
		}
	}
	return nil
}

func (t *Table) index(d Device) {
	t.devices[d.Volume] = d
	if d.Name != "" {
		t.byName[d.Name] = d.Volume
	}
	for _, id := range d.Objects {
		if at, found := slices.BinarySearch(t.users[id], d.Volume); !found {
			t.users[id] = slices.Insert(t.users[id], at, d.Volume)
		}
	}
	if at, found := slices.BinarySearch(t.order, d.Volume); !found {
		t.order = slices.Insert(t.order, at, d.Volume)
	}
}

// forget takes a device out of the indexes.
func (t *Table) forget(volumeID string) {
	d, ok := t.devices[volumeID]
	if !ok {
		return
	}
	delete(t.devices, volumeID)
	if t.byName[d.Name] == volumeID {
		delete(t.byName, d.Name)
	}
	for _, id := range d.Objects {
		if at, found := slices.BinarySearch(t.users[id], volumeID); found {
			t.users[id] = slices.Delete(t.users[id], at, at+1)
		}
		if len(t.users[id]) == 0 {
			delete(t.users, id)
		}
	}
	if at, found := slices.BinarySearch(t.order, volumeID); found {
		t.order = slices.Delete(t.order, at, at+1)
	}
}

func (d Device) clone() Device {
	d.Modes, d.Objects = slices.Clone(d.Modes), slices.Clone(d.Objects)
	d.Contexts = request.Contexts{Publish: maps.Clone(d.Contexts.Publish), Volume: maps.Clone(d.Contexts.Volume), Storage: maps.Clone(d.Contexts.Storage)}
	return d
}
