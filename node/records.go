package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const (
	storeVersion = 1
	// reserved bytes let volumes be unstaged while the disk is full.
	reserved = 4 << 20
)

// state is a record's desired state. Only inline volumes have all three;
// release 0.1.0 also wrote creating and deleting for others, and rolled them
// back at start-up, as does this one.
type state string

const (
	creating state = "making"
	ready    state = "settled"
	deleting state = "undoing"
)

// stageRecord's key is the volume's id.
type stageRecord struct {
	Locator    map[string]string `json:"locator"`
	Staging    string            `json:"staging"`
	Capability storedCapability  `json:"capability"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	State      state             `json:"state"`
	// Lost: its device did not work any more and was removed. The next publish
	// stages the volume again.
	Lost bool `json:"lost,omitempty"`
	// NotGrown says why the file system was mounted with its old size.
	NotGrown string `json:"notGrown,omitempty"`
	mounted
}

// mounted is a device in use. It is stale after a reboot.
type mounted struct {
	// As known when the record was written. A stage is recorded before its
	// device exists, with Backing alone until the next publish; a directory's is
	// recorded before it is mounted.
	Device Device `json:"device,omitzero"`
	// For a downgrade to the previous release: as requested, from the next
	// publish on as mounted.
	FSType string    `json:"mountedAs,omitempty"`
	Boot   string    `json:"boot"`
	Since  time.Time `json:"since,omitzero"`
	// When free blocks were last discarded.
	Trimmed time.Time `json:"trimmed,omitzero"`
}

// publishRecord's key is the target path.
type publishRecord struct {
	Volume     volume.ID        `json:"volume"`
	Staging    string           `json:"staging,omitempty"`
	Capability storedCapability `json:"capability"`
	ReadOnly   bool             `json:"readOnly,omitempty"`
	State      state            `json:"state"`
	Inline     *inlineRecord    `json:"ephemeral,omitempty"`
	mounted
}

type inlineRecord struct {
	Name string `json:"name"`
	InlineVolume
	// The engine's id; empty until created.
	Volume  volume.ID         `json:"volume,omitempty"`
	Locator map[string]string `json:"locator,omitempty"`
}

type publication struct {
	Target string
	publishRecord
}

type volumeRecords struct {
	stage     *stageRecord
	publishes []publication
}

// records is a Manager's durable state. Writes ignore cancellation: the
// kernel's effects must be recorded.
type records struct {
	store     *store.Store
	stages    store.Bucket[stageRecord]
	publishes store.Bucket[publishRecord]

	mu sync.Mutex
	// targets has the targets of each volume's publishes, and perhaps others. Calls
	// for one volume do not overlap (Manager.change).
	targets map[volume.ID]map[string]bool
}

func openRecords(ctx context.Context, path string) (*records, error) {
	s, err := store.Open(ctx, path, store.Options{Role: "node", Version: storeVersion, Preallocate: reserved})
	if err != nil {
		return nil, err
	}
	r := &records{
		store:     s,
		stages:    store.Bucket[stageRecord]{Name: "stages"},
		publishes: store.Bucket[publishRecord]{Name: "publishes"},
		targets:   map[volume.ID]map[string]bool{},
	}
	all, err := r.all(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for id, v := range all {
		for _, p := range v.publishes {
			r.index(id, p.Target)
		}
	}
	return r, nil
}

func (r *records) index(id volume.ID, target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.targets[id] == nil {
		r.targets[id] = map[string]bool{}
	}
	r.targets[id][target] = true
}

func (r *records) unindex(id volume.ID, target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.targets[id], target); len(r.targets[id]) == 0 {
		delete(r.targets, id)
	}
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
	r.index(rec.Volume, target)
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return r.publishes.Put(tx, target, rec) })
}

func (r *records) putPublishAndStage(ctx context.Context, target string, rec publishRecord, stage stageRecord) error {
	r.index(rec.Volume, target)
	return r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		if err := r.stages.Put(tx, string(rec.Volume), stage); err != nil {
			return err
		}
		return r.publishes.Put(tx, target, rec)
	})
}

func (r *records) deletePublish(ctx context.Context, id volume.ID, target string) error {
	err := r.store.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error { return r.publishes.Delete(tx, target) })
	if err == nil {
		r.unindex(id, target)
	}
	return err
}

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

// The order is that of targets.
func (r *records) publishesOf(ctx context.Context, id volume.ID) (all []publication, err error) {
	r.mu.Lock()
	targets := slices.Sorted(maps.Keys(r.targets[id]))
	r.mu.Unlock()
	err = r.store.View(ctx, func(tx *store.Tx) error {
		all = nil
		for _, t := range targets {
			rec, found, err := r.publishes.Get(tx, t)
			if err != nil {
				return err
			}
			if found && rec.Volume == id {
				all = append(all, publication{Target: t, publishRecord: rec})
			}
		}
		return nil
	})
	return all, err
}
