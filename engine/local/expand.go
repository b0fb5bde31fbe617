package local

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/volume"
)

// Expand implements volume.Engine. It grows the file; NodeExpandVolume then
// grows the device and the file system.
func (e *Engine) Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	unlock, err := e.locks.Lock(ctx, "vol:"+string(id))
	if err != nil {
		return volume.Volume{}, err
	}
	defer unlock()
	r, err := e.readyVolume(ctx, id)
	if err != nil {
		return volume.Volume{}, err
	}
	if err := newvolume.CheckSize(size); err != nil {
		return volume.Volume{}, err
	}
	want, err := e.chooseExpansion(id, r.Size, size)
	if err != nil || want == r.Size {
		return e.volume(id, r), err
	}
	if err := e.writable(ctx); err != nil {
		return volume.Volume{}, err
	}
	if err := e.expand(ctx, id, &r, want); err != nil {
		return volume.Volume{}, fmt.Errorf("expand volume %s: %w", id, e.explain(err))
	}
	return e.volume(id, r), nil
}

func (e *Engine) chooseExpansion(id volume.ID, now int64, size volume.SizeRange) (int64, error) {
	if size.Limit != 0 && now > size.Limit {
		return 0, errs.Errorf(errs.OutOfRange, "volume %s has %d bytes, but the request is for %s; volumes cannot shrink", id, now, size)
	}
	if size.Required <= now {
		return now, nil
	}
	want, err := size.Choose(now, now, granule)
	if err != nil {
		return 0, err
	}
	if want > e.pool.largest {
		return 0, errs.Errorf(errs.OutOfRange, "a volume of %d bytes is not possible: files in this pool have at most %d bytes", want, e.pool.largest)
	}
	return want, nil
}

// expand grows the file and then the record. After a crash in between the next
// start uses the size of the file.
func (e *Engine) expand(ctx context.Context, id volume.ID, r *volumeRecord, want int64) error {
	more, isThick := want-r.Size, r.Settings.thick()
	undo, err := e.promise(ctx, more, isThick)
	if err != nil {
		return err
	}
	if err := e.growFile(ctx, id, *r, want); err != nil {
		undo()
		return err
	}
	crashpoint.Hit("expand.grown")
	r.Size = want
	err = e.putVolume(ctx, id, *r)
	e.markAllocated(more, isThick)
	crashpoint.Hit("expand.recorded")
	return err
}

func (e *Engine) growFile(ctx context.Context, id volume.ID, r volumeRecord, want int64) error {
	f, err := e.pool.openFile(volumesDir+"/"+string(id), os.O_RDWR, r.Size)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if r.Settings.thick() {
		if err := allocate(ctx, f, r.Size, want); err != nil {
			// Truncate to the same size frees blocks beyond the end.
			return errors.Join(err, f.Truncate(info.Size()))
		}
		crashpoint.Hit("expand.allocated")
	}
	if info.Size() < want {
		if err := f.Truncate(want); err != nil {
			return err
		}
	}
	if err := poolfile.WriteSize(f, want); err != nil {
		return err
	}
	return f.Sync()
}
