package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Inspect implements node.Attacher.
func (a *Attacher) Inspect(ctx context.Context, t node.Target) (node.Info, error) {
	v, own, err := a.inspectFile(t.Locator)
	if err != nil {
		return v, err
	}
	devices, err := a.devices(ctx, t, own)
	if err != nil || len(devices) == 0 {
		return v, err
	}
	v.Device, v.ReadOnly = described(devices[0]), devices[0].ReadOnly
	if own == nil || devices[0].Backing != *own {
		if v.Presence != node.Unreachable {
			v.Presence = node.Replaced
			v.Problem = fmt.Errorf("%s is bound to a file that was deleted or replaced", devices[0].Path)
		}
	}
	return v, nil
}

// inspectFile describes the file alone, and returns what identifies it; nil when
// it does not exist.
func (a *Attacher) inspectFile(locator access.Access) (node.Info, *loop.Backing, error) {
	if locator == nil {
		return node.Info{Presence: node.Missing, Problem: errNoFile}, nil, nil
	}
	f, err := a.open(locator, os.O_RDONLY)
	switch {
	case errors.Is(err, errNoFile):
		return node.Info{Presence: node.Missing, Problem: err}, nil, nil
	case errors.Is(err, errForeign):
		return node.Info{Presence: node.Foreign, Problem: err}, nil, nil
	case errors.Is(err, errNoPool), errors.Is(err, errs.Unavailable):
		return node.Info{Presence: node.Unreachable, Problem: err}, nil, nil
	case errors.Is(err, errs.Unsupported):
		return node.Info{}, nil, err
	case err != nil:
		return node.Info{Presence: node.Missing, Problem: err}, nil, nil
	}
	defer f.Close()
	// A broken attribute keeps a volume from being attached, and must not keep
	// it from being detached.
	attributes, _ := poolfile.Read(f)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return node.Info{}, nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	own, err := loop.BackingOf(f)
	v := node.Info{Backing: formatBacking(own), Presence: node.Present, Size: st.Size, Allocated: st.Blocks * 512}
	if !attributes.Thick { // a trim would make it thin
		v.TrimInterval = attributes.TrimInterval
	}
	if err := checkSize(f, attributes); err != nil {
		v.Presence, v.Problem = node.Truncated, err
	}
	return v, &own, err
}

// devices returns what a volume is attached as: the loop devices of its file, and
// before them those of the file that it was attached with last, should that have
// been deleted since.
func (a *Attacher) devices(ctx context.Context, t node.Target, own *loop.Backing) ([]loop.Device, error) {
	var all []loop.Device
	if old, ok := parseBacking(t.Device.Backing); ok && (own == nil || old != *own) {
		found, err := loop.Find(ctx, old)
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			// The number of an inode is used again when its file is gone.
			if !a.isAnothers(t.Locator, d) {
				all = append(all, d)
			}
		}
	}
	if own == nil {
		silent, err := a.silent(ctx, t)
		return append(all, silent...), err
	}
	found, err := loop.Find(ctx, *own)
	return append(all, found...), err
}

// silent returns the device of a volume when the file system of its file has shut
// down and answers nothing any more. The path that the kernel remembers is that
// of the volume's file.
func (a *Attacher) silent(ctx context.Context, t node.Target) ([]loop.Device, error) {
	l, ok := t.Locator.(access.File)
	old, known := parseBacking(t.Device.Backing)
	if !ok || !known {
		return nil, nil
	}
	all, err := loop.List(ctx)
	if err != nil {
		return nil, err
	}
	var found []loop.Device
	for _, d := range all {
		if d.Silent != "" && (t.Device.Path == "" || d.Path == t.Device.Path) && path.Base(d.Silent) == path.Base(l.Name) {
			d.Backing = old
			found = append(found, d)
		}
	}
	return found, nil
}

// isAnothers reports whether a device is bound to the file of a volume other
// than the one with this locator.
func (a *Attacher) isAnothers(locator access.Access, d loop.Device) bool {
	shown, deleted, err := loop.BackingName(d)
	if err != nil || deleted {
		return err != nil
	}
	l, ok := locator.(access.File)
	if !ok {
		return true
	}
	name := path.Join(poolfile.Volumes, path.Base(shown))
	if name == l.Name {
		return isBacking(d, func() (*os.File, error) { return os.OpenFile(shown, os.O_RDONLY|unix.O_NONBLOCK, 0) }) && a.isElsewhere(filepath.Dir(shown))
	}
	return isBacking(d, func() (*os.File, error) { return a.open(access.File{Pool: l.Pool, Name: name}, os.O_RDONLY) })
}

// isBacking reports whether a file can be opened and is the one below a device.
func isBacking(d loop.Device, open func() (*os.File, error)) bool {
	f, err := open()
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := loop.BackingOf(f)
	return err != nil || b == d.Backing
}

// isElsewhere reports whether both directories are there, and differ: that of a
// file, and the pool's.
func (a *Attacher) isElsewhere(dir string) bool {
	here, err := os.Stat(filepath.Join(a.dir, poolfile.Volumes))
	if err != nil {
		return false // nobody can tell
	}
	there, err := os.Stat(dir)
	return err == nil && !os.SameFile(here, there)
}

func (a *Attacher) attached(ctx context.Context, t node.Target) ([]loop.Device, error) {
	_, own, err := a.inspectFile(t.Locator)
	if err != nil {
		return nil, err
	}
	return a.devices(ctx, t, own)
}

// Resize implements node.Attacher.
func (a *Attacher) Resize(ctx context.Context, t node.Target) (int64, error) {
	d, err := a.only(ctx, t)
	if err != nil {
		return 0, err
	}
	if err := loop.Resize(ctx, d); err != nil {
		return 0, err
	}
	return loop.Size(ctx, d)
}

// SetReadOnly implements node.Attacher.
func (a *Attacher) SetReadOnly(ctx context.Context, t node.Target, readOnly bool) error {
	d, err := a.only(ctx, t)
	if err != nil {
		return err
	}
	return loop.SetReadOnly(ctx, d, readOnly)
}

func (a *Attacher) only(ctx context.Context, t node.Target) (loop.Device, error) {
	devices, err := a.attached(ctx, t)
	switch {
	case err != nil:
		return loop.Device{}, err
	case len(devices) != 1:
		return loop.Device{}, errs.Errorf(errs.Precondition, "the volume has %d loop devices, exactly one is needed", len(devices))
	}
	return devices[0], nil
}

// Held implements node.Attacher.
func (a *Attacher) Held(ctx context.Context) ([]node.Held, error) {
	root, err := os.OpenRoot(a.dir)
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "there is no pool at %s: %w", a.dir, err)
	}
	defer root.Close()
	uuid, err := readPoolUUID(root)
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "there is no pool at %s: %w", a.dir, err)
	}
	all, err := loop.List(ctx)
	if err != nil {
		return nil, err
	}
	var held []node.Held
	for _, d := range all {
		if h, ok := a.holds(root, uuid, d); ok {
			held = append(held, h)
		}
	}
	return held, nil
}

// holds tells whether a loop device is bound to a file of the pool. The path
// that the kernel shows only says where to look; the inode decides.
func (a *Attacher) holds(root *os.Root, uuid string, d loop.Device) (node.Held, bool) {
	shown, deleted, err := loop.BackingName(d)
	if err != nil || d.Silent != "" { // the pool itself answers
		return node.Held{}, false
	}
	name := path.Join(poolfile.Volumes, path.Base(shown))
	h := node.Held{Volume: volume.ID(path.Base(shown)), Device: described(d)}
	if deleted {
		return h, a.isOurs(filepath.Dir(shown))
	}
	f, err := root.Open(name)
	if err != nil {
		return node.Held{}, false
	}
	defer f.Close()
	if b, err := loop.BackingOf(f); err != nil || b != d.Backing {
		return node.Held{}, false
	}
	h.Locator = access.File{Pool: uuid, Name: name}
	return h, true
}

// isOurs compares the directory of a deleted file with the pool's.
func (a *Attacher) isOurs(dir string) bool {
	here, err := os.Stat(filepath.Join(a.dir, poolfile.Volumes))
	if err != nil {
		return false
	}
	there, err := os.Stat(dir)
	return err == nil && os.SameFile(here, there)
}
