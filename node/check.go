package node

import (
	"context"
	"errors"
	"os"

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
	return checkIdle(info.Device.Path)
}

func checkIdle(device string) error {
	runs, err := mkfs.IsLockedByTool(device)
	switch {
	case runs:
		return errs.Errorf(errs.Busy, "e2fsck of an earlier call still checks the file system on %s; try again", device)
	case errors.Is(err, os.ErrNotExist):
		return nil
	}
	return err
}
