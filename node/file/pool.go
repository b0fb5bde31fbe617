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
	// errNoPool: the pool is not on this machine. What the pool holds cannot
	// be known then.
	errNoPool = errors.New("the pool is not here")
	// errNoFile: the pool is here, the file is not in it.
	errNoFile = errors.New("no such file in the pool")
	// errForeign: under the file's name is something else.
	errForeign = errors.New("it is not a regular file")
)

// openPool opens the pool directory, if it is the pool of that UUID. It is
// opened for every call: a pool may be mounted, or mounted anew, at any time.
func (a *Attacher) openPool(uuid string) (*os.Root, error) {
	root, err := os.OpenRoot(a.dir)
	if err != nil {
		return nil, errs.Errorf(errs.Precondition, "pool %s is not on this machine: %w: %w", uuid, errNoPool, err)
	}
	have, err := readPoolUUID(root)
	if err == nil && have != uuid {
		err = errors.New("it holds pool " + have)
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

// open opens the file behind a locator. It is a regular file under that very
// name: a symbolic link would let one name lead to another volume. What else
// lies in a pool (records, snapshots, files being made) is nobody's to attach.
func (a *Attacher) open(locator access.Access, flags int) (*os.File, error) {
	l, ok := locator.(access.File)
	if !ok {
		return nil, errs.Errorf(errs.Unsupported, "a locator of protocol %s cannot be attached as a file", protocolOf(locator))
	}
	if path.Dir(l.Name) != poolfile.Volumes {
		return nil, errs.Errorf(errs.Invalid, "%q in pool %s is not the file of a volume: those are %s/<id>", l.Name, l.Pool, poolfile.Volumes)
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
		return nil, errs.Errorf(errs.Unavailable, "pool %s cannot be read: %w", l.Pool, err)
	case !info.Mode().IsRegular():
		return nil, errs.Errorf(errs.Precondition, "%s in pool %s cannot be used: %w (mode %s); put the file back, or delete the volume and restore it from a snapshot or a backup", l.Name, l.Pool, errForeign, info.Mode())
	}
	f, err := root.OpenFile(l.Name, flags, 0)
	if errors.Is(err, unix.EROFS) {
		return nil, errs.Errorf(errs.Precondition, "pool %s is on a file system that is mounted read-only; mount it read-write first: %w", l.Pool, err)
	}
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "%s in pool %s cannot be opened: %w", l.Name, l.Pool, err)
	}
	opened, err := f.Stat()
	if err != nil || !os.SameFile(info, opened) {
		f.Close()
		return nil, errs.Errorf(errs.Busy, "%s in pool %s is being replaced just now", l.Name, l.Pool)
	}
	return f, nil
}

func protocolOf(a access.Access) string {
	if a == nil {
		return "(none)"
	}
	return a.Protocol()
}
