package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

func bind(ctx context.Context, source, target string, o BindOptions) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	attr, err := attributesOf(o.Options, o.ReadOnly)
	if err != nil {
		return err
	}
	if err := bindWith(source, target, attr); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

func bindWith(source, target string, attr attributes) error {
	to, err := openTarget(target)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.O_CLOEXEC)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return errs.Errorf(errs.Precondition, "source: %w: it must exist before the mount", err)
	case err != nil:
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	if err := setAttributes(tree, attr); err != nil {
		return err
	}
	return moveMount(tree, to)
}

func setAttributes(fd int, attr attributes) error {
	if attr == (attributes{}) {
		return nil
	}
	err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attr.set, Attr_clr: attr.clear})
	switch {
	case errors.Is(err, unix.ENOSYS):
		return errs.Errorf(errs.Unsupported, "mount_setattr: %w: Linux 5.12 or later is needed", err)
	case errors.Is(err, unix.EBUSY):
		return errs.Errorf(errs.Precondition, "make the mount read-only: %w: files are open for writing through it", ErrBusy)
	case err != nil:
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}
