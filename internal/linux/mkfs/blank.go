package mkfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// ErrNotBlank: a volume with nonzero bytes is not formatted.
var ErrNotBlank = errors.New("not blank")

// checkBlank skips holes and unwritten extents, so that it is cheap for a new
// file of any size.
func checkBlank(ctx context.Context, f *os.File, size int64) error {
	for at := int64(0); at < size; {
		start, end, err := nextData(f, at, size)
		if err != nil {
			return err
		}
		if err := checkZeros(ctx, f, start, end); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// nextData returns an empty range at the end if no data follows.
func nextData(f *os.File, at, size int64) (start, end int64, err error) {
	start, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL): // SEEK_DATA is not supported, as on a block device
		return at, size, nil
	case err != nil:
		return 0, 0, fmt.Errorf("find data in %s: %w", f.Name(), err)
	}
	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("find holes in %s: %w", f.Name(), err)
	}
	return start, min(end, size), nil
}

func checkZeros(ctx context.Context, f *os.File, from, to int64) error {
	buf, zeros := make([]byte, min(mib, to-from)), make([]byte, min(mib, to-from))
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(buf[:min(int64(len(buf)), to-from)], from)
		if err != nil && (!errors.Is(err, io.EOF) || n == 0) {
			return fmt.Errorf("read %s at byte %d: %w", f.Name(), from, err)
		}
		if !bytes.Equal(buf[:n], zeros[:n]) {
			return errs.Errorf(errs.Precondition, "%s is %w: it contains %s; only a volume that reads as zeros can be formatted",
				f.Name(), ErrNotBlank, describe(f, from))
		}
		from += int64(n)
	}
	return nil
}

func describe(r io.ReaderAt, at int64) string {
	info, err := Probe(r)
	switch {
	case err != nil:
		return err.Error()
	case info.Type != "":
		return fmt.Sprintf("%s, UUID %s", info.Type, info.UUID)
	case info.Foreign != "":
		return info.Foreign
	}
	return fmt.Sprintf("unknown data near byte %d", at)
}
