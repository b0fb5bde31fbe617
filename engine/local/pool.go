package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/reflink"
	"github.com/cleatproject/cleat/internal/poolfile"
)

const (
	identityName  = poolfile.Identity
	storeName     = "engine.db"
	volumesDir    = poolfile.Volumes
	snapshotsDir  = "snapshots"
	incomingDir   = "incoming"
	poolVersion   = 1
	lostAndFound  = "lost+found"
	identityDraft = "." + identityName + ".new"
)

type pool struct {
	path     string // absolute, links resolved
	root     *os.Root
	uuid     string
	identity *os.File // pool.json, locked
	readOnly bool
	reflink  bool
	ownMount bool
	overhead int64 // bytes not of volumes and snapshots
	largest  int64 // maximum size of a file, in bytes
}

func openPool(ctx context.Context, c Config) (*pool, error) {
	path, err := poolPath(c)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "open pool: %w", err)
	}
	p := &pool{path: path, root: root, readOnly: c.ReadOnly, largest: math.MaxInt64}
	if err := p.open(ctx, c); err != nil {
		return nil, errors.Join(fmt.Errorf("pool %s: %w", path, err), p.close())
	}
	return p, nil
}

func (p *pool) open(ctx context.Context, c Config) error {
	st, err := p.statfs()
	if err != nil {
		return err
	}
	p.readOnly = p.readOnly || st.Flags&unix.ST_RDONLY != 0
	expected, err := recordedPool(c.StateDir, p.path)
	if err != nil {
		return err
	}
	if err := p.identify(expected); err != nil {
		return err
	}
	if err := recordPool(c.StateDir, p.path, p.uuid); err != nil {
		return err
	}
	if p.ownMount, err = isOwnMount(ctx, p.path); err != nil {
		return err
	}
	if p.readOnly {
		// A read-only file system cannot be probed.
		p.reflink = st.Type == unix.XFS_SUPER_MAGIC || st.Type == unix.BTRFS_SUPER_MAGIC
		return nil
	}
	return p.prepare()
}

func poolPath(c Config) (string, error) {
	if err := checkPoolNotMissing(c, c.Pool); err != nil {
		return "", fmt.Errorf("pool %s: %w", c.Pool, err)
	}
	if !c.ReadOnly {
		if err := os.MkdirAll(c.Pool, 0o700); err != nil {
			return "", errs.Errorf(errs.Unavailable, "create pool directory: %w", err)
		}
	}
	return realPath(c.Pool)
}

// identify creates pool.json only in an empty directory.
func (p *pool) identify(expected string) error {
	f, err := p.root.Open(identityName)
	if errors.Is(err, fs.ErrNotExist) {
		if err := p.checkCanInitialize(expected); err != nil {
			return err
		}
		if err := p.writeIdentity(); err != nil {
			return err
		}
		f, err = p.root.Open(identityName)
	}
	if err != nil {
		return err
	}
	p.identity = f
	if err := flock.Try(f); err != nil {
		return errs.Errorf(errs.Precondition, "another cleat process serves it (its %s is locked): %w", identityName, err)
	}
	p.uuid, err = readIdentity(f, expected)
	return err
}

// readIdentity returns the UUID in pool.json. If expected is set, another UUID
// is an error.
func readIdentity(r io.Reader, expected string) (string, error) {
	id, err := poolfile.ReadPool(r)
	if err != nil {
		return "", err
	}
	if id.Version != poolVersion {
		return "", errs.Errorf(errs.Precondition, "%s has version %d, but this release supports only %d", identityName, id.Version, poolVersion)
	}
	if u, err := uuid.Parse(id.UUID); err != nil || u.String() != id.UUID {
		return "", errs.Errorf(errs.Precondition, "%s has the uuid %q, which is not a UUID in lower case", identityName, id.UUID)
	}
	if expected != "" && expected != id.UUID {
		return "", errs.Errorf(errs.Precondition, "pool %s is mounted here, but pool %s was served from this path before; mount the right disk, or use a separate state directory for the other pool", id.UUID, expected)
	}
	return id.UUID, nil
}

// checkCanInitialize requires an empty directory, from which no other pool was
// served.
func (p *pool) checkCanInitialize(expected string) error {
	if expected != "" {
		return missingPoolError(expected)
	}
	if p.readOnly {
		return errs.Errorf(errs.Precondition, "%s does not exist, and a pool cannot be created in a read-only directory", identityName)
	}
	entries, err := fs.ReadDir(p.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); name != lostAndFound && name != identityDraft {
			return errs.Errorf(errs.Precondition, "the directory is not a pool (no %s) and not empty (it contains %q); use an empty directory", identityName, name)
		}
	}
	return nil
}

func (p *pool) writeIdentity() error {
	data, err := json.Marshal(poolfile.Pool{Version: poolVersion, UUID: uuid.NewString()})
	if err != nil {
		return err
	}
	f, err := p.root.OpenFile(identityDraft, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(append(data, '\n')))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := p.root.Rename(identityDraft, identityName); err != nil {
		return err
	}
	return p.syncDir(".")
}

func (p *pool) prepare() error {
	for _, dir := range []string{volumesDir, snapshotsDir, incomingDir} {
		if err := p.root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := p.syncDir("."); err != nil {
		return err
	}
	var err error
	if p.reflink, err = reflink.Supported(p.root); err != nil {
		return fmt.Errorf("probe for shared blocks: %w", err)
	}
	return p.probeFile()
}

// probeFile determines the maximum file size and checks for user attributes,
// which store the settings of volumes.
func (p *pool) probeFile() error {
	fd, err := unix.Open(filepath.Join(p.path, incomingDir), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ENOSPC) {
		return nil // a full pool must open, so that volumes can be deleted
	}
	if err != nil {
		return fmt.Errorf("create an unnamed file: %w", err)
	}
	f := os.NewFile(uintptr(fd), incomingDir)
	defer f.Close()
	err = poolfile.WriteSettings(f, poolfile.Settings{Provisioning: thin})
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	if err != nil {
		return errs.Errorf(errs.Precondition, "its file system does not support user extended attributes: %w", err)
	}
	// File systems do not report their limit.
	low, high := int64(granule), int64(math.MaxInt64-granule)
	for low < high {
		middle := low + (high-low+1)/2
		switch err := f.Truncate(middle); {
		case err == nil:
			low = middle
		case errors.Is(err, unix.ENOSPC):
			return nil
		default:
			high = middle - 1
		}
	}
	p.largest = low - low%granule
	return nil
}

func (p *pool) statfs() (unix.Statfs_t, error) {
	var st unix.Statfs_t
	d, err := p.root.Open(".")
	if err != nil {
		return st, err
	}
	defer d.Close()
	if err := unix.Fstatfs(int(d.Fd()), &st); err != nil {
		return st, fmt.Errorf("statfs: %w", err)
	}
	return st, nil
}

func (p *pool) syncDir(name string) error {
	d, err := p.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove is durable; a missing file is no error. A directory with content or a
// mount is foreign: kept, and reported as an orphan.
func (p *pool) remove(dir, name string) error {
	err := p.root.Remove(dir + "/" + name)
	for _, expected := range []error{fs.ErrNotExist, unix.ENOTEMPTY, unix.EBUSY} {
		if errors.Is(err, expected) {
			err = nil
		}
	}
	return errors.Join(err, p.syncDir(dir))
}

func (p *pool) close() error {
	var err error
	if p.identity != nil {
		err = errors.Join(flock.Unlock(p.identity), p.identity.Close())
	}
	return errors.Join(err, p.root.Close())
}

// isOwnMount: the pool is the root of a mount, so all used space is the pool's.
func isOwnMount(ctx context.Context, path string) (bool, error) {
	m, ok, err := mount.At(ctx, path)
	if err != nil {
		return false, err
	}
	return ok && m.Root == "/", nil
}
