package local

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fiemap"
	"github.com/cleatproject/cleat/volume"
)

// Allocated implements volume.Deltas. It works in every pool.
func (e *Engine) Allocated(ctx context.Context, id volume.SnapshotID, from int64) (volume.BlockMap, error) {
	r, err := e.mappable(ctx, id, from)
	if err != nil {
		return volume.BlockMap{}, err
	}
	from -= from % granule // whole blocks only
	return volume.BlockMap{Size: r.Size, Ranges: func(yield func(volume.Range, error) bool) {
		f, err := e.pool.openFile(snapshotFile(id), os.O_RDONLY, r.Size)
		if err != nil {
			yield(volume.Range{}, err)
			return
		}
		defer f.Close()
		for r, err := range dataRanges(ctx, f, r.Size, from) {
			if !yield(r, err) || err != nil {
				return
			}
		}
	}}, nil
}

// Delta implements volume.Deltas. Equal blocks are shared, so addresses show
// the difference. Precondition: the pool cannot share blocks. Invalid:
// snapshots of different volumes.
func (e *Engine) Delta(ctx context.Context, base, target volume.SnapshotID, from int64) (volume.BlockMap, error) {
	b, err := e.mappable(ctx, base, 0)
	if err != nil {
		return volume.BlockMap{}, err
	}
	t, err := e.mappable(ctx, target, from)
	if err != nil {
		return volume.BlockMap{}, err
	}
	if b.Source != t.Source {
		return volume.BlockMap{}, errs.Errorf(errs.Invalid, "snapshots %s and %s are of different volumes, %s and %s", base, target, b.Source, t.Source)
	}
	if !e.pool.reflink {
		return volume.BlockMap{}, errs.Errorf(errs.Precondition, "the file system of pool %s cannot share blocks, so changed blocks are not known; take a full backup", e.pool.path)
	}
	from -= from % granule
	return volume.BlockMap{Size: t.Size, Ranges: func(yield func(volume.Range, error) bool) {
		if err := e.compare(ctx, base, target, b.Size, t.Size, from, yield); err != nil {
			yield(volume.Range{}, err)
		}
	}}, nil
}

// compare does not yield the error that it returns.
func (e *Engine) compare(ctx context.Context, base, target volume.SnapshotID, baseSize, size, from int64, yield func(volume.Range, error) bool) error {
	fb, err := e.pool.openFile(snapshotFile(base), os.O_RDONLY, baseSize)
	if err != nil {
		return err
	}
	defer fb.Close()
	ft, err := e.pool.openFile(snapshotFile(target), os.O_RDONLY, size)
	if err != nil {
		return err
	}
	defer ft.Close()
	was := fiemap.Extents(ctx, fb, from, max(0, min(baseSize, size)-from))
	is := fiemap.Extents(ctx, ft, from, size-from)
	for r, err := range fiemap.Delta(was, is, size, from) {
		if err != nil {
			return err
		}
		if !yield(volume.Range(r), nil) {
			return nil
		}
	}
	return nil
}

func (e *Engine) mappable(ctx context.Context, id volume.SnapshotID, from int64) (snapshotRecord, error) {
	r, err := e.readySnapshot(ctx, id)
	switch {
	case err != nil:
		return r, err
	case from < 0 || from > r.Size:
		return r, errs.Errorf(errs.OutOfRange, "offset %d is outside the %d bytes of snapshot %s", from, r.Size, id)
	}
	if err := e.pool.checkPresent(); err != nil {
		return r, err
	}
	if _, err := e.pool.inspect(snapshotFile(id), r.Size); err != nil {
		return r, fmt.Errorf("snapshot %s: %w", id, e.explain(err))
	}
	return r, nil
}

func snapshotFile(id volume.SnapshotID) string { return snapshotsDir + "/" + string(id) }

func dataRanges(ctx context.Context, f *os.File, size, from int64) iter.Seq2[volume.Range, error] {
	return func(yield func(volume.Range, error) bool) {
		for from < size {
			if err := ctx.Err(); err != nil {
				yield(volume.Range{}, err)
				return
			}
			start, err := f.Seek(from, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) {
				return
			}
			var end int64
			if err == nil {
				end, err = f.Seek(start, unix.SEEK_HOLE)
			}
			if err != nil {
				yield(volume.Range{}, fmt.Errorf("find data after offset %d in %s: %w", from, f.Name(), err))
				return
			}
			end = min(end, size)
			if start >= end {
				return
			}
			if !yield(volume.Range{Offset: start, Length: end - start}, nil) {
				return
			}
			from = end
		}
	}
}
