package file

import (
	"context"
	"errors"
	"os"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/poolfile"
)

// checkSize refuses a file that has less than the size of its volume.
func checkSize(f *os.File, a poolfile.Attributes) error {
	info, err := f.Stat()
	if err == nil && info.Size() < a.Size {
		err = errs.Errorf(errs.Precondition, "%s was truncated to %d of %d bytes; put the whole file back, or delete the volume and restore it from a snapshot or a backup", f.Name(), info.Size(), a.Size)
	}
	return err
}

// applyAttributes sets up a device as its file says. A kernel that can allow
// discards again only on a new device is no reason to refuse the existing one.
func applyAttributes(ctx context.Context, d loop.Device, a poolfile.Attributes) error {
	if err := loop.SetDiscard(ctx, d, !a.Thick); err != nil && !errors.Is(err, loop.ErrReattach) {
		return err
	}
	if a.ReadAheadKiB < 0 {
		return nil
	}
	return loop.SetReadAhead(ctx, d, a.ReadAheadKiB)
}
