package local

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/volume"
)

// claimWait bounds the wait for somebody who attaches or cuts a file right now.
const claimWait = 3 * time.Second

// use tells who uses a backing file, as the kernel sees it.
type use struct {
	devices []loop.Device
	mounts  []mount.Entry // of these devices, in this mount namespace
}

// inUse reports whether anything is bound to the file.
func (u use) inUse() bool { return len(u.devices) > 0 }

func (u use) String() string {
	var words []string
	for _, d := range u.devices {
		words = append(words, d.Path)
	}
	for _, m := range u.mounts {
		words = append(words, "mounted on "+m.Target)
	}
	return strings.Join(words, ", ")
}

// useOf looks a file up by device and inode, never by its path.
func useOf(ctx context.Context, f *os.File) (use, error) {
	backing, err := loop.BackingOf(f)
	if err != nil {
		return use{}, err
	}
	devices, err := loop.Find(ctx, backing)
	if err != nil {
		return use{}, err
	}
	return useThrough(ctx, devices)
}

// useOfRemoved finds the devices that are bound to a file which had the name
// until it was removed or replaced.
func (e *Engine) useOfRemoved(ctx context.Context, name string) (use, error) {
	all, err := loop.List(ctx)
	if err != nil {
		return use{}, err
	}
	here, err := e.pool.root.Stat(path.Dir(name))
	if err != nil {
		return use{}, err
	}
	var devices []loop.Device
	for _, d := range all {
		shown, removed, err := loop.BackingName(d)
		if errors.Is(err, loop.ErrGone) {
			continue
		}
		if err != nil {
			return use{}, err
		}
		if !removed || path.Base(shown) != path.Base(name) {
			continue
		}
		// A copy of the pool has files of the same names. A directory that
		// cannot be seen from here may be the pool in another mount namespace.
		if there, err := os.Stat(path.Dir(shown)); err != nil || sameFile(here, there) {
			devices = append(devices, d)
		}
	}
	return useThrough(ctx, devices)
}

// useThrough adds the mounts of devices.
func useThrough(ctx context.Context, devices []loop.Device) (use, error) {
	u := use{devices: devices}
	if !u.inUse() {
		return u, nil
	}
	table, err := mount.Table(ctx)
	if err != nil {
		return u, err
	}
	for _, m := range table {
		if slices.ContainsFunc(u.devices, func(d loop.Device) bool { return m.IsOf(d.Path, d.Major, d.Minor) }) {
			u.mounts = append(u.mounts, m)
		}
	}
	return u, nil
}

// mountpoint returns where the file's file system can be reached; empty when
// it is not mounted, or when that cannot be seen from here: a mount may lie
// hidden below another one, or in another namespace.
func (u use) mountpoint(ctx context.Context) (string, error) {
	for _, m := range u.mounts {
		top, ok, err := mount.At(ctx, m.Target)
		if err != nil {
			return "", err
		}
		if ok && top.ID == m.ID {
			return m.Target, nil
		}
	}
	return "", nil
}

// claimed is a file of the pool that nobody can attach while it is held.
type claimed struct {
	*os.File
	use use // as it was when the file was claimed
}

// release lets others have the file. The lock is given back by name: a child
// that is being started may hold a copy of the descriptor for a moment.
func (c *claimed) release() error {
	return errors.Join(flock.Unlock(c.File), c.Close())
}

// claim opens and locks a file of the pool that has at least a size. An
// attach holds the lock of its file for some milliseconds, which claim waits for.
// Busy: it is held for longer.
func (e *Engine) claim(ctx context.Context, name string, size int64) (*claimed, error) {
	f, err := e.pool.openFile(name, os.O_RDWR, size)
	if err != nil {
		return nil, err
	}
	c := &claimed{File: f}
	if err := c.lock(ctx, name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if c.use, err = useOf(ctx, f); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

func (c *claimed) lock(ctx context.Context, name string) error {
	bounded, cancel := context.WithTimeout(ctx, claimWait)
	defer cancel()
	err := flock.Lock(bounded, c.File)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return errs.Errorf(errs.Busy, "%s is being attached or copied by another process; try again", name)
	}
	return err
}

// claimUnused is claim for a file of any size. Precondition: the file is in use.
func (e *Engine) claimUnused(ctx context.Context, name string) (*claimed, error) {
	c, err := e.claim(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	if c.use.inUse() {
		err := errs.Errorf(errs.Precondition, "%s is in use (%s); detach it first", name, c.use)
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// pin writes onto a volume's file, durably, that a copy reads it; from then on
// nobody attaches or removes it, also after a crash.
func (e *Engine) pin(ctx context.Context, source volume.ID, reader string) error {
	return e.changePins(ctx, source, func(readers []string) []string {
		if slices.Contains(readers, reader) {
			return readers
		}
		return append(readers, reader)
	})
}

// unpin takes that back; a file or a pin that is not there is no error.
func (e *Engine) unpin(ctx context.Context, source volume.ID, reader string) error {
	err := e.changePins(ctx, source, func(readers []string) []string {
		return slices.DeleteFunc(readers, func(r string) bool { return r == reader })
	})
	if unusable(err) {
		return nil
	}
	return err
}

func (e *Engine) changePins(ctx context.Context, source volume.ID, change func([]string) []string) error {
	unlock, err := e.locks.Lock(ctx, "pin:"+string(source))
	if err != nil {
		return err
	}
	defer unlock()
	f, err := e.pool.openFile(volumesDir+"/"+string(source), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	readers, err := poolfile.Readers(f)
	if err != nil {
		return err
	}
	if err := poolfile.WriteReaders(f, change(readers)); err != nil {
		return err
	}
	return f.Sync()
}
