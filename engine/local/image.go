package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/growfs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// imageLabel helps administrators who find the image.
const imageLabel = "cleat-pool"

type image struct {
	path string
	pool string // mount point
	size int64
	Config
}

func (c Config) imagePath() string {
	if c.ImagePath != "" {
		return c.ImagePath
	}
	return filepath.Clean(c.Pool) + ".img"
}

func (c Config) image() (image, error) {
	pool, err := realPath(c.Pool)
	return image{path: c.imagePath(), pool: pool, size: (c.Image + granule - 1) / granule * granule, Config: c}, err
}

// prepareImage creates and mounts the image. It is idempotent. An existing
// image is never formatted: it gets its name when it is complete.
func prepareImage(ctx context.Context, c Config) error {
	if c.Image == 0 {
		return nil
	}
	i, err := c.image()
	if err != nil {
		return err
	}
	if err := i.prepare(ctx); err != nil {
		return fmt.Errorf("pool image %s: %w", i.path, err)
	}
	return nil
}

func (i image) prepare(ctx context.Context) error {
	if least := mkfs.MinSize(mkfs.XFS); i.size < least {
		return errs.Errorf(errs.OutOfRange, "%d bytes are too few for a pool; the minimum is %d", i.size, least)
	}
	if err := checkPoolNotMissing(i.Config, i.path); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(i.path), 0o700), os.MkdirAll(i.pool, 0o700)); err != nil {
		return err
	}
	// Only one of several starting processes creates or mounts the image.
	dir, err := os.Open(filepath.Dir(i.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := flock.Lock(ctx, dir); err != nil {
		return err
	}
	defer func() { _ = flock.Unlock(dir) }()
	f, err := i.open(ctx, dir)
	if err != nil {
		return err
	}
	defer f.Close()
	mounted, err := i.mounted(ctx, f)
	if err != nil {
		return err
	}
	if !mounted {
		if err := i.mount(ctx, f); err != nil {
			return err
		}
	}
	if err := i.verify(); err != nil {
		if !mounted {
			err = errors.Join(err, mount.Unmount(ctx, i.pool))
		}
		return err
	}
	return i.grow(ctx, f)
}

// verify compares the image with the pool served from its directory before.
func (i image) verify() error {
	expected, err := recordedPool(i.StateDir, i.pool)
	if err != nil || expected == "" {
		return err
	}
	f, err := os.Open(filepath.Join(i.pool, identityName))
	if errors.Is(err, fs.ErrNotExist) {
		return missingPoolError(expected)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = readIdentity(f, expected)
	return err
}

func (i image) open(ctx context.Context, dir *os.File) (*os.File, error) {
	flags := os.O_RDWR
	if i.ReadOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(i.path, flags, 0)
	if !errors.Is(err, fs.ErrNotExist) || i.ReadOnly {
		return f, err
	}
	if err := i.create(ctx, dir); err != nil {
		return nil, err
	}
	return os.OpenFile(i.path, flags, 0)
}

// create creates the image with a temporary name that only cleat uses; an
// existing temporary file is from an interrupted attempt.
func (i image) create(ctx context.Context, dir *os.File) error {
	draft := i.draft()
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := i.fill(ctx, draft); err != nil {
		return errors.Join(err, os.Remove(draft))
	}
	crashpoint.Hit("image.filled")
	if err := unix.Renameat2(unix.AT_FDCWD, draft, unix.AT_FDCWD, i.path, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("rename %s: %w", draft, err)
	}
	crashpoint.Hit("image.renamed")
	return dir.Sync()
}

func (i image) draft() string {
	return filepath.Join(filepath.Dir(i.path), "."+filepath.Base(i.path)+".making")
}

// fill reserves all blocks, so that the image cannot run out of space on the
// disk below.
func (i image) fill(ctx context.Context, path string) error {
	if err := i.checkSpace(0); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := i.extend(ctx, f, 0); err != nil {
		return err
	}
	crashpoint.Hit("image.allocated")
	if err := mkfs.Make(ctx, mkfs.Request{Path: path, Type: mkfs.XFS, Label: imageLabel}); err != nil {
		return err
	}
	return f.Sync()
}

// checkSpace returns an error if the disk has no space for the image; had is
// the current size of the image.
func (i image) checkSpace(had int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(i.path), &st); err != nil {
		return fmt.Errorf("statfs %s: %w", filepath.Dir(i.path), err)
	}
	if free := int64(st.Bavail) * st.Bsize; i.size-had > free {
		return errs.Errorf(errs.Exhausted, "no space for %d bytes: the disk has %d bytes free; choose a smaller image or another directory", i.size-had, free)
	}
	return nil
}

func (i image) extend(ctx context.Context, f *os.File, from int64) error {
	err := allocate(ctx, f, from, i.size)
	if errs.KindOf(err) == errs.Unsupported && errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // it cannot reserve blocks
	}
	if errors.Is(err, unix.ENOSPC) {
		err = errs.Errorf(errs.Exhausted, "no space for %d bytes: %w", i.size, err)
	}
	if err != nil {
		return errors.Join(err, f.Truncate(from))
	}
	return f.Truncate(i.size)
}

func (i image) mount(ctx context.Context, f *os.File) error {
	if err := i.checkMountable(ctx, f); err != nil {
		return err
	}
	device, open, err := loop.Attach(ctx, loop.Config{File: f, ReadOnly: i.ReadOnly, AutoClear: true})
	if err != nil {
		return err
	}
	defer open.Close() // the mount keeps the device from here on
	crashpoint.Hit("image.attached")
	// Discards would free the reserved blocks.
	if err := loop.SetDiscard(ctx, device, false); err != nil {
		return err
	}
	err = mount.Mount(ctx, mount.Spec{
		Source: device.Path, Target: i.pool, FSType: string(mkfs.XFS), ReadOnly: i.ReadOnly,
		Options: []string{"nouuid", "nosuid", "nodev", "noexec"},
	})
	crashpoint.Hit("image.mounted")
	return err
}

func (i image) mounted(ctx context.Context, f *os.File) (bool, error) {
	m, ok, err := mount.At(ctx, i.pool)
	if err != nil || !ok {
		return false, err
	}
	u, err := useOf(ctx, f)
	if err != nil {
		return false, err
	}
	for _, d := range u.devices {
		if m.IsOf(d.Path, d.Major, d.Minor) {
			return true, nil
		}
	}
	return false, errs.Errorf(errs.Precondition, "%s is already mounted on %s; unmount it, or do not configure an image", m.Source, i.pool)
}

func (i image) checkMountable(ctx context.Context, f *os.File) error {
	u, err := useOf(ctx, f)
	if err != nil {
		return err
	}
	if u.inUse() {
		return errs.Errorf(errs.Precondition, "the image is in use elsewhere (%s)", u)
	}
	entries, err := os.ReadDir(i.pool)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return errs.Errorf(errs.Precondition, "directory %s is not empty (it contains %q), and a mount would hide its content", i.pool, entries[0].Name())
	}
	return nil
}

// grow completes an interrupted attempt, and never shrinks the image.
func (i image) grow(ctx context.Context, f *os.File) error {
	info, err := f.Stat()
	if err != nil || i.ReadOnly {
		return err
	}
	size := info.Size()
	if size < i.size {
		if err := i.checkSpace(size); err != nil {
			return err
		}
		if err := errors.Join(i.extend(ctx, f, size), f.Sync()); err != nil {
			return err
		}
		size = i.size
		crashpoint.Hit("image.grown")
	}
	u, err := useOf(ctx, f)
	if err != nil {
		return err
	}
	for _, d := range u.devices {
		now, err := loop.Size(ctx, d)
		if err != nil {
			return err
		}
		if now < size {
			if err := loop.Resize(ctx, d); err != nil {
				return err
			}
		}
	}
	info2, err := mkfs.Probe(f)
	if err != nil {
		return err
	}
	if info2.Type == mkfs.XFS && info2.Size >= size {
		return nil
	}
	_, err = growfs.Grow(ctx, i.pool, mkfs.XFS)
	return err
}

// UnmountImage unmounts the image, if mounted, after Close. mount.ErrBusy:
// volumes are attached.
func UnmountImage(ctx context.Context, c Config) error {
	i, err := c.image()
	if err != nil {
		return err
	}
	f, err := os.Open(i.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if mounted, err := i.mounted(ctx, f); err != nil || !mounted {
		return err
	}
	return mount.Unmount(ctx, i.pool)
}
