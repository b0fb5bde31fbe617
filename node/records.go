package node

import (
	"context"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	// storeVersion is that of the records below.
	storeVersion = 1
	// reserved is set aside for the store, so that a full file system does
	// not keep volumes from being taken down.
	reserved = 4 << 20
)

// state is what was last wanted of a stage or a publish. Only settled was
// acknowledged; making is rolled back at start-up, undoing is finished.
type state string

const (
	making  state = "making"
	settled state = "settled"
	undoing state = "undoing"
)

// stageRecord is what is kept of a staged volume; its key is the volume's id.
type stageRecord struct {
	Locator    map[string]string `json:"locator"`
	Staging    string            `json:"staging"`
	Capability used              `json:"capability"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	State      state             `json:"state"`
	mounted
}

// mounted is what is kept of a device in use. It means nothing to another boot
// of the machine than its own.
type mounted struct {
	Device Device    `json:"device,omitzero"`
	FSType string    `json:"mountedAs,omitempty"`
	Boot   string    `json:"boot"`
	Since  time.Time `json:"since,omitzero"`
	// Trimmed is when free blocks were last given back.
	Trimmed time.Time `json:"trimmed,omitzero"`
}

// publishRecord is what is kept of a publish; its key is the target path.
type publishRecord struct {
	Volume     volume.ID        `json:"volume"`
	Staging    string           `json:"staging,omitempty"`
	Capability used             `json:"capability"`
	ReadOnly   bool             `json:"readOnly,omitempty"`
	State      state            `json:"state"`
	Ephemeral  *ephemeralRecord `json:"ephemeral,omitempty"`
	mounted
}

// ephemeralRecord is what is kept of the volume that a publish brought along.
type ephemeralRecord struct {
	Name string `json:"name"`
	Ephemeral
	// Volume is the engine's id; empty until the engine has answered.
	Volume  volume.ID         `json:"volume,omitempty"`
	Locator map[string]string `json:"locator,omitempty"`
}

// placed is a publish with its target.
type placed struct {
	Target string
	publishRecord
}

// records is the durable side of a Manager.
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

// put* and drop* are not cut by a context: what the kernel already has must
// be on record.

func (r *records) putStage(ctx context.Context, id volume.ID, rec stageRecord) error {
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return r.stages.Put(tx, string(id), rec) })
}

func (r *records) dropStage(ctx context.Context, id volume.ID) error {
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

func (r *records) dropPublish(ctx context.Context, target string) error {
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return r.publishes.Delete(tx, target) })
}

// allStages returns every stage by volume.
func (r *records) allStages(ctx context.Context) (map[volume.ID]stageRecord, error) {
	all := map[volume.ID]stageRecord{}
	err := r.store.View(ctx, func(tx *store.Tx) error {
		for e, err := range r.stages.Range(tx, "") {
			if err != nil {
				return err
			}
			all[volume.ID(e.Key)] = e.Value
		}
		return nil
	})
	return all, err
}

// publishesOf returns the publishes of one volume, or with an empty id all, in
// the order of their targets.
func (r *records) publishesOf(ctx context.Context, id volume.ID) ([]placed, error) {
	var all []placed
	err := r.store.View(ctx, func(tx *store.Tx) error {
		for e, err := range r.publishes.Range(tx, "") {
			if err != nil {
				return err
			}
			if id == "" || e.Value.Volume == id {
				all = append(all, placed{Target: e.Key, publishRecord: e.Value})
			}
		}
		return nil
	})
	return all, err
}

// locator reads a stored locator.
func locator(stored map[string]string) (access.Access, error) {
	a, err := access.Decode(stored)
	if err != nil {
		return nil, errs.Errorf(errs.Internal, "the stored locator cannot be read: %w", err)
	}
	return a, nil
}
