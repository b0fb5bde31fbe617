package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/reflink"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// errLeftover: an object of that name is there only because its deletion, or
// its making, was cut off.
var errLeftover = errors.New("the name is held by a leftover")

// Create implements volume.Engine. Where the pool has to copy the source, the
// call waits for the copy; when its context ends the copy goes on, and the
// same request finds it.
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
				continue // its copy failed, or it was deleted, just now
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
		return e.make(ctx, p)
	}
	if !r.State.visible() {
		return id, errLeftover
	}
	if err := p.matches(id, r); err != nil {
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

// make makes a volume under a name that is free and locked.
func (e *Engine) make(ctx context.Context, p plan) (volume.ID, error) {
	if err := e.writable(); err != nil {
		return "", err
	}
	from, err := e.originOf(ctx, p.Source)
	if err != nil {
		return "", err
	}
	if err := p.adopt(from); err != nil {
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
	} else if err = e.makeNow(ctx, id, r, from); err == nil {
		e.settled(size, p.settings.thick())
	}
	if err != nil {
		undo()
		return "", fmt.Errorf("create volume %q: %w", p.Name, e.explain(err))
	}
	e.volumes.Add(1)
	return id, nil
}

// promiseVolume reserves what a volume needs, and what its thick source needs
// because of it.
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
	e.settled(r.Promised, true)
	return func() {
		undoSize()
		e.budget.settle(-r.Promised)
		undoSource()
	}, nil
}

// record is the volume as it is to be noted. A thick copy has blocks of its
// own; a thin one shares them, so that the source needs new ones.
func (p plan) record(size int64, from *origin, sharing bool) volumeRecord {
	r := volumeRecord{
		Name: p.Name, State: ready, Size: size, Content: p.Content, FSType: p.FSType,
		FromVolume: p.Source.Volume, FromSnap: p.Source.Snapshot, Ephemeral: p.Ephemeral,
		Requested: p.Parameters, Settings: p.settings, Created: time.Now().UTC(),
	}
	if from != nil {
		r.CopySize = from.size
		if sharing && !p.settings.thick() {
			r.Promised = from.promised
		}
	}
	return r
}

// makeNow makes the whole volume while the caller waits.
func (e *Engine) makeNow(ctx context.Context, id volume.ID, r volumeRecord, from *origin) error {
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
	// From here on the file stays: should the commit fail in an unclear way,
	// the next start decides by the record.
	if err := e.commitNewVolume(ctx, id, r, from); err != nil {
		return err
	}
	crashpoint.Hit("create.recorded")
	return e.place(volumesDir, string(id))
}

// commitNewVolume makes the volume exist.
func (e *Engine) commitNewVolume(ctx context.Context, id volume.ID, r volumeRecord, from *origin) error {
	return e.commit(ctx, func(tx *store.Tx) error {
		if from != nil {
			if err := forget(tx, from.intent); err != nil {
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
	if from == nil || from.intent == "" {
		return nil
	}
	return e.commit(ctx, func(tx *store.Tx) error { return forget(tx, from.intent) })
}

// fill brings content into the file of a new volume and makes it durable.
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

// complete turns a copy of a source into the volume: its size, its room, and
// an identity of its own where two equal ones cannot be mounted side by side.
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

// seal makes a finished file durable, in every respect but its final name.
func (e *Engine) seal(f *os.File, r volumeRecord) error {
	if err := errors.Join(poolfile.WriteSettings(f, poolfile.Settings(r.Settings)), poolfile.WriteSize(f, r.Size)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return e.pool.syncDir(incomingDir)
}

// place gives a recorded file its final name; done already is no error.
func (e *Engine) place(dir, name string) error {
	if _, err := e.pool.root.Lstat(incomingDir + "/" + name); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := e.pool.root.Rename(incomingDir+"/"+name, dir+"/"+name); err != nil {
		return err
	}
	crashpoint.Hit("place.renamed")
	return errors.Join(e.pool.syncDir(dir), e.pool.syncDir(incomingDir))
}

func (e *Engine) incomingPath(id volume.ID) string {
	return filepath.Join(e.pool.path, incomingDir, string(id))
}

// cloneOrigin makes f share the blocks of the source, at one moment of it.
func (e *Engine) cloneOrigin(ctx context.Context, f *os.File, from *origin) error {
	if from.volume != "" {
		var err error
		from.intent, _, err = e.cut(ctx, []cutting{{name: from.file(), size: from.size, clone: f}}, true)
		return err
	}
	src, err := e.pool.openFile(from.file(), os.O_RDONLY, from.size)
	if err != nil {
		return err
	}
	defer src.Close()
	return reflink.Clone(f, src)
}
