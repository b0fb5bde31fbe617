package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// shows reports whether a mount is of a device's file system.
func shows(e mount.Entry, d Device) bool {
	return !d.IsZero() && e.IsOf(d.Path, d.Major, d.Minor)
}

// isNode reports whether a path is the node of a device.
func isNode(path string, d Device) bool {
	major, minor, err := blockdev.Rdev(path)
	return err == nil && major == d.Major && minor == d.Minor
}

// mountAt returns the mount at a path, if it is of this device. Precondition:
// something else is mounted there.
func mountAt(ctx context.Context, path string, d Device) (mount.Entry, bool, error) {
	e, ok, err := mount.At(ctx, path)
	if err != nil || !ok {
		return e, false, err
	}
	if !shows(e, d) {
		return e, false, foreign(path, e, d)
	}
	return e, true, nil
}

func foreign(path string, e mount.Entry, devices ...Device) error {
	of := "it is not attached"
	if len(devices) > 0 && !devices[0].IsZero() {
		of = "it is attached as " + devices[0].Path
	}
	return errs.Errorf(errs.Precondition, "%s is covered by a mount that is not this volume's (%s from %s; %s); unmount that first", path, e.FSType, e.Source, of)
}

// ignoreForeign: what somebody else mounted at a path is not in the way where the
// volume is taken away.
func ignoreForeign(err error) error {
	if errors.Is(err, errs.Precondition) {
		return nil
	}
	return err
}

// nodeAt reports whether the node of one of the devices is bound at a path.
// Precondition: something else is mounted there.
func nodeAt(ctx context.Context, path string, devices ...Device) (bool, error) {
	e, ok, err := mount.At(ctx, path)
	if err != nil || !ok {
		return false, err
	}
	for _, d := range devices {
		if !d.IsZero() && isNode(path, d) {
			return true, nil
		}
	}
	return false, foreign(path, e, devices...)
}

// mountsOf returns all mounts of a device that this process can see: those of
// its file system, and those of its node.
func mountsOf(ctx context.Context, d Device) ([]mount.Entry, error) {
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	var found []mount.Entry
	for _, e := range table {
		if shows(e, d) || bindsNode(e, d) {
			found = append(found, e)
		}
	}
	return found, nil
}

// bindsNode reports whether a mount is the bind of a device node: it has the
// number of the file system that holds the nodes.
func bindsNode(e mount.Entry, d Device) bool {
	return (e.FSType == "devtmpfs" || e.FSType == "tmpfs") && e.Root != "/" && isNode(e.Target, d)
}

// unmountAll unmounts every mount of a device at a path, and no other.
func unmountAll(ctx context.Context, path string, d Device) error {
	e, ok, err := mountAt(ctx, path, d)
	if err != nil || !ok {
		return err
	}
	if err := alone(ctx, e, func(o mount.Entry) bool { return shows(o, d) }); err != nil {
		return err
	}
	return mount.Unmount(ctx, path)
}

// alone makes sure that all layers of a stack of mounts are ours.
func alone(ctx context.Context, top mount.Entry, ours func(mount.Entry) bool) error {
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	for _, e := range table {
		if e.Target == top.Target && !ours(e) {
			return errs.Errorf(errs.Precondition, "below the volume's mount at %s is a mount that is not this volume's (%s from %s); unmount both by hand", top.Target, e.FSType, e.Source)
		}
	}
	return nil
}

// exclusiveBound is how long the short uses of others are waited for.
const exclusiveBound = 500 * time.Millisecond

// isUnused reports whether nothing uses a device, in any mount namespace.
func isUnused(ctx context.Context, d Device) (bool, error) {
	var f *os.File
	err := retry.For(ctx, exclusiveBound, func() (again bool, err error) {
		f, err = os.OpenFile(d.Path, os.O_RDONLY|oExcl, 0)
		return isBusy(err), err
	})
	if isBusy(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether %s is in use: %w", d.Path, err)
	}
	return true, f.Close()
}
