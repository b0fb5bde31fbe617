package node

import (
	"context"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const (
	// storeVersion is that of the records below.
	storeVersion = 1
	// reserved is set aside for the store, so that volumes can be unstaged while
	// the file system is full.
	reserved = 4 << 20
)

// state is the desired state of a record. Only an inline volume has all three;
// creating and deleting of other records come from release 0.1.0, which undid
// them at start-up as this one does.
type state string

const (
	creating state = "making" // not acknowledged
	ready    state = "settled"
	deleting state = "undoing"
)

// stageRecord is what is stored of a staged volume; its key is the volume's id.
type stageRecord struct {
	Locator    map[string]string `json:"locator"`
	Staging    string            `json:"staging"`
	Capability used              `json:"capability"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	State      state             `json:"state"`
	mounted
}

// mounted is what is stored of a device in use. Another boot of the machine has
// other devices.
type mounted struct {
	// Device is what was known when the record was written. A stage is recorded
	// before its device exists, so only Backing is known until the next publish.
	Device Device `json:"device,omitzero"`
	// FSType is for the previous release, should it come back: as requested, and
	// from the next publish on as mounted.
	FSType string    `json:"mountedAs,omitempty"`
	Boot   string    `json:"boot"`
	Since  time.Time `json:"since,omitzero"`
	// Trimmed is when free blocks were last returned to the storage.
	Trimmed time.Time `json:"trimmed,omitzero"`
}

// publishRecord is what is stored of a publish; its key is the target path.
type publishRecord struct {
	Volume     volume.ID     `json:"volume"`
	Staging    string        `json:"staging,omitempty"`
	Capability used          `json:"capability"`
	ReadOnly   bool          `json:"readOnly,omitempty"`
	State      state         `json:"state"`
	Inline     *inlineRecord `json:"ephemeral,omitempty"`
	mounted
}

// inlineRecord is what is stored of an inline volume.
type inlineRecord struct {
	Name string `json:"name"`
	InlineVolume
	// Volume is the engine's id; empty until the engine has answered.
	Volume  volume.ID         `json:"volume,omitempty"`
	Locator map[string]string `json:"locator,omitempty"`
}

// publication is a publish with its target.
type publication struct {
	Target string
	publishRecord
}

// volumeRecords is everything that is stored of a volume.
type volumeRecords struct {
	stage     *stageRecord // nil: not staged
	publishes []publication
}

// records are the durable state of a Manager. Writes ignore the end of a
// context: what the kernel has must be on record.
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

// putPublishAndStage commits a publish, and with it what is known of the device
// by now.
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
