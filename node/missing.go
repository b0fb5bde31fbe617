package node

import (
	"context"
	"errors"
	"os"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

// errNoFilesystem: the place of a superblock has none. This alone does not say
// whether the volume has a file system.
var errNoFilesystem = errors.New("no superblock of a file system was found")

// explainMissing says what is known of a volume without a superblock: from the
// engine's record, and from copies of the superblock on the device.
func (m *Manager) explainMissing(ctx context.Context, id volume.ID, a *Attachment, err error) error {
	noSuper := errors.Is(err, errNoFilesystem)
	if !noSuper && !errors.Is(err, mkfs.ErrNotBlank) {
		return err
	}
	const repair = "nothing was changed: copy the volume, and repair the copy with \"e2fsck -b\" (ext4), \"xfs_repair\" or \"btrfs rescue super-recover\""
	f, openErr := os.Open(a.Device.Path)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	defer f.Close()
	t, at, findErr := mkfs.FindCopy(ctx, f, a.Size)
	switch {
	case findErr != nil:
		return errors.Join(err, findErr)
	case t != "":
		return errs.Errorf(errs.Precondition, "the %s of the volume is damaged: %w, but a copy of it is at byte %d; %s", t, err, at, repair)
	case !noSuper:
		return err
	}
	if m.config.FSType != nil {
		created, recordErr := m.config.FSType(ctx, id)
		if recordErr != nil && !errors.Is(recordErr, errs.NotFound) {
			return errors.Join(err, recordErr)
		}
		if created != "" {
			return errs.Errorf(errs.Precondition, "the %s with which the volume was created is damaged: %w; %s", created, err, repair)
		}
	}
	return errs.Errorf(errs.Precondition, "%w, and no copy of one: the volume was created as block (use access type block), or was never staged in a mode in which a node can write, or its file system is damaged; for that, %s", err, repair)
}
