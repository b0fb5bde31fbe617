package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// Tree is a mount held by a file descriptor: a detached one from Create until
// MoveTo attaches it, or one from Open.
type Tree struct {
	fd     int
	source string
}

// Create creates a detached mount, which Close unmounts unless MoveTo was
// called. Errors are those of Mount; Target is not used.
func Create(ctx context.Context, s Spec) (*Tree, error) {
	t, err := create(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("mount %s (%s): %w", s.Source, s.FSType, err)
	}
	return t, nil
}

// Open opens the mount at a path. Errors: errs.Precondition if nothing is
// mounted there.
func Open(ctx context.Context, target string) (*Tree, error) {
	e, mounted, err := At(ctx, target)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return nil, errs.Errorf(errs.Precondition, "nothing is mounted at %s", target)
	}
	fd, err := openTarget(e.Target)
	if err != nil {
		return nil, err
	}
	return &Tree{fd: fd, source: deviceName(e)}, nil
}

// Path returns a path to the root directory, valid in this process until Close.
func (t *Tree) Path() string { return fmt.Sprintf("/proc/self/fd/%d", t.fd) }

// SetReadOnly remounts like `mount -o remount,ro`: this mount, and the file
// system with all its mounts. ErrBusy: files are open for writing.
func (t *Tree) SetReadOnly(readOnly bool) error {
	word, attr := "rw", attributes{clear: unix.MOUNT_ATTR_RDONLY}
	if readOnly {
		word, attr = "ro", attributes{set: unix.MOUNT_ATTR_RDONLY}
	}
	if err := t.reconfigure(word, attr); err != nil {
		return fmt.Errorf("remount %s %s: %w", t.source, word, err)
	}
	return nil
}

// reconfigure changes the file system first: if the kernel refuses that,
// nothing has changed.
func (t *Tree) reconfigure(word string, attr attributes) error {
	fd, err := unix.Fspick(t.fd, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH|unix.FSPICK_NO_AUTOMOUNT)
	if err != nil {
		return fmt.Errorf("fspick: %w", err)
	}
	fs := &fsContext{fd, openKernelLog(t.source)}
	defer fs.close()
	if err := fs.set(word); err != nil {
		return err
	}
	if err := fs.command("reconfigure", unix.FsconfigReconfigure); err != nil {
		return err
	}
	return setAttributes(t.fd, attr)
}

// MoveTo attaches a detached mount to an existing directory.
func (t *Tree) MoveTo(target string) error {
	to, err := openTarget(target)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := moveMount(t.fd, to); err != nil {
		return fmt.Errorf("mount %s at %s: %w", t.source, target, err)
	}
	return nil
}

// Close closes the descriptor, and unmounts a mount that was not attached.
func (t *Tree) Close() { unix.Close(t.fd) }

func moveMount(fd, target int) error {
	err := unix.MoveMount(fd, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	switch {
	case errors.Is(err, unix.EINVAL) && isDir(fd) != isDir(target):
		return errs.Errorf(errs.Precondition, "move_mount: %w: source and target must both be directories, or both files", err)
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
