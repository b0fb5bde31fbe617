package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// signalTries bounds retries after EINTR: the Go runtime signals its own
// threads.
const signalTries = 10

// mountBound waits for short uses of the device by others.
const mountBound = 500 * time.Millisecond

func create(ctx context.Context, s Spec) (*Tree, error) {
	perMount, superblock, err := SplitOptions(s.Options)
	if err != nil {
		return nil, err
	}
	attr, err := attributesOf(perMount, s.ReadOnly)
	if err != nil {
		return nil, err
	}
	if attr.set&unix.MOUNT_ATTR_RDONLY != 0 {
		superblock = append(superblock, "ro")
	}
	// Others open devices exclusively for a moment: udev, blkid, searches for a
	// free loop device.
	var tree *Tree
	interrupted, stale := 0, s.FSType == "btrfs"
	err = retry.For(ctx, mountBound, func() (again bool, err error) {
		tree, err = createOnce(ctx, s, superblock, attr)
		if errors.Is(err, unix.EINTR) {
			interrupted++
			return interrupted < signalTries, err
		}
		// A mount that cannot open its device leaves the device number registered
		// for its btrfs. Linux 6.7 and later can use that registration for another
		// btrfs, which has the number later: "superblock fsid doesn't match fsid of
		// fs_devices". This mount ends the registration.
		if stale && errors.Is(err, unix.EINVAL) {
			stale = false
			return true, err
		}
		return errors.Is(err, ErrBusy), err
	})
	return tree, err
}

func createOnce(ctx context.Context, s Spec, superblock []string, attr attributes) (*Tree, error) {
	fs, err := openContext(s.FSType, s.Source)
	if err != nil {
		return nil, err
	}
	defer fs.close()
	if err := unix.FsconfigSetString(fs.fd, "source", s.Source); err != nil {
		return nil, fmt.Errorf("source: %w%s", err, fs.kernelMessages())
	}
	for _, option := range superblock {
		if err := fs.set(option); err != nil {
			return nil, err
		}
	}
	if err := fs.command("create", func(fd int) error { return kernelcall.CreateSuperblock(ctx, fd) }); err != nil {
		return nil, explainLabel(s.FSType, superblock, err)
	}
	fd, err := unix.Fsmount(fs.fd, unix.FSMOUNT_CLOEXEC, int(attr.set))
	if err != nil {
		return nil, fmt.Errorf("fsmount: %w%s", err, fs.kernelMessages())
	}
	tree := &Tree{fd: fd, source: filepath.Base(s.Source)}
	if err := ctx.Err(); err != nil {
		tree.Close()
		return nil, err
	}
	return tree, nil
}

// explainLabel adds what an error means with a label of SELinux: the kernel gives
// the reason in its log only.
func explainLabel(fsType string, options []string, err error) error {
	isLabelled := slices.ContainsFunc(options, func(option string) bool {
		name, _, _ := parseOption(option)
		return isLabel(name)
	})
	switch {
	case !isLabelled:
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("SELinux does not allow this process to mount with this label, run it with a type that is allowed to, such as spc_t: %w", err)
	case errors.Is(err, unix.EINVAL) && fsType == "btrfs":
		return fmt.Errorf("the file system is mounted on this machine with another SELinux label, or the kernel is older than Linux 6.8, which cannot label btrfs: use ext4 or xfs, or seLinuxMount: false in the CSIDriver: %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the options do not go together, or the file system is mounted on this machine with another SELinux label: %w", err)
	}
	return err
}

// openTarget opens a mount point. A symbolic link as the last element is not
// followed, as it could lead out of the directory that the caller has checked.
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
