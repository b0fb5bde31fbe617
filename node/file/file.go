// Package file attaches volumes that are files in a local pool directory,
// through loop devices. It needs only the directory and a locator: another
// process can create volumes.
//
// A loop device is identified by its file's device and inode number. A shared
// flock covers the time from resolving the file's name to binding a loop
// device; an engine takes it exclusively to delete or copy the file, and then
// looks for loop devices.
package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

// Attacher attaches the files of a pool directory.
type Attacher struct {
	dir string
	// Devices whose flush error Detach has returned.
	flushFailed sync.Map
}

var (
	_ node.Attacher  = (*Attacher)(nil)
	_ node.Explainer = (*Attacher)(nil)
)

// New returns a pool's attacher. Each call opens the pool, which can be mounted
// later.
func New(dir string) *Attacher { return &Attacher{dir: dir} }

// Protocol returns the protocol of an Attacher's locators.
func Protocol() string { return access.File{}.Protocol() }

// Attach implements node.Attacher.
func (a *Attacher) Attach(ctx context.Context, t node.Target, use node.Use) (*node.Attachment, error) {
	flags := os.O_RDWR
	if use.ReadOnly {
		flags = os.O_RDONLY
	}
	f, err := a.open(t.Locator, flags)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	attributes, err := poolfile.Read(f)
	if err != nil {
		return nil, err
	}
	if len(attributes.Readers) > 0 {
		return nil, errs.Errorf(errs.Busy, "the volume is being copied (%s) and must not change; it can be attached after the copy is complete", strings.Join(attributes.Readers, ", "))
	}
	if err := checkSize(f, attributes); err != nil {
		return nil, err
	}
	unlock, err := lockBinding(ctx, f)
	if err != nil {
		return nil, err
	}
	defer unlock()
	d, device, err := a.bind(ctx, f, use)
	if err != nil {
		return nil, err
	}
	if err := applyAttributes(ctx, d, attributes); err != nil {
		device.Close()
		return nil, err
	}
	size, err := loop.Size(ctx, d)
	if err != nil {
		device.Close()
		return nil, err
	}
	return &node.Attachment{Device: toDevice(d), Size: size, File: device}, nil
}

// bind finds or creates the file's one loop device, adjusted to the use and
// open.
func (a *Attacher) bind(ctx context.Context, f *os.File, use node.Use) (loop.Device, *os.File, error) {
	backing, err := loop.BackingOf(f)
	if err != nil {
		return loop.Device{}, nil, err
	}
	found, err := loop.Find(ctx, backing)
	if err != nil {
		return loop.Device{}, nil, err
	}
	if len(found) > 1 {
		return loop.Device{}, nil, errs.Errorf(errs.Precondition, "%s is attached as %d loop devices (%s, %s, …), which do not see each other's writes; detach all but one with losetup -d", f.Name(), len(found), found[0].Path, found[1].Path)
	}
	if len(found) == 1 {
		d, device, adopted, err := adopt(ctx, found[0], use)
		if err != nil || adopted {
			return d, device, err
		}
	}
	d, device, err := loop.Attach(ctx, loop.Config{File: f, ReadOnly: use.ReadOnly, AutoClear: !use.Block})
	if err != nil {
		return loop.Device{}, nil, fmt.Errorf("attach %s: %w", f.Name(), err)
	}
	return d, device, nil
}

// adopt opens an existing device and adjusts it. A device that cannot be
// adjusted is detached; neither it nor one detached meanwhile is adopted.
func adopt(ctx context.Context, d loop.Device, use node.Use) (loop.Device, *os.File, bool, error) {
	device, err := os.OpenFile(d.Path, os.O_RDONLY, 0)
	switch {
	case errors.Is(err, unix.ENXIO): // the kernel detaches it now
		return loop.Device{}, nil, false, nil
	case err != nil:
		return loop.Device{}, nil, false, fmt.Errorf("adopt %s: %w", d.Path, err)
	}
	now, err := adjust(ctx, d, use)
	switch {
	case errors.Is(err, loop.ErrGone):
		device.Close()
		return loop.Device{}, nil, false, nil
	case err != nil:
		device.Close()
		return loop.Device{}, nil, false, err
	case now.ReadOnly == use.ReadOnly:
		return now, device, true, nil
	}
	device.Close() // keeps it busy
	if err := loop.Detach(ctx, d); err != nil {
		return loop.Device{}, nil, false, fmt.Errorf("the volume is attached as %s with read-only %t, the request needs read-only %t, and the device cannot be recreated: %w", d.Path, now.ReadOnly, use.ReadOnly, err)
	}
	return loop.Device{}, nil, false, nil
}

// adjust changes a bound device's settings, and returns the current ones. A
// device bound read-only stays so; one that SetReadOnly made read-only becomes
// writable.
func adjust(ctx context.Context, d loop.Device, use node.Use) (loop.Device, error) {
	if d.AutoClear == use.Block {
		if err := loop.SetAutoClear(ctx, d, !use.Block); err != nil {
			return d, err
		}
	}
	if d.ReadOnly && !use.ReadOnly {
		if err := loop.SetReadOnly(ctx, d, false); err != nil {
			return d, err
		}
	}
	found, err := loop.Find(ctx, d.Backing)
	if err != nil {
		return d, err
	}
	for _, now := range found {
		if now.Number == d.Number {
			return now, nil
		}
	}
	return d, loop.ErrGone
}

// Detach implements node.Attacher. The kernel drops data that it could not
// write, so retries cannot help: the first call returns the flush error, the
// next detaches.
func (a *Attacher) Detach(ctx context.Context, t node.Target) error {
	devices, err := a.attached(ctx, t)
	if err != nil {
		return err
	}
	for _, d := range devices {
		err := loop.Flush(ctx, d)
		switch {
		case errors.Is(err, unix.EIO), errors.Is(err, unix.ENOSPC):
			if _, returned := a.flushFailed.LoadOrStore(toDevice(d), true); !returned {
				return a.Explain(fmt.Errorf("%w: data that was not written is lost; the next call will detach the device anyway", err))
			}
		case err != nil && !errors.Is(err, loop.ErrGone):
			return err
		}
		if err := loop.Detach(ctx, d); err != nil {
			return err
		}
		a.flushFailed.Delete(toDevice(d))
	}
	return nil
}

// Explain implements node.Explainer.
func (a *Attacher) Explain(err error) error { return poolfile.ExplainFull(a.dir, err) }

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
		return loop.Device{}, errs.Errorf(errs.Precondition, "the volume has %d loop devices instead of one", len(devices))
	}
	return devices[0], nil
}

func toDevice(d loop.Device) node.Device {
	return node.Device{Path: d.Path, Major: d.Major, Minor: d.Minor, Backing: formatBacking(d.Backing)}
}

func formatBacking(b loop.Backing) string { return fmt.Sprintf("%d:%d", b.Dev, b.Inode) }

func parseBacking(s string) (b loop.Backing, ok bool) {
	_, err := fmt.Sscanf(s, "%d:%d", &b.Dev, &b.Inode)
	return b, err == nil
}
