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

// ErrNotBlank: there are bytes that are not zero, so nothing is formatted.
var ErrNotBlank = errors.New("not blank")

// checkBlank makes sure that every byte reads as zero. It skips holes and
// reserved blocks, so that a fresh file costs nothing to check however large
// it is.
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

// nextData returns the first range from at on that may hold data; an empty one
// at the end when there is none.
func nextData(f *os.File, at, size int64) (start, end int64, err error) {
	start, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL): // cannot tell, as on a block device
		return at, size, nil
	case err != nil:
		return 0, 0, fmt.Errorf("looking for data in %s: %w", f.Name(), err)
	}
	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("looking for holes in %s: %w", f.Name(), err)
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
			return fmt.Errorf("reading %s at byte %d: %w", f.Name(), from, err)
		}
		if !bytes.Equal(buf[:n], zeros[:n]) {
			return errs.Errorf(errs.Precondition, "%s is %w: it holds %s; only a volume that reads as zeros is formatted",
				f.Name(), ErrNotBlank, describe(f, from))
		}
		from += int64(n)
	}
	return nil
}

// describe says what lies on a device, for a message.
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
