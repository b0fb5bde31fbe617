package mount

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// signalTries bounds how often a mount is begun anew after a signal; the Go
// runtime sends them to its own threads.
const signalTries = 10

// mountBound is how long the short uses of others are waited for.
const mountBound = 500 * time.Millisecond

func mountNew(ctx context.Context, s Spec) error {
	perMount, superblock, err := SplitOptions(s.Options)
	if err != nil {
		return err
	}
	attr, err := attributesOf(perMount, s.ReadOnly)
	if err != nil {
		return err
	}
	if attr.set&unix.MOUNT_ATTR_RDONLY != 0 {
		superblock = append(superblock, "ro")
	}
	target, err := openTarget(s.Target)
	if err != nil {
		return fmt.Errorf("mount %s: %w", s.Source, err)
	}
	defer unix.Close(target)
	// Whoever looks for a free loop device opens each for itself for a moment,
	// as udev and blkid do with any device.
	interrupted := 0
	err = retry.For(ctx, mountBound, func() (again bool, err error) {
		err = mountOnce(ctx, s, superblock, attr, target)
		if errors.Is(err, unix.EINTR) {
			interrupted++
			return interrupted < signalTries, err
		}
		return errors.Is(err, ErrBusy), err
	})
	if err != nil {
		return fmt.Errorf("mount %s (%s) at %s: %w", s.Source, s.FSType, s.Target, err)
	}
	return nil
}

// mountOnce sets the file system up where nobody sees it, and shows it last.
func mountOnce(ctx context.Context, s Spec, superblock []string, attr attributes, target int) error {
	fs, err := openContext(s.FSType, s.Source)
	if err != nil {
		return err
	}
	defer fs.close()
	if err := unix.FsconfigSetString(fs.fd, "source", s.Source); err != nil {
		return fmt.Errorf("source: %w%s", err, fs.words())
	}
	for _, option := range superblock {
		if err := fs.set(option); err != nil {
			return err
		}
	}
	if err := fs.command("create", unix.FsconfigCreate); err != nil {
		return err
	}
	fd, err := unix.Fsmount(fs.fd, unix.FSMOUNT_CLOEXEC, int(attr.set))
	if err != nil {
		return fmt.Errorf("fsmount: %w%s", err, fs.words())
	}
	defer unix.Close(fd)
	if err := ctx.Err(); err != nil {
		return err // nobody waits any more: closing undoes it all
	}
	return show(fd, target)
}

// openTarget holds on to a mount point. A link as the last element is not
// followed, since it could lead out of where the caller has checked.
func openTarget(path string) (int, error) {
	if err := checkTarget(path); err != nil {
		return -1, err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return -1, errs.Errorf(errs.Precondition, "mount point %s: %w: it must exist before the mount", path, err)
	}
	if err != nil {
		return -1, fmt.Errorf("mount point %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		unix.Close(fd)
		return -1, errs.Errorf(errs.Precondition, "mount point %s is a symbolic link: a directory or file is needed", path)
	}
	return fd, nil
}

// show makes a mount that nobody sees yet appear at its target.
func show(fd, target int) error {
	err := unix.MoveMount(fd, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	switch {
	case errors.Is(err, unix.EINVAL) && isDir(fd) != isDir(target):
		return errs.Errorf(errs.Precondition, "move_mount: %w: a directory goes on a directory and a file on a file", err)
	case errors.Is(err, unix.ENOENT):
		return errs.Errorf(errs.Precondition, "move_mount: %w: the mount point was removed meanwhile", err)
	case err != nil:
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

func isDir(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}
