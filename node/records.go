package node

import (
	"context"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const (
	// storeVersion is the version of the records below.
	storeVersion = 1
	// reserved is the preallocated size of the store, so that volumes can be
	// unstaged while the disk is full.
	reserved = 4 << 20
)

// state is the desired state of a record. Only an inline volume has all three;
// release 0.1.0 wrote creating and deleting for other records too, and rolled
// them back at start-up as this release does.
type state string

const (
	creating state = "making" // not acknowledged
	ready    state = "settled"
	deleting state = "undoing"
)

// stageRecord is the stored state of a staged volume; its key is the volume's
// id.
type stageRecord struct {
	Locator    map[string]string `json:"locator"`
	Staging    string            `json:"staging"`
	Capability storedCapability  `json:"capability"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	State      state             `json:"state"`
	mounted
}

// mounted is the stored state of a device in use. It is stale after a reboot.
type mounted struct {
	// Device is the known part of the device when the record was written. A
	// stage is recorded before its device exists, so only Backing is known
	// until the next publish.
	Device Device `json:"device,omitzero"`
	// FSType is only for a downgrade to the previous release: as requested, and
	// from the next publish on as mounted.
	FSType string    `json:"mountedAs,omitempty"`
	Boot   string    `json:"boot"`
	Since  time.Time `json:"since,omitzero"`
	// Trimmed is when free blocks were last returned to the storage.
	Trimmed time.Time `json:"trimmed,omitzero"`
}

// publishRecord is the stored state of a publish; its key is the target path.
type publishRecord struct {
	Volume     volume.ID        `json:"volume"`
	Staging    string           `json:"staging,omitempty"`
	Capability storedCapability `json:"capability"`
	ReadOnly   bool             `json:"readOnly,omitempty"`
	State      state            `json:"state"`
	Inline     *inlineRecord    `json:"ephemeral,omitempty"`
	mounted
}

// inlineRecord is the stored state of an inline volume.
type inlineRecord struct {
	Name string `json:"name"`
	InlineVolume
	// Volume is the engine's id; empty until the engine has created the volume.
	Volume  volume.ID         `json:"volume,omitempty"`
	Locator map[string]string `json:"locator,omitempty"`
}

// publication is a publish with its target.
type publication struct {
	Target string
	publishRecord
}

// volumeRecords is all records of a volume.
type volumeRecords struct {
	stage     *stageRecord // nil: not staged
	publishes []publication
}

// records is the durable state of a Manager. Writes ignore cancellation:
// effects in the kernel must be recorded.
type records struct {
	store     *store.Store
	stages    store.Bucket[stageRecord]
	publishes store.Bucket[publishRecord]
}

func openRecords(ctx context.Context, path string) (*records, error) {
	s, err := store.Open(ctx, path, store.Options{Role: "node", Version: storeVersion, Preallocate: reserved})
	if err != nil {
		return nil, err
	}
	return &records{
		store:     s,
		stages:    store.Bucket[stageRecord]{Name: "stages"},
		publishes: store.Bucket[publishRecord]{Name: "publishes"},
	}, nil
}

func (r *records) close() error { return r.store.Close() }

func (r *records) stage(ctx context.Context, id volume.ID) (rec stageRecord, ok bool, err error) {
	err = r.store.View(ctx, func(tx *store.Tx) error {
		rec, ok, err = r.stages.Get(tx, string(id))
		return err
	})
	return rec, ok, err
}

func (r *records) putStage(ctx context.Context, id volume.ID, rec stageRecord) error {
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return r.stages.Put(tx, string(id), rec) })
}

func (r *records) deleteStage(ctx context.Context, id volume.ID) error {
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return r.stages.Delete(tx, string(id)) })
}

func (r *records) publish(ctx context.Context, target string) (rec publishRecord, ok bool, err error) {
	err = r.store.View(ctx, func(tx *store.Tx) error {
		rec, ok, err = r.publishes.Get(tx, target)
		return err
	})
	return rec, ok, err
}

func (r *records) putPublish(ctx context.Context, target string, rec publishRecord) error {
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return r.publishes.Put(tx, target, rec) })
}

// putPublishAndStage commits a publish and the device that its stage now has.
func (r *records) putPublishAndStage(ctx context.Context, target string, rec publishRecord, stage stageRecord) error {
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		if err := r.stages.Put(tx, string(rec.Volume), stage); err != nil {
			return err
		}
		return r.publishes.Put(tx, target, rec)
	})
}

func (r *records) deletePublish(ctx context.Context, target string) error {
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return r.publishes.Delete(tx, target) })
}

// all returns every record by volume.
func (r *records) all(ctx context.Context) (map[volume.ID]volumeRecords, error) {
	all := map[volume.ID]volumeRecords{}
	err := r.store.View(ctx, func(tx *store.Tx) error {
		for e, err := range r.stages.Range(tx, "") {
			if err != nil {
				return err
			}
			all[volume.ID(e.Key)] = volumeRecords{stage: &e.Value}
		}
		for e, err := range r.publishes.Range(tx, "") {
			if err != nil {
				return err
			}
			v := all[e.Value.Volume]
			v.publishes = append(v.publishes, publication{Target: e.Key, publishRecord: e.Value})
			all[e.Value.Volume] = v
		}
		return nil
	})
	return all, err
}

// publishesOf returns the publishes of a volume in the order of their targets.
func (r *records) publishesOf(ctx context.Context, id volume.ID) ([]publication, error) {
	all, err := r.all(ctx)
	return all[id].publishes, err
}
