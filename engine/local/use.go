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

// claimWait limits the wait for a concurrent attach or snapshot of a file.
const claimWait = 3 * time.Second

type use struct {
	devices []loop.Device
	mounts  []mount.Entry // in this mount namespace
}

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

// useOfRemoved returns the devices bound to a file that had this name before it
// was removed or replaced.
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
		// A copy of the pool has files of the same names. An invisible
		// directory can be the pool in another mount namespace.
		if there, err := os.Stat(path.Dir(shown)); err != nil || sameFile(here, there) {
			devices = append(devices, d)
		}
	}
	return useThrough(ctx, devices)
}

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

// mountpoint is "" if not mounted or not accessible here: a mount can be hidden
// below another one or be in another mount namespace.
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

type claimed struct {
	*os.File
	use use // at the time of the claim
}

// release unlocks the file. Unlock is explicit, since a child process can
// briefly hold a copy of the descriptor.
func (c *claimed) release() error {
	return errors.Join(flock.Unlock(c.File), c.Close())
}

// claim opens and locks a file of the pool of at least size bytes. It waits for
// a concurrent attach, which holds the lock for some milliseconds. Busy: the
// lock is held longer.
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
		return errs.Errorf(errs.Busy, "%s is being attached or copied by another process; retry", name)
	}
	return err
}

// claimUnused returns Precondition for a file in use.
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

// pin prevents attach and removal while a copy reads the file, also after a
// crash.
func (e *Engine) pin(ctx context.Context, source volume.ID, reader string) error {
	return e.changePins(ctx, source, func(readers []string) []string {
		if slices.Contains(readers, reader) {
			return readers
		}
		return append(readers, reader)
	})
}

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
	changed := change(slices.Clone(readers))
	if slices.Equal(changed, readers) {
		return nil // a write could need space, also of an equal value
	}
	if err := poolfile.WriteReaders(f, changed); err != nil {
		return err
	}
	return f.Sync()
}
