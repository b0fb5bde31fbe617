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

func isMountOf(e mount.Entry, d Device) bool {
	return !d.IsZero() && e.IsOf(d.Path, d.Major, d.Minor)
}

func isNode(path string, d Device) bool {
	major, minor, err := blockdev.Rdev(path)
	return err == nil && major == d.Major && minor == d.Minor
}

// mountAt returns this device's mount at a path. Precondition: something else
// is mounted.
func mountAt(ctx context.Context, path string, d Device) (mount.Entry, bool, error) {
	e, ok, err := mount.At(ctx, path)
	if err != nil || !ok {
		return e, false, err
	}
	if !isMountOf(e, d) {
		return e, false, foreign(path, e, d)
	}
	return e, true, nil
}

func foreign(path string, e mount.Entry, devices ...Device) error {
	of := "it is not attached"
	if len(devices) > 0 && !devices[0].IsZero() {
		of = "it is attached as " + devices[0].Path
	}
	return errs.Errorf(errs.Precondition, "%s is covered by a mount that does not belong to this volume (%s from %s; %s); unmount it first", path, e.FSType, e.Source, of)
}

// ignoreForeign: a foreign mount does not prevent removing the volume.
func ignoreForeign(err error) error {
	if errors.Is(err, errs.Precondition) {
		return nil
	}
	return err
}

// nodeAt reports whether a path has one of the devices' nodes bound.
// Precondition: something else is mounted.
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

// mountsOf returns a device's mounts in this namespace: its file system's, and
// bind mounts of its node. The attacher's own mount of a directory is not one.
func mountsOf(ctx context.Context, d Device) ([]mount.Entry, error) {
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	var found []mount.Entry
	for _, e := range table {
		own := d.IsDirectory() && isWithin(d.Path, e.Target)
		if isMountOf(e, d) && !own || bindsNode(e, d) {
			found = append(found, e)
		}
	}
	return found, nil
}

// A bind mount of a node has the device number of the file system with the
// node.
func bindsNode(e mount.Entry, d Device) bool {
	return (e.FSType == "devtmpfs" || e.FSType == "tmpfs") && e.Root != "/" && isNode(e.Target, d)
}

// unmountAll leaves other mounts.
func unmountAll(ctx context.Context, path string, d Device) error {
	e, ok, err := mountAt(ctx, path, d)
	if err != nil || !ok {
		return err
	}
	if err := checkOnlyOwn(ctx, e, func(o mount.Entry) bool { return isMountOf(o, d) }); err != nil {
		return err
	}
	return mount.Unmount(ctx, path)
}

func checkOnlyOwn(ctx context.Context, top mount.Entry, ours func(mount.Entry) bool) error {
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	for _, e := range table {
		if e.Target == top.Target && !ours(e) {
			return errs.Errorf(errs.Precondition, "the volume's mount at %s covers a mount that does not belong to this volume (%s from %s); unmount both manually", top.Target, e.FSType, e.Source)
		}
	}
	return nil
}

// exclusiveTimeout waits out other processes' short uses.
const exclusiveTimeout = 500 * time.Millisecond

// isUnused considers all mount namespaces.
func isUnused(ctx context.Context, d Device) (bool, error) {
	var f *os.File
	err := retry.For(ctx, exclusiveTimeout, func() (again bool, err error) {
		f, err = os.OpenFile(d.Path, os.O_RDONLY|oExcl, 0)
		return isBusy(err), err
	})
	if isBusy(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check whether %s is in use: %w", d.Path, err)
	}
	return true, f.Close()
}
