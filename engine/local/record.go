package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	recordVersion = 1
	// storeRoom is set aside for records, so that a full pool never keeps
	// anybody from deleting: room for about 30,000 objects.
	storeRoom = 32 << 20
)

// state is how far an object has come.
type state string

const (
	// pinning: recorded, but the source is not yet protected; never
	// acknowledged, so a start drops it.
	pinning state = "pinning"
	// copying: the source is protected, the file is being filled.
	copying state = "copying"
	// finishing: the file is complete, names and pins are being put right.
	finishing state = "finishing"
	// ready: the object can be used.
	ready state = "ready"
	// failed: a snapshot whose copy came to nothing; it only waits for its
	// deletion.
	failed state = "failed"
	// deleting: it is gone for everybody, its file may still be there.
	deleting state = "deleting"
)

// visible reports whether callers see an object in that state.
func (s state) visible() bool { return s != pinning && s != deleting }

// filling reports whether background work is to complete the object.
func (s state) filling() bool { return s == copying || s == finishing }

type volumeRecord struct {
	Name       string            `json:"name"`
	State      state             `json:"state"`
	Size       int64             `json:"size"`
	Content    volume.Content    `json:"content"`
	FSType     string            `json:"fsType,omitempty"`
	FromVolume volume.ID         `json:"fromVolume,omitempty"`
	FromSnap   volume.SnapshotID `json:"fromSnapshot,omitempty"`
	Ephemeral  bool              `json:"ephemeral,omitempty"`
	Requested  map[string]string `json:"requested,omitempty"` // parameters of Create, as given
	Settings   settings          `json:"settings"`
	Becoming   *settings         `json:"becoming,omitempty"` // while Modify is under way
	Created    time.Time         `json:"created"`
	Copied     int64             `json:"copied,omitempty"`   // bytes durable in a copy under way
	CopySize   int64             `json:"copySize,omitempty"` // bytes to copy
	// Promised is the room that a thick source may need beside this volume,
	// as of a snapshot.
	Promised int64 `json:"promised,omitempty"`
}

func (r volumeRecord) source() volume.Source {
	return volume.Source{Volume: r.FromVolume, Snapshot: r.FromSnap}
}

// volume is the record as callers see it.
func (e *Engine) volume(id volume.ID, r volumeRecord) volume.Volume {
	v := volume.Volume{
		ID: id, Name: r.Name, Size: r.Size, Content: r.Content, FSType: r.FSType, Source: r.source(),
		Locator:   access.File{Pool: e.pool.uuid, Name: volumesDir + "/" + string(id)},
		Ephemeral: r.Ephemeral, Attributes: r.Settings.parameters(), Created: r.Created,
	}
	if r.State.filling() {
		v.Progress = e.copies.progress(string(id), r.Copied, r.CopySize)
	}
	return v
}

type snapshotRecord struct {
	Name    string         `json:"name"`
	State   state          `json:"state"`
	Source  volume.ID      `json:"source"`
	Size    int64          `json:"size"`
	Content volume.Content `json:"content"`
	FSType  string         `json:"fsType,omitempty"`
	Group   volume.GroupID `json:"group,omitempty"`
	Created time.Time      `json:"created"`
	// Promised is the room that its thick source may need beside it: the two
	// share blocks until the source is written to.
	Promised int64  `json:"promised,omitempty"`
	Copied   int64  `json:"copied,omitempty"`
	Reason   string `json:"reason,omitempty"` // of a failed copy
}

func (e *Engine) snapshot(id volume.SnapshotID, r snapshotRecord) volume.Snapshot {
	s := volume.Snapshot{
		ID: id, Name: r.Name, Source: r.Source, Size: r.Size, Content: r.Content, FSType: r.FSType,
		Created: r.Created, Ready: r.State == ready, Group: r.Group,
	}
	if r.State.filling() {
		s.Progress = e.copies.progress(string(id), r.Copied, r.Size)
	}
	return s
}

type groupRecord struct {
	Name      string              `json:"name"`
	State     state               `json:"state"` // ready or deleting
	Sources   []volume.ID         `json:"sources"`
	Snapshots []volume.SnapshotID `json:"snapshots"`
	Created   time.Time           `json:"created"`
}

// freezeRecord is the intent to freeze, durable before it is done.
type freezeRecord struct {
	Volumes     []volume.ID `json:"volumes"`
	Mountpoints []string    `json:"mountpoints"`
}

// The buckets. snapshotsOf is an index: its keys are "<volume>/<snapshot>".
var (
	volumeBucket       = store.Bucket[volumeRecord]{Name: "volumes"}
	volumeNameBucket   = store.Bucket[volume.ID]{Name: "volumeNames"}
	snapshotBucket     = store.Bucket[snapshotRecord]{Name: "snapshots"}
	snapshotNameBucket = store.Bucket[volume.SnapshotID]{Name: "snapshotNames"}
	snapshotsOfBucket  = store.Bucket[struct{}]{Name: "snapshotsOf"}
	groupBucket        = store.Bucket[groupRecord]{Name: "groups"}
	groupNameBucket    = store.Bucket[volume.GroupID]{Name: "groupNames"}
	freezeBucket       = store.Bucket[freezeRecord]{Name: "freezes"}
)

// openStore opens the records of the pool. Records that are missing beside
// files are an error: beginning anew would forget every volume.
func openStore(ctx context.Context, p *pool) (*store.Store, error) {
	_, err := p.root.Stat(storeName)
	if errors.Is(err, fs.ErrNotExist) {
		files, err := hasFiles(p)
		if err != nil {
			return nil, err
		}
		if files {
			return nil, errs.Errorf(errs.Precondition, "pool %s holds files but its %s is missing: bring the records back, or move the files away to begin anew", p.path, storeName)
		}
	}
	s, err := store.Open(ctx, filepath.Join(p.path, storeName), store.Options{
		Role: "engine-local/" + p.uuid, Version: recordVersion, Preallocate: storeRoom, ReadOnly: p.readOnly,
	})
	if err != nil {
		return nil, fmt.Errorf("records of pool %s: %w", p.path, err)
	}
	return s, nil
}

// explainRecords says what to do about records that cannot be read.
func (p *pool) explainRecords(err error) error {
	if !errors.Is(err, store.ErrDamaged) {
		return err
	}
	return errs.Errorf(errs.Precondition, "%w; put %s back from a backup, the files of volumes and snapshots are as they were", err, filepath.Join(p.path, storeName))
}

func hasFiles(p *pool) (bool, error) {
	for _, dir := range []string{volumesDir, snapshotsDir} {
		entries, err := fs.ReadDir(p.root.FS(), dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if len(entries) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// read returns one record of a bucket.
func read[T any](ctx context.Context, s *store.Store, b store.Bucket[T], key string) (value T, ok bool, err error) {
	err = s.View(ctx, func(tx *store.Tx) error {
		value, ok, err = b.Get(tx, key)
		return err
	})
	return value, ok, err
}

// commit makes a change durable. Once files were touched it must not be lost
// to a caller who went away, so the context only lends its values.
func (e *Engine) commit(ctx context.Context, change func(tx *store.Tx) error) error {
	return e.store.Update(context.WithoutCancel(ctx), change)
}

// putVolume commits one volume's record.
func (e *Engine) putVolume(ctx context.Context, id volume.ID, r volumeRecord) error {
	return e.commit(ctx, func(tx *store.Tx) error {
		return volumeBucket.Put(tx, string(id), r)
	})
}

// volumeRecord returns the record of a volume that callers may see.
func (e *Engine) volumeRecord(ctx context.Context, id volume.ID) (volumeRecord, error) {
	r, ok, err := read(ctx, e.store, volumeBucket, string(id))
	if err != nil {
		return r, err
	}
	if !ok || !r.State.visible() {
		return r, errs.Errorf(errs.NotFound, "there is no volume %q", id)
	}
	return r, nil
}

// readyVolume is volumeRecord for callers that need the file complete.
func (e *Engine) readyVolume(ctx context.Context, id volume.ID) (volumeRecord, error) {
	r, err := e.volumeRecord(ctx, id)
	if err == nil && r.State != ready {
		err = errs.Errorf(errs.Precondition, "volume %s is still being filled from its source; wait until its copy is done", id)
	}
	return r, err
}

// snapshotRecord returns the record of a snapshot that callers may see.
func (e *Engine) snapshotRecord(ctx context.Context, id volume.SnapshotID) (snapshotRecord, error) {
	r, ok, err := read(ctx, e.store, snapshotBucket, string(id))
	if err != nil {
		return r, err
	}
	if !ok || !r.State.visible() {
		return r, errs.Errorf(errs.NotFound, "there is no snapshot %q", id)
	}
	return r, nil
}

// readySnapshot is snapshotRecord for callers that need its content.
func (e *Engine) readySnapshot(ctx context.Context, id volume.SnapshotID) (snapshotRecord, error) {
	r, err := e.snapshotRecord(ctx, id)
	switch {
	case err != nil:
	case r.State == failed:
		err = errs.Errorf(errs.Precondition, "the copy for snapshot %s failed: %s; delete the snapshot and take another", id, r.Reason)
	case r.State != ready:
		err = errs.Errorf(errs.Precondition, "snapshot %s is still being copied; wait until it is ready", id)
	}
	return r, err
}
