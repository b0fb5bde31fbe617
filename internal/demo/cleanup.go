package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// clean stops all processes and takes away all that is still there, whatever
// state the walk is in; the log may stay. It returns what could not be
// taken away, in words.
func (w *walk) clean(ctx context.Context, keepLog bool) []string {
	ctx, cancel := context.WithTimeout(ctx, cleanBound)
	defer cancel()
	if w.client != nil {
		_ = w.client.Close() // it may be closed already
	}
	devices := w.release(ctx)
	if w.dpu != nil && w.dpu.client != nil {
		_ = w.dpu.client.Close()
	}
	for _, p := range w.processes() {
		if p.end(terminate) == nil {
			continue
		}
		if err := p.kill(); err != nil {
			return append(devices, err.Error())
		}
	}
	if err := sweep(ctx, w.dir); err != nil {
		return append(devices, err.Error())
	}
	keep := []string{}
	if keepLog {
		keep = append(keep, logName)
	}
	if err := removeFiles(w.dir, w.own, keep...); err != nil {
		return append(devices, err.Error())
	}
	return devices
}

// thing is a mount or a loop device on something below a directory.
type thing struct {
	path   string // of the mount, or of the file behind the device
	device string // empty for mounts
}

func (t thing) String() string {
	if t.device == "" {
		return "a mount at " + t.path
	}
	return t.device + " on " + t.path
}

// left lists the mounts below dir, and the loop devices on files below dir.
func left(ctx context.Context, dir string) ([]thing, error) {
	var things []thing
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range table {
		if below(m.Target, dir) {
			things = append(things, thing{path: m.Target})
		}
	}
	devices, err := devicesOn(ctx, dir)
	for _, d := range devices {
		path, _, nameErr := loop.BackingName(d)
		if nameErr == nil {
			things = append(things, thing{path: path, device: d.Path})
		}
	}
	return things, err
}

func devicesOn(ctx context.Context, dir string) ([]loop.Device, error) {
	devices, err := loop.List(ctx)
	return slices.DeleteFunc(devices, func(d loop.Device) bool {
		path, _, err := loop.BackingName(d)
		return err != nil || !below(path, dir) // an error: it is gone
	}), err
}

func below(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// sweep unmounts what is mounted below dir or from a file below it, and
// detaches the loop devices on files there. The error names what stays.
func sweep(ctx context.Context, dir string) error {
	return retry.For(ctx, 10*time.Second, func() (bool, error) {
		err := errors.Join(unmountAll(ctx, dir), detachLoops(ctx, dir))
		things, listErr := left(ctx, dir)
		if listErr != nil {
			return false, errors.Join(err, listErr)
		}
		if len(things) > 0 {
			return true, fmt.Errorf("%v is still there: %w", things, err)
		}
		return false, nil
	})
}

func unmountAll(ctx context.Context, dir string) error {
	devices, err := devicesOn(ctx, dir)
	if err != nil {
		return err
	}
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(table) { // a mount stands behind the one it lies on
		ours := slices.ContainsFunc(devices, func(d loop.Device) bool { return int(d.Major) == m.Major && int(d.Minor) == m.Minor })
		if ours || below(m.Target, dir) {
			errs = append(errs, mount.Unmount(ctx, m.Target))
		}
	}
	return errors.Join(errs...)
}

func detachLoops(ctx context.Context, dir string) error {
	devices, err := devicesOn(ctx, dir)
	errs := []error{err}
	for _, d := range devices {
		if err := loop.Detach(ctx, d); err != nil && !errors.Is(err, loop.ErrGone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeFiles empties dir but for some names, and removes it when it is the
// demo's own and empty. Nothing may be mounted below it.
func removeFiles(dir string, own bool, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if slices.Contains(keep, e.Name()) {
			own = false
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if !own {
		return nil
	}
	return os.Remove(dir)
}
