package file

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/volume/access"
)

var (
	// The content of a missing pool is unknown.
	errNoPool = errors.New("pool not found")
	// The pool exists, without the file.
	errNoFile = errors.New("file not found in the pool")
	// Something else has the name.
	errForeign = errors.New("not a regular file")
)

// openPool opens the directory if it is the pool with that UUID, for each call:
// a pool can be remounted.
func (a *Attacher) openPool(uuid string) (*os.Root, error) {
	root, err := os.OpenRoot(a.dir)
	if err != nil {
		return nil, errs.Errorf(errs.Precondition, "pool %s is not on this machine: %w: %w", uuid, errNoPool, err)
	}
	have, err := readPoolUUID(root)
	if err == nil && have != uuid {
		err = errors.New("the directory contains pool " + have)
	}
	if err != nil {
		root.Close()
		return nil, errs.Errorf(errs.Precondition, "pool %s is not on this machine: %w at %s: %w", uuid, errNoPool, a.dir, err)
	}
	return root, nil
}

func readPoolUUID(root *os.Root) (string, error) {
	f, err := root.Open(poolfile.Identity)
	if err != nil {
		return "", err
	}
	defer f.Close()
	pool, err := poolfile.ReadPool(f)
	return pool.UUID, err
}

// open opens a locator's file. It must be regular, under that exact name: a
// symbolic link could lead to another volume. Records, snapshots and incomplete
// files cannot be attached.
func (a *Attacher) open(locator access.Access, flags int) (*os.File, error) {
	l, ok := locator.(access.File)
	if !ok {
		return nil, errs.Errorf(errs.Unsupported, "locator of protocol %s cannot be attached as a file", protocolOf(locator))
	}
	if path.Dir(l.Name) != poolfile.Volumes {
		return nil, errs.Errorf(errs.Invalid, "%q in pool %s is not the file of a volume; volumes are named %s/<id>", l.Name, l.Pool, poolfile.Volumes)
	}
	root, err := a.openPool(l.Pool)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat(l.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return nil, errs.Errorf(errs.NotFound, "%w: %s in pool %s at %s", errNoFile, l.Name, l.Pool, a.dir)
	case err != nil:
		return nil, errs.Errorf(errs.Unavailable, "read pool %s: %w", l.Pool, err)
	case !info.Mode().IsRegular():
		return nil, errs.Errorf(errs.Precondition, "%s in pool %s cannot be used: %w (mode %s); restore the file, or delete the volume and restore it from a snapshot or backup", l.Name, l.Pool, errForeign, info.Mode())
	}
	f, err := root.OpenFile(l.Name, flags, 0)
	if errors.Is(err, unix.EROFS) {
		return nil, errs.Errorf(errs.Precondition, "pool %s is on a file system that is mounted read-only; mount it read-write first: %w", l.Pool, err)
	}
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "open %s in pool %s: %w", l.Name, l.Pool, err)
	}
	opened, err := f.Stat()
	if err != nil || !os.SameFile(info, opened) {
		f.Close()
		return nil, errs.Errorf(errs.Busy, "%s in pool %s is being replaced; try again", l.Name, l.Pool)
	}
	return f, nil
}

func protocolOf(a access.Access) string {
	if a == nil {
		return "(none)"
	}
	return a.Protocol()
}
