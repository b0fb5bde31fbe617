package file

import (
	"context"
	"errors"
	"os"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/poolfile"
)

// checkSize rejects a file shorter than its volume.
func checkSize(f *os.File, a poolfile.Attributes) error {
	info, err := f.Stat()
	if err == nil && info.Size() < a.Size {
		err = errs.Errorf(errs.Precondition, "%s was truncated to %d of %d bytes; restore the whole file, or delete the volume and restore it from a snapshot or backup", f.Name(), info.Size(), a.Size)
	}
	return err
}

// applyAttributes sets up a device. If the kernel enables discards only on new
// devices, an existing one is accepted without them.
func applyAttributes(ctx context.Context, d loop.Device, a poolfile.Attributes) error {
	if err := loop.SetDiscard(ctx, d, !a.Thick); err != nil && !errors.Is(err, loop.ErrReattach) {
		return err
	}
	if a.ReadAheadKiB < 0 {
		return nil
	}
	return loop.SetReadAhead(ctx, d, a.ReadAheadKiB)
}
