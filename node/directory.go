package node

import (
	"context"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// bind mounts a directory of a shared file system, or adopts its mount.
func (g filesystem) bind(ctx context.Context) error {
	d := g.attachment.Device
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	source, _ := mount.Holding(table, d.Path)
	perMount, superblock, err := mount.SplitOptions(g.capability.MountFlags)
	switch wanted := g.capability.FSType; {
	case err != nil:
		return err
	case len(superblock) > 0:
		return errs.Errorf(errs.Invalid, "mount flags for the file system are not possible with a directory of a shared %s; only those of one mount are, such as noexec or noatime", source.FSType)
	case wanted != "" && wanted != source.FSType:
		return errs.Errorf(errs.Precondition, "the volume has file system %s, the request asks for fs_type %s", source.FSType, wanted)
	case source.ReadOnly() && !g.readOnly:
		return errs.Errorf(errs.Precondition, "the volume can be read only: use access mode ReadOnlyMany")
	}
	e, there, err := mountAt(ctx, g.path, d)
	if err != nil {
		return err
	}
	if there && e.ReadOnly() != g.readOnly {
		if err := unmountAll(ctx, g.path, d); err != nil {
			return err
		}
		there = false
	}
	if g.capability.MountGroup != nil {
		if err := g.applyMountGroup(ctx, d.Path, nil); err != nil {
			return err
		}
		crashpoint.Hit("mount.group-given")
	}
	if there {
		return nil
	}
	if err := mount.Bind(ctx, d.Path, g.path, mount.BindOptions{ReadOnly: g.readOnly, Options: perMount}); err != nil {
		return err
	}
	crashpoint.Hit("mount.shown")
	return nil
}
