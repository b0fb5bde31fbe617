package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/reflink"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// errLeftover: creation or deletion was interrupted.
var errLeftover = errors.New("the name belongs to an incomplete object")

// Create implements volume.Engine. It waits for a copy of the source, which
// continues after the context ends; a repeated request joins it.
func (e *Engine) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	if err := ctx.Err(); err != nil {
		return volume.Volume{}, err
	}
	p, err := planCreate(req)
	if err != nil {
		return volume.Volume{}, err
	}
	for {
		id, err := e.createOnce(ctx, p)
		switch {
		case errors.Is(err, errLeftover):
			if err := e.Delete(ctx, id); err != nil {
				return volume.Volume{}, fmt.Errorf("the previous volume with the name %q is not deleted yet: %w", req.Name, err)
			}
		case err != nil:
			return volume.Volume{}, err
		default:
			if err := e.copies.wait(ctx, string(id)); err != nil {
				return volume.Volume{}, err
			}
			v, err := e.Get(ctx, id)
			if errs.KindOf(err) == errs.NotFound {
				continue // the copy failed or the volume was deleted
			}
			return v, err
		}
	}
}

func (e *Engine) createOnce(ctx context.Context, p plan) (volume.ID, error) {
	unlock, err := e.locks.Lock(ctx, p.locks()...)
	if err != nil {
		return "", err
	}
	defer unlock()
	id, r, found, err := e.volumeNamed(ctx, p.Name)
	if err != nil {
		return "", err
	}
	if !found {
		return e.createNew(ctx, p)
	}
	if !r.State.visible() {
		return id, errLeftover
	}
	if err := newvolume.Matches(p.CreateRequest, e.volume(id, r), r.Requested); err != nil {
		return "", err
	}
	if r.State == ready && !e.pool.readOnly {
		return id, e.place(volumesDir, string(id))
	}
	return id, nil
}

func (e *Engine) volumeNamed(ctx context.Context, name string) (id volume.ID, r volumeRecord, found bool, err error) {
	err = e.store.View(ctx, func(tx *store.Tx) error {
		if id, found, err = volumeNameBucket.Get(tx, name); err != nil || !found {
			return err
		}
		r, found, err = volumeBucket.Get(tx, string(id))
		return err
	})
	return id, r, found, err
}

// createNew creates a volume with an unused name, whose lock is held.
func (e *Engine) createNew(ctx context.Context, p plan) (volume.ID, error) {
	if err := e.writable(ctx); err != nil {
		// No record has the name, so nothing was created: Kubernetes looks for
		// another node only after this code.
		return "", errs.Errorf(errs.Exhausted, "no volume can be created here now: %w", err)
	}
	from, err := e.originOf(ctx, p.Source)
	if err != nil {
		return "", err
	}
	if p.FSType, err = newvolume.FSType(p.CreateRequest, from); err != nil {
		return "", err
	}
	size, err := p.chooseSize(from, e.pool.largest)
	if err != nil {
		return "", err
	}
	id := volume.NewID(e.pool.uuid)
	r := p.record(size, from, e.pool.reflink)
	undo, err := e.promiseVolume(ctx, r)
	if err != nil {
		return "", err
	}
	if from != nil && !e.pool.reflink {
		err = e.beginVolumeCopy(ctx, id, r, from)
	} else if err = e.createComplete(ctx, id, r, from); err == nil {
		e.markAllocated(size, p.settings.thick())
	}
	if err != nil {
		undo()
		return "", fmt.Errorf("create volume %q: %w", p.Name, e.explain(err))
	}
	e.volumes.Add(1)
	return id, nil
}

// promiseVolume also reserves the space that a thick source needs because of
// the volume.
func (e *Engine) promiseVolume(ctx context.Context, r volumeRecord) (undo func(), err error) {
	undoSize, err := e.promise(ctx, r.Size, r.Settings.thick())
	if err != nil {
		return nil, err
	}
	undoSource, err := e.promise(ctx, r.Promised, true)
	if err != nil {
		undoSize()
		return nil, fmt.Errorf("the source is a %s volume, which keeps space for all its bytes: %w", thick, err)
	}
	e.markAllocated(r.Promised, true)
	return func() {
		undoSize()
		e.budget.markAllocated(-r.Promised)
		undoSource()
	}, nil
}

// record returns the record of a new volume. A thick copy has its own blocks; a
// thin copy shares the source's blocks, so that writes to the source need new
// ones.
func (p plan) record(size int64, from *origin, sharing bool) volumeRecord {
	r := volumeRecord{
		Name: p.Name, State: ready, Size: size, Content: p.Content, FSType: p.FSType,
		FromVolume: p.Source.Volume, FromSnap: p.Source.Snapshot, Ephemeral: p.Ephemeral,
		Requested: p.Parameters, Settings: p.settings, Created: time.Now().UTC(),
	}
	if from != nil {
		r.CopySize = from.Size
		if sharing && !p.settings.thick() {
			r.Promised = from.At.promised
		}
	}
	return r
}

func (e *Engine) createComplete(ctx context.Context, id volume.ID, r volumeRecord, from *origin) error {
	f, err := e.pool.root.OpenFile(incomingDir+"/"+string(id), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	crashpoint.Hit("create.begun")
	if err := e.fill(ctx, f, id, r, from); err != nil {
		return errors.Join(err, e.pool.remove(incomingDir, string(id)), e.forgetFreeze(ctx, from))
	}
	crashpoint.Hit("create.filled")
	// Keep the file now: after an unclear commit the record decides at the next
	// start.
	if err := e.commitNewVolume(ctx, id, r, from); err != nil {
		return err
	}
	crashpoint.Hit("create.recorded")
	return e.place(volumesDir, string(id))
}

func (e *Engine) commitNewVolume(ctx context.Context, id volume.ID, r volumeRecord, from *origin) error {
	return e.commit(ctx, func(tx *store.Tx) error {
		if from != nil {
			if err := deleteFreezeRecord(tx, from.At.intent); err != nil {
				return err
			}
		}
		if err := volumeBucket.Put(tx, string(id), r); err != nil {
			return err
		}
		return volumeNameBucket.Put(tx, r.Name, id)
	})
}

func (e *Engine) forgetFreeze(ctx context.Context, from *origin) error {
	if from == nil || from.At.intent == "" {
		return nil
	}
	return e.commit(ctx, func(tx *store.Tx) error { return deleteFreezeRecord(tx, from.At.intent) })
}

func (e *Engine) fill(ctx context.Context, f *os.File, id volume.ID, r volumeRecord, from *origin) error {
	if from != nil {
		if err := e.cloneOrigin(ctx, f, from); err != nil {
			return err
		}
		crashpoint.Hit("create.cloned")
		return e.complete(ctx, f, id, r)
	}
	if err := f.Truncate(r.Size); err != nil {
		return err
	}
	if r.Settings.thick() {
		if err := allocate(ctx, f, 0, r.Size); err != nil {
			return err
		}
	}
	if r.Content == volume.Filesystem {
		if err := e.tools.Make(ctx, mkfs.Request{Path: e.incomingPath(id), Type: mkfs.Type(r.FSType)}); err != nil {
			return err
		}
		crashpoint.Hit("create.formatted")
	}
	return e.seal(f, r)
}

// complete sets size, reserved blocks, and a new UUID for btrfs, which cannot
// be mounted twice with one UUID.
func (e *Engine) complete(ctx context.Context, f *os.File, id volume.ID, r volumeRecord) error {
	if err := f.Truncate(r.Size); err != nil {
		return err
	}
	if r.Content == volume.Filesystem && mkfs.Type(r.FSType) == mkfs.Btrfs {
		if err := f.Sync(); err != nil {
			return err
		}
		if err := e.tools.NewUUID(ctx, e.incomingPath(id), mkfs.Btrfs); err != nil {
			return err
		}
	}
	if r.Settings.thick() {
		if err := unshare(ctx, f, r.Size); err != nil {
			return err
		}
		if err := allocate(ctx, f, 0, r.Size); err != nil {
			return err
		}
	}
	return e.seal(f, r)
}

// seal writes the attributes of a complete file.
func (e *Engine) seal(f *os.File, r volumeRecord) error {
	err := errors.Join(
		poolfile.WriteSettings(f, poolfile.Settings(r.Settings)),
		poolfile.WriteSize(f, r.Size),
		writeVolumeRecord(f, r),
	)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return e.pool.syncDir(incomingDir)
}

// place is idempotent. It syncs the directories also of a file that an earlier
// call has renamed: that call can have failed to.
func (e *Engine) place(dir, name string) error {
	err := e.pool.root.Rename(incomingDir+"/"+name, dir+"/"+name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	crashpoint.Hit("place.renamed")
	return errors.Join(e.pool.syncDir(dir), e.pool.syncDir(incomingDir))
}

func (e *Engine) incomingPath(id volume.ID) string {
	return filepath.Join(e.pool.path, incomingDir, string(id))
}

func (e *Engine) cloneOrigin(ctx context.Context, f *os.File, from *origin) error {
	if from.At.Volume != "" {
		var err error
		from.At.intent, _, err = e.cloneFrozen(ctx, []cloneRequest{{name: fileOf(from.At.Source), size: from.Size, clone: f}}, true)
		return err
	}
	src, err := e.pool.openFile(fileOf(from.At.Source), os.O_RDONLY, from.Size)
	if err != nil {
		return err
	}
	defer src.Close()
	return reflink.Clone(f, src)
}
