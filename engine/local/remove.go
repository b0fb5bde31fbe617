package local

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

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/durable"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/holders"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/volume"
)

const (
	removeNamed = 5
	// for the loop device of the image
	detachWait = 5 * time.Second
	// package store creates the records, and their copy, under these names
	recordsDraft  = "." + storeName + ".new"
	recordsBackup = storeName + ".backup"
	backupDraft   = "." + recordsBackup + ".new"
)

type RemoveOptions struct {
	// DeleteVolumes allows Remove to delete volumes and snapshots with their
	// data.
	DeleteVolumes bool
}

type removal struct {
	Config // paths are absolute, that of the pool without links
	RemoveOptions
	image image
}

// Remove deletes a pool: its files by name, but nothing foreign and nothing
// below a mount; then its image, and the directory unless it is a mount point.
// removed is false if no pool exists. A repeat completes an interrupted Remove.
// Precondition: another process serves the pool, a file is in use or foreign,
// volumes or snapshots exist and DeleteVolumes is not set, or the pool served
// from this directory is missing.
func Remove(ctx context.Context, c Config, o RemoveOptions) (removed bool, err error) {
	if c.ImagePath, err = filepath.Abs(c.imagePath()); err != nil {
		return false, err
	}
	if c.Pool, err = realPath(c.Pool); err != nil {
		return false, err
	}
	r := removal{Config: c, RemoveOptions: o}
	if r.image, err = c.image(); err != nil {
		return false, err
	}
	if removed, err = r.run(ctx); err != nil {
		return false, fmt.Errorf("remove pool %s: %w", c.Pool, err)
	}
	return removed, nil
}

func (r removal) run(ctx context.Context) (removed bool, err error) {
	// A starting engine waits for this lock with its image.
	dir, err := os.Open(filepath.Dir(r.image.path))
	if err == nil {
		defer dir.Close()
		if err := flock.Lock(ctx, dir); err != nil {
			return false, err
		}
		defer func() { _ = flock.Unlock(dir) }()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	hasImage, mounted, err := r.mountImage(ctx)
	if err != nil {
		return false, fmt.Errorf("image %s: %w", r.image.path, err)
	}
	if removed, err = r.clear(ctx); err != nil {
		if mounted {
			err = errors.Join(err, UnmountImage(context.WithoutCancel(ctx), r.Config))
		}
		return false, err
	}
	if hasImage {
		if err := r.removeImage(ctx); err != nil {
			return false, fmt.Errorf("image %s: %w", r.image.path, err)
		}
	}
	return removed || hasImage, r.removeDirectory(ctx)
}

func (r removal) mountImage(ctx context.Context) (exists, mountedNow bool, err error) {
	info, err := os.Lstat(r.image.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	if !info.Mode().IsRegular() {
		return false, false, errs.Errorf(errs.Precondition, "it is not a regular file; move it away if it is not the image of this pool")
	}
	f, err := os.OpenFile(r.image.path, os.O_RDWR, 0)
	if err != nil {
		return false, false, err
	}
	defer f.Close()
	mounted, err := r.image.mounted(ctx, f)
	if err != nil || mounted {
		return true, false, err
	}
	if err := errors.Join(r.waitDetached(ctx, f), os.MkdirAll(r.Pool, 0o700)); err != nil {
		return true, false, err
	}
	err = r.image.mount(ctx, f)
	crashpoint.Hit("remove.mounted")
	return true, err == nil, err
}

// clear deletes pool.json last, and the recorded identity just before: a record
// without pool.json always means that the pool's disk is missing.
func (r removal) clear(ctx context.Context) (found bool, err error) {
	expected, err := recordedPool(r.StateDir, r.Pool)
	if err != nil {
		return false, err
	}
	root, err := os.OpenRoot(r.Pool)
	if errors.Is(err, fs.ErrNotExist) && expected == "" {
		return false, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, missingPoolError(expected)
	}
	if err != nil {
		return false, err
	}
	p := &pool{path: r.Pool, root: root, readOnly: true} // do not initialize a pool
	defer func() { err = errors.Join(err, p.close()) }()
	_, err = root.Lstat(identityName)
	found = err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	switch err := r.checkTop(ctx, p, found); {
	case err != nil:
		return found, err
	case !found && expected != "":
		return false, missingPoolError(expected)
	case !found:
		return false, p.removeNames(identityDraft)
	}
	err = p.identify(expected)
	if errors.Is(err, flock.ErrHeld) {
		return true, servedError(ctx, p, err)
	}
	if err == nil {
		err = r.clearPool(ctx, p)
	}
	return true, err
}

// servedError names the volumes to detach before the stop of the driver, which
// would have to be started again for that.
func servedError(ctx context.Context, p *pool, held error) error {
	files, err := p.files()
	var used []string
	if err == nil {
		used, err = p.usedFiles(ctx, files)
	}
	if err != nil || len(used) == 0 { // the driver can change files meanwhile
		return fmt.Errorf("%w; stop the driver first", held)
	}
	return fmt.Errorf("%w; detach the volumes in use first (%d: %s), then stop the driver", held, len(used), firstNames(used))
}

func (r removal) clearPool(ctx context.Context, p *pool) error {
	files, err := p.files()
	if err != nil {
		return err
	}
	used, err := p.usedFiles(ctx, files)
	if err != nil {
		return err
	}
	if len(used) > 0 {
		return errs.Errorf(errs.Precondition, "files of the pool are in use (%d): %s; either start the driver, detach these volumes, and stop it again; or unmount these paths, and free the loop devices with losetup -d", len(used), firstNames(used))
	}
	if len(files) > 0 && !r.DeleteVolumes {
		return errs.Errorf(errs.Precondition, "the pool contains volumes or snapshots (%d: %s), whose data would be lost; delete them, or repeat with --delete-volumes", len(files), firstNames(files))
	}
	if err := p.removeFiles(ctx, files); err != nil {
		return err
	}
	if err := p.removeNames(volumesDir, snapshotsDir, incomingDir); err != nil {
		return err
	}
	crashpoint.Hit("remove.directories")
	if err := p.removeRecords(); err != nil {
		return err
	}
	crashpoint.Hit("remove.records")
	if err := r.forgetPool(p.uuid); err != nil {
		return err
	}
	crashpoint.Hit("remove.forgotten")
	err = p.removeNames(identityDraft, identityName)
	crashpoint.Hit("remove.identity")
	return err
}

func firstNames(names []string) string {
	text := strings.Join(names[:min(len(names), removeNamed)], ", ")
	if len(names) > removeNamed {
		text += ", …"
	}
	return text
}

// checkTop refuses a directory with foreign content.
func (r removal) checkTop(ctx context.Context, p *pool, isPool bool) error {
	_, isMountPoint, err := mount.At(ctx, p.path)
	if err != nil {
		return err
	}
	if p.ownMount, err = isOwnMount(ctx, p.path); err != nil {
		return err
	}
	files, dirs := []string{identityDraft}, []string{}
	if isMountPoint {
		dirs = append(dirs, lostAndFound)
	}
	if isPool {
		files = append(files, identityName)
		dirs = append(dirs, volumesDir, snapshotsDir, incomingDir)
	}
	entries, err := fs.ReadDir(p.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		isOwn := slices.Contains(files, e.Name()) || isPool && isRecords(e.Name())
		if e.Type().IsRegular() && isOwn || e.IsDir() && slices.Contains(dirs, e.Name()) {
			continue
		}
		if !isPool {
			return errs.Errorf(errs.Precondition, "the directory is not a pool (no %s) and not empty (it contains %q); use the directory of a pool", identityName, e.Name())
		}
		return foreign(e.Name())
	}
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	for _, m := range table {
		if strings.HasPrefix(m.Target, p.path+"/") {
			return errs.Errorf(errs.Precondition, "%s is mounted on %s, in the pool; unmount it first", m.Source, m.Target)
		}
	}
	return nil
}

func foreign(name string) error {
	return errs.Errorf(errs.Precondition, "the pool contains %q, which cleat did not create; move it away first", name)
}

// isRecords includes temporary files, and records that Rebuild replaced.
func isRecords(name string) bool {
	own := []string{storeName, recordsDraft, recordsBackup, backupDraft, rebuildDraft, "." + rebuildDraft + ".new"}
	return slices.Contains(own, name) || strings.HasPrefix(name, asidePrefix)
}

func (p *pool) removeRecords() error {
	names, err := p.names(".")
	if err != nil {
		return err
	}
	return p.removeNames(slices.DeleteFunc(names, func(name string) bool { return !isRecords(name) })...)
}

// files includes incomplete volumes and snapshots.
func (p *pool) files() ([]string, error) {
	var files []string
	for _, dir := range []string{volumesDir, snapshotsDir, incomingDir} {
		entries, err := fs.ReadDir(p.root.FS(), dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			name := dir + "/" + e.Name()
			if !e.Type().IsRegular() || volume.CheckID(e.Name()) != nil {
				return nil, foreign(name)
			}
			files = append(files, name)
		}
	}
	return files, nil
}

func (p *pool) removeFiles(ctx context.Context, files []string) error {
	e := &Engine{pool: p}
	for _, name := range files {
		c, err := e.claimUnused(ctx, name)
		if err != nil {
			return err
		}
		if err := errors.Join(p.root.Remove(name), c.release()); err != nil {
			return err
		}
		crashpoint.Hit("remove.file")
	}
	return nil
}

// removeNames deletes files and empty directories durably; missing ones are no
// error.
func (p *pool) removeNames(names ...string) error {
	for _, name := range names {
		if err := p.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return p.syncDir(".")
}

func (r removal) forgetPool(uuid string) error {
	if known, err := recordedPool(r.StateDir, r.Pool); err != nil || known != uuid {
		return err
	}
	return durable.Remove(filepath.Join(r.StateDir, poolRecordName))
}

func (r removal) removeImage(ctx context.Context) error {
	f, err := os.Open(r.image.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := UnmountImage(ctx, r.Config); err != nil {
		return err
	}
	crashpoint.Hit("remove.unmounted")
	if err := r.waitDetached(ctx, f); err != nil {
		return err
	}
	err = durable.Remove(r.image.path)
	crashpoint.Hit("remove.image")
	return err
}

// waitDetached waits until no loop device is bound to the image: after the
// unmount the kernel detaches it once no process has it open.
func (r removal) waitDetached(ctx context.Context, f *os.File) error {
	var u use
	err := retry.For(ctx, detachWait, func() (again bool, err error) {
		if u, err = useOf(ctx, f); err == nil && u.inUse() {
			return true, loop.ErrBusy
		}
		return false, err
	})
	if !errors.Is(err, loop.ErrBusy) {
		return err
	}
	d := u.devices[0]
	return errs.Errorf(errs.Precondition, "it is still in use: %s is held by %s; unmount or close it, then repeat",
		d.Path, holders.OfDevice(ctx, d.Major, d.Minor))
}

// removeDirectory also deletes the temporary file of an interrupted image
// creation.
func (r removal) removeDirectory(ctx context.Context) error {
	if err := durable.Remove(r.image.draft()); err != nil {
		return err
	}
	if _, isMountPoint, err := mount.At(ctx, r.Pool); err != nil || isMountPoint {
		return err
	}
	return durable.Remove(r.Pool)
}
