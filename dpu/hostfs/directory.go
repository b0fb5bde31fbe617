package hostfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume/access"
)

// attributes are the options of all mounts: files of a volume must give no
// rights on this machine.
func attributes() []string { return []string{"nosuid", "nodev"} }

// directory is a directory of a pool, bind-mounted to the volume directory.
type directory struct {
	mounts   *Mounts
	file     access.File
	readOnly bool
}

func (d directory) String() string {
	return fmt.Sprintf("directory %s of pool %s (%s)", d.file.Name, d.file.Pool, modeOf(d.readOnly))
}

func modeOf(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "writable"
}

func (d directory) mountAt(ctx context.Context, target string) error {
	// The handle keeps its directory if the path is renamed or replaced.
	handle, err := d.mounts.config.Pools.Directory(d.file)
	if err != nil {
		return err
	}
	defer handle.Close()
	err = mount.Bind(ctx, fmt.Sprintf("/proc/self/fd/%d", handle.Fd()), target, mount.BindOptions{ReadOnly: d.readOnly, Options: attributes()})
	if err != nil {
		return fmt.Errorf("%s: %w", d, err)
	}
	return nil
}

// shown compares the device, the path and the mount's read-only flag: the file
// system can become read-only after an error.
func (d directory) shown(_ context.Context, e mount.Entry, table []mount.Entry) (bool, error) {
	dir, known := d.mounts.pools[d.file.Pool]
	if !known {
		return false, nil
	}
	path := filepath.Join(dir, d.file.Name)
	holder, ok := mount.Holding(table, path)
	if !ok {
		return false, nil
	}
	below, err := filepath.Rel(holder.Target, path)
	if err != nil {
		return false, err
	}
	return e.Major == holder.Major && e.Minor == holder.Minor && e.Root == filepath.Join(holder.Root, below) &&
		slices.Contains(e.Options, "ro") == d.readOnly, nil
}

func ensureEmptyDir(target string) error {
	if err := os.Mkdir(target, 0o750); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("mount point: %w", err)
	}
	fd, err := unix.Open(target, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return errs.Errorf(errs.Precondition, "mount point %s is a file or a symbolic link: remove it", target)
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: target, Err: err}
	}
	dir := os.NewFile(uintptr(fd), target)
	defer dir.Close()
	switch names, err := dir.Readdirnames(1); {
	case len(names) > 0:
		return errs.Errorf(errs.Precondition, "mount point %s is not empty: it contains %q, which a mount would hide; move the contents away", target, names[0])
	case err != nil && !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

func removeMountPoint(log *slog.Logger, target string) {
	switch err := unix.Rmdir(target); {
	case err == nil, errors.Is(err, unix.ENOENT):
	default:
		log.Warn("removing mount point failed", "path", target, "err", err)
	}
}
