package node

import (
	"context"
	"errors"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
)

// awaitCheck refuses to detach a device that a check of an earlier call still
// repairs.
func (s source) awaitCheck(ctx context.Context) error {
	info, err := s.inspect(ctx)
	if err != nil || info.Device.IsZero() || info.Device.IsDirectory() || info.Presence != Present {
		return nil // detach reports what it finds
	}
	if err := checkIdle(info.Device.Path); errors.Is(err, errs.Busy) {
		return err
	}
	return nil // a device that cannot be written to is not checked
}

func checkIdle(device string) error {
	runs, err := mkfs.IsLockedByTool(device)
	if runs {
		return errs.Errorf(errs.Busy, "e2fsck of an earlier call still checks the file system on %s; try again", device)
	}
	return err
}
