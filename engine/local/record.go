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
	// storeReserve is preallocated, so that deletion works in a full pool;
	// enough for about 30,000 objects.
	storeReserve = 32 << 20
)

type state string

const (
	// pinning: source not pinned yet; not acknowledged, removed at the next
	// start.
	pinning state = "pinning"
	// copying: source pinned, copy in progress.
	copying state = "copying"
	// finishing: the file is complete; rename and unpin are pending.
	finishing state = "finishing"
	ready     state = "ready"
	// failed: the snapshot's copy failed; it can only be deleted.
	failed state = "failed"
	// deleting: no longer visible; the file can still exist.
	deleting state = "deleting"
)

func (s state) visible() bool { return s != pinning && s != deleting }

func (s state) filling() bool { return s == copying || s == finishing }

type volumeRecord struct {
	Name            string            `json:"name"`
	State           state             `json:"state"`
	Size            int64             `json:"size"`
	Content         volume.Content    `json:"content"`
	FSType          string            `json:"fsType,omitempty"`
	FromVolume      volume.ID         `json:"fromVolume,omitempty"`
	FromSnap        volume.SnapshotID `json:"fromSnapshot,omitempty"`
	Ephemeral       bool              `json:"ephemeral,omitempty"`
	Requested       map[string]string `json:"requested,omitempty"` // of Create
	Settings        settings          `json:"settings"`
	PendingSettings *settings         `json:"becoming,omitempty"` // of an incomplete Modify
	Created         time.Time         `json:"created"`
	Copied          int64             `json:"copied,omitempty"`   // durable bytes of a copy in progress
	CopySize        int64             `json:"copySize,omitempty"` // bytes to copy
	// space of a thick source for shared blocks
	Promised int64 `json:"promised,omitempty"`
}

func (r volumeRecord) source() volume.Source {
	return volume.Source{Volume: r.FromVolume, Snapshot: r.FromSnap}
}

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
	Members int            `json:"members,omitempty"` // number in the group
	Created time.Time      `json:"created"`
	// space of a thick source for shared blocks, when they are overwritten
	Promised int64  `json:"promised,omitempty"`
	Copied   int64  `json:"copied,omitempty"`
	Reason   string `json:"reason,omitempty"` // error of a failed copy
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

type freezeRecord struct {
	Volumes     []volume.ID `json:"volumes"`
	Mountpoints []string    `json:"mountpoints"`
}

// snapshotsOf is an index with keys "<volume>/<snapshot>".
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

// openStore opens the records of the pool. Missing records beside existing
// files are an error: new records would lose every volume.
func openStore(ctx context.Context, p *pool) (*store.Store, error) {
	_, err := p.root.Stat(storeName)
	if errors.Is(err, fs.ErrNotExist) {
		files, err := hasFiles(p)
		if err != nil {
			return nil, err
		}
		if files {
			return nil, errs.Errorf(errs.Precondition, "pool %s holds files but its %s is missing; restore it from a backup%s, make it again with cleat pool rebuild, or move the files away to start with an empty pool", p.path, storeName, p.ownBackup())
		}
	}
	s, err := store.Open(ctx, filepath.Join(p.path, storeName), store.Options{
		Role: p.storeRole(), Version: recordVersion, Preallocate: storeReserve, ReadOnly: p.readOnly,
	})
	if err != nil {
		return nil, fmt.Errorf("records of pool %s: %w", p.path, err)
	}
	return s, nil
}

func (p *pool) storeRole() string { return "engine-local/" + p.uuid }

func (p *pool) explainRecords(err error) error {
	if !errors.Is(err, store.ErrDamaged) {
		return err
	}
	return errs.Errorf(errs.Precondition, "%w; restore %s from a backup%s (the files of volumes and snapshots are unchanged), or make it again with cleat pool rebuild", err, filepath.Join(p.path, storeName), p.ownBackup())
}

// ownBackup names the copy of the records that this package keeps, if it exists.
func (p *pool) ownBackup() string {
	info, err := p.root.Stat(recordsBackup)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(", such as %s of %s", recordsBackup, info.ModTime().UTC().Format(time.RFC3339))
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

func read[T any](ctx context.Context, s *store.Store, b store.Bucket[T], key string) (value T, ok bool, err error) {
	err = s.View(ctx, func(tx *store.Tx) error {
		value, ok, err = b.Get(tx, key)
		return err
	})
	return value, ok, err
}

// commit ignores the cancellation of ctx: files have already been changed.
func (e *Engine) commit(ctx context.Context, change func(tx *store.Tx) error) error {
	return e.store.Update(context.WithoutCancel(ctx), change)
}

func (e *Engine) putVolume(ctx context.Context, id volume.ID, r volumeRecord) error {
	return e.commit(ctx, func(tx *store.Tx) error {
		return volumeBucket.Put(tx, string(id), r)
	})
}

// volumeRecord is NotFound for an invisible volume.
func (e *Engine) volumeRecord(ctx context.Context, id volume.ID) (volumeRecord, error) {
	r, ok, err := read(ctx, e.store, volumeBucket, string(id))
	if err != nil {
		return r, err
	}
	if !ok || !r.State.visible() {
		return r, errs.Errorf(errs.NotFound, "volume %q does not exist", id)
	}
	return r, nil
}

func (e *Engine) readyVolume(ctx context.Context, id volume.ID) (volumeRecord, error) {
	r, err := e.volumeRecord(ctx, id)
	if err == nil && r.State != ready {
		err = errs.Errorf(errs.Precondition, "volume %s is still being copied from its source; retry after the copy", id)
	}
	return r, err
}

func (e *Engine) snapshotRecord(ctx context.Context, id volume.SnapshotID) (snapshotRecord, error) {
	r, ok, err := read(ctx, e.store, snapshotBucket, string(id))
	if err != nil {
		return r, err
	}
	if !ok || !r.State.visible() {
		return r, errs.Errorf(errs.NotFound, "snapshot %q does not exist", id)
	}
	return r, nil
}

func (e *Engine) readySnapshot(ctx context.Context, id volume.SnapshotID) (snapshotRecord, error) {
	r, err := e.snapshotRecord(ctx, id)
	switch {
	case err != nil:
	case r.State == failed:
		err = errs.Errorf(errs.Precondition, "the copy into snapshot %s failed: %s; delete the snapshot and create another one", id, r.Reason)
	case r.State != ready:
		err = errs.Errorf(errs.Precondition, "snapshot %s is still being copied; retry when it is ready", id)
	}
	return r, err
}
