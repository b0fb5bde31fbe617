package spdk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// record is a volume, or its creation that is not complete.
type record struct {
	Name   string `json:"name"`
	Target string `json:"target"`
	Store  string `json:"store"` // UUID of the lvol store
	// UUID of the lvol; empty until the volume is complete.
	UUID string `json:"uuid,omitempty"`
	// Deleting: no client is admitted any more; a repeated deletion continues.
	// Without a UUID it is an interrupted creation that is removed.
	Deleting bool `json:"deleting,omitempty"`

	Size       int64             `json:"size"` // bytes
	Content    volume.Content    `json:"content"`
	FSType     string            `json:"fsType,omitempty"`
	FromVolume volume.ID         `json:"fromVolume,omitempty"`
	FromSnap   volume.SnapshotID `json:"fromSnapshot,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Ephemeral  bool              `json:"ephemeral,omitempty"`
	Created    time.Time         `json:"created"`
	// Zeroed: all clusters are written with zeros before the volume is complete. Until
	// then its lvol is a clone of an empty snapshot.
	Zeroed bool `json:"zeroed,omitempty"`
	// StoreName and FirstSize are part of the volume context, which does not
	// change.
	StoreName string `json:"storeName"`
	FirstSize int64  `json:"firstSize"`

	// Adopted volumes are those of spdk-csi. Hosts are the host NQNs that were
	// admitted then, without a grant, each with the addresses from which it was
	// connected.
	Adopted bool                    `json:"adopted,omitempty"`
	Hosts   map[string][]netip.Addr `json:"hosts,omitempty"`
	// Evicting: sessions of hosts without a grant can be left, as every host was
	// admitted, or one of Hosts was removed.
	Evicting bool `json:"evicting,omitempty"`
	// LimitsDue: the lvol was exported again, and has perhaps no limits.
	LimitsDue bool `json:"limitsDue,omitempty"`
}

func (r record) id() volume.ID { return volumeID(r.Target, r.UUID) }

func (r record) isVolume() bool { return r.UUID != "" && !r.Deleting }

// hasSource reports whether the lvol was cloned from a snapshot of its own.
func (r record) hasSource() bool { return r.FromVolume != "" || r.Zeroed }

func (r record) nqn() string { return nqnOf(r.UUID) }

// snapRecord is a snapshot, or its creation that is not complete.
type snapRecord struct {
	Name      string    `json:"name"`
	Source    volume.ID `json:"source"`
	Target    string    `json:"target"`
	Store     string    `json:"store"`
	StoreName string    `json:"storeName"`
	UUID      string    `json:"uuid,omitempty"` // empty until the snapshot is complete
	// Discarded: the creation failed, and its lvol is being removed.
	Discarded bool `json:"discarded,omitempty"`
	// Removing: a deletion has begun, and its lvol is perhaps deleted.
	Removing bool           `json:"removing,omitempty"`
	Size     int64          `json:"size"`
	Content  volume.Content `json:"content"`
	FSType   string         `json:"fsType,omitempty"`
	Created  time.Time      `json:"created"`
}

func (r snapRecord) snapshot() volume.Snapshot {
	return volume.Snapshot{
		ID: volume.SnapshotID(formatID(r.Target, r.UUID)), Name: r.Name, Source: r.Source, Size: r.Size,
		Content: r.Content, FSType: r.FSType, Created: r.Created, Ready: true,
	}
}

// volumes and snapshots are keyed by name; names has the name for an id of
// either. deleted has the deleted snapshots, by id, that still have clones: SPDK
// deletes none with several, and does not rename snapshots.
func volumes() store.Bucket[record]       { return store.Bucket[record]{Name: "volumes"} }
func snapshots() store.Bucket[snapRecord] { return store.Bucket[snapRecord]{Name: "snapshots"} }
func names() store.Bucket[string]         { return store.Bucket[string]{Name: "names"} }
func deleted() store.Bucket[snapRecord]   { return store.Bucket[snapRecord]{Name: "deleted"} }

// compared has the targets that were found without unknown exports, by name: all
// hosts of another one are perhaps unknown, as after the loss of the records.
func compared() store.Bucket[struct{}] { return store.Bucket[struct{}]{Name: "compared"} }

// context has the keys of spdk-csi's node plugin.
func (r record) context() map[string]string {
	return map[string]string{"model": r.UUID, "lvstore": r.StoreName, "lvolSize": strconv.FormatInt(r.FirstSize, 10)}
}

// volume returns a volume as recorded. Its target can be missing from the
// configuration.
func (e *Engine) volume(r record) volume.Volume {
	v := volume.Volume{
		ID: r.id(), Name: r.Name, Size: r.Size, Content: r.Content, FSType: r.FSType,
		Source: volume.Source{Volume: r.FromVolume, Snapshot: r.FromSnap}, Ephemeral: r.Ephemeral,
		Attributes: r.Attributes, Created: r.Created, Context: r.context(),
	}
	locator := access.NVMe{
		Transport: "tcp", NQN: r.nqn(), UUID: r.UUID,
		DHChapKey: r.Parameters[keyDHChap], DHChapCtrlrKey: r.Parameters[keyDHChapCtrlr], TLSKey: r.Parameters[keyTLS],
	}
	if t := e.targets[r.Target]; t != nil {
		locator.Transport, locator.Paths, v.Topology = t.Transport, t.addressesOf(r), maps.Clone(t.Topology)
	}
	v.Locator = locator
	return v
}

// find returns the record of a volume, or one for a volume of spdk-csi, which is
// not in the database yet. NotFound: it does not exist.
func (e *Engine) find(ctx context.Context, id volume.ID) (r record, err error) {
	r, found, err := e.recorded(ctx, id)
	if err != nil || found {
		return r, err
	}
	return e.foreign(ctx, id)
}

// recorded returns the record of a volume. NotFound: it is being deleted.
func (e *Engine) recorded(ctx context.Context, id volume.ID) (r record, found bool, err error) {
	err = e.config.Database.View(ctx, func(tx *store.Tx) error {
		var name string
		if name, found, err = names().Get(tx, string(id)); err != nil || !found {
			return err
		}
		r, found, err = volumes().Get(tx, name)
		found = found && r.UUID != "" && r.id() == id
		return err
	})
	if err == nil && found && r.Deleting {
		return record{}, false, noVolume(id)
	}
	return r, found, err
}

func noVolume(id volume.ID) error {
	return errs.Errorf(errs.NotFound, "volume %s does not exist", errs.Quote(string(id)))
}

// records returns all records in the order of ids.
func (e *Engine) records(ctx context.Context) (all []record, err error) {
	err = e.config.Database.View(ctx, func(tx *store.Tx) error {
		all, err = recordsIn(tx)
		return err
	})
	return all, err
}

func recordsIn(tx *store.Tx) ([]record, error) {
	all, err := store.Values(volumes().Range(tx, ""))
	slices.SortFunc(all, func(a, b record) int { return cmp.Compare(a.id(), b.id()) })
	return all, err
}

// put records a volume, if its record is still the expected one (nil: none):
// another process can have changed it. Busy: it has.
func (e *Engine) put(ctx context.Context, before *record, r record) error {
	return e.config.Database.Update(ctx, func(tx *store.Tx) error {
		if err := replace(tx, volumes(), r.Name, before, r); err != nil || r.UUID == "" {
			return err
		}
		return names().Put(tx, string(r.id()), r.Name)
	})
}

// replace writes a record if the present one is before (nil: none).
func replace[T any](tx *store.Tx, bucket store.Bucket[T], name string, before *T, after T) error {
	now, found, err := bucket.Get(tx, name)
	if err != nil {
		return err
	}
	same := found == (before != nil)
	if found && same {
		if same, err = isEqual(now, *before); err != nil {
			return err
		}
	}
	if !same {
		return errs.Errorf(errs.Busy, "the record of %s was changed by another controller, retry", errs.Quote(name))
	}
	return bucket.Put(tx, name, after)
}

// isEqual compares what is recorded: an empty map is recorded as none.
func isEqual(a, b any) (bool, error) {
	x, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	y, err := json.Marshal(b)
	return bytes.Equal(x, y), err
}

// drop removes the record of a volume.
func (e *Engine) drop(ctx context.Context, r record) error {
	return e.config.Database.Update(ctx, func(tx *store.Tx) error {
		now, found, err := volumes().Get(tx, r.Name)
		if err != nil || !found || now.UUID != r.UUID || now.Target != r.Target {
			return err
		}
		if r.UUID != "" {
			if err := names().Delete(tx, string(r.id())); err != nil {
				return err
			}
		}
		return volumes().Delete(tx, r.Name)
	})
}
