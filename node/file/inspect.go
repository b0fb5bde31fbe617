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
	info, own, err := a.inspectFile(t.Locator)
	if err != nil {
		return info, err
	}
	devices, err := a.devices(ctx, t, own)
	if err != nil || len(devices) == 0 {
		return info, err
	}
	info.Device, info.ReadOnly = toDevice(devices[0]), devices[0].ReadOnly
	if (own == nil || devices[0].Backing != *own) && info.Presence != node.Unreachable {
		info.Presence = node.Replaced
		info.Problem = fmt.Errorf("%s is bound to a file that was deleted or replaced", devices[0].Path)
	}
	return info, nil
}

// inspectFile describes the file alone; a missing one has no backing.
func (a *Attacher) inspectFile(locator access.Access) (node.Info, *loop.Backing, error) {
	if locator == nil {
		return node.Info{Presence: node.Missing, Problem: errNoFile}, nil, nil
	}
	f, err := a.open(locator, os.O_RDONLY)
	switch {
	case errors.Is(err, errForeign):
		return node.Info{Presence: node.Foreign, Problem: err}, nil, nil
	case errors.Is(err, errNoPool), errors.Is(err, errs.Unavailable):
		return node.Info{Presence: node.Unreachable, Problem: err}, nil, nil
	case errors.Is(err, errs.Unsupported), errors.Is(err, errs.Busy): // of another protocol, or not known
		return node.Info{}, nil, err
	case err != nil:
		return node.Info{Presence: node.Missing, Problem: err}, nil, nil
	}
	defer f.Close()
	// An invalid attribute prevents attaching, but must not prevent detaching.
	attributes, _ := poolfile.Read(f)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return node.Info{}, nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	own := loop.Backing{Dev: uint64(st.Dev), Inode: st.Ino}
	info := node.Info{Backing: formatBacking(own), Presence: node.Present, Size: st.Size, Allocated: st.Blocks * 512}
	if !attributes.Thick { // trimming would make it thin
		info.TrimInterval = attributes.TrimInterval
	}
	if err := checkSize(f, attributes); err != nil {
		info.Presence, info.Problem = node.Truncated, err
	}
	return info, &own, nil
}

// devices returns the loop devices of a deleted file (t.Device), then those of
// the current file.
func (a *Attacher) devices(ctx context.Context, t node.Target, own *loop.Backing) ([]loop.Device, error) {
	var all []loop.Device
	if old, ok := parseBacking(t.Device.Backing); ok && (own == nil || old != *own) {
		found, err := loop.Find(ctx, old)
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			// A deleted file's inode number is reused.
			other, err := a.isOfAnotherVolume(t.Locator, d)
			if err != nil {
				return nil, err
			}
			if !other {
				all = append(all, d)
			}
		}
	}
	if own == nil {
		found, err := a.findUnresponsive(ctx, t)
		return append(all, found...), err
	}
	found, err := loop.Find(ctx, *own)
	return append(all, found...), err
}

// findUnresponsive returns the device of a volume on a file system that has
// shut down, where the kernel cannot identify the file. The file's recorded
// path ends with the volume's name.
func (a *Attacher) findUnresponsive(ctx context.Context, t node.Target) ([]loop.Device, error) {
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

// isOfAnotherVolume: the device is bound to another volume's file. Of a deleted file
// the name and the directory decide, as far as they are known.
func (a *Attacher) isOfAnotherVolume(locator access.Access, d loop.Device) (bool, error) {
	shown, deleted, err := loop.BackingName(d)
	switch {
	case errors.Is(err, loop.ErrGone):
		return true, nil
	case err != nil:
		return false, err
	}
	l, ok := locator.(access.File)
	if !ok {
		return !deleted, nil
	}
	name := path.Join(poolfile.Volumes, path.Base(shown))
	same, known := a.isPool(filepath.Dir(shown))
	switch {
	case name != l.Name && deleted:
		return true, nil
	case name != l.Name:
		return isBacking(d, func() (*os.File, error) { return a.open(access.File{Pool: l.Pool, Name: name}, os.O_RDONLY) })
	case !known || same:
		return false, nil
	case deleted:
		return true, nil
	}
	return isBacking(d, func() (*os.File, error) { return os.OpenFile(shown, os.O_RDONLY|unix.O_NONBLOCK, 0) })
}

// isBacking reports whether a device is bound to a file, which does not have to
// exist. An error says nothing of the file.
func isBacking(d loop.Device, open func() (*os.File, error)) (bool, error) {
	f, err := open()
	for _, reason := range []error{errNoPool, errs.Unavailable, errs.Busy, unix.EMFILE, unix.ENFILE, unix.EIO, unix.EACCES, unix.ENOMEM, unix.ESTALE} {
		if errors.Is(err, reason) {
			return false, fmt.Errorf("of which volume %s is: %w", d.Path, err)
		}
	}
	if err != nil {
		return false, nil
	}
	defer f.Close()
	b, err := loop.BackingOf(f)
	return b == d.Backing, err
}

// Not known while one of the directories does not exist.
func (a *Attacher) isPool(dir string) (same, known bool) {
	here, err := os.Stat(filepath.Join(a.dir, poolfile.Volumes))
	if err != nil {
		return false, false
	}
	there, err := os.Stat(dir)
	return err == nil && os.SameFile(here, there), err == nil
}

func (a *Attacher) attached(ctx context.Context, t node.Target) ([]loop.Device, error) {
	_, own, err := a.inspectFile(t.Locator)
	if err != nil {
		return nil, err
	}
	return a.devices(ctx, t, own)
}

// Held implements node.Attacher.
func (a *Attacher) Held(ctx context.Context) ([]node.Held, error) {
	root, err := os.OpenRoot(a.dir)
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "open the pool at %s: %w", a.dir, err)
	}
	defer root.Close()
	uuid, err := readPoolUUID(root)
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "open the pool at %s: %w", a.dir, err)
	}
	all, err := loop.List(ctx)
	if err != nil {
		return nil, err
	}
	var held []node.Held
	for _, d := range all {
		h, ok, err := a.describe(root, uuid, d)
		if err != nil {
			return nil, err
		}
		if ok {
			held = append(held, h)
		}
	}
	return held, nil
}

// The path that the kernel shows determines the candidate file, the inode
// number decides.
func (a *Attacher) describe(root *os.Root, uuid string, d loop.Device) (node.Held, bool, error) {
	if d.Silent != "" { // files of this pool can be read
		return node.Held{}, false, nil
	}
	shown, deleted, err := loop.BackingName(d)
	if errors.Is(err, loop.ErrGone) {
		return node.Held{}, false, nil
	}
	if err != nil {
		return node.Held{}, false, err
	}
	name := path.Join(poolfile.Volumes, path.Base(shown))
	h := node.Held{Volume: volume.ID(path.Base(shown)), Device: toDevice(d)}
	if deleted {
		same, _ := a.isPool(filepath.Dir(shown))
		return h, same, nil
	}
	h.Locator = access.File{Pool: uuid, Name: name}
	own, err := isBacking(d, func() (*os.File, error) { return root.Open(name) })
	return h, own, err
}
