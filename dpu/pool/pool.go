// Package pool resolves locators of kind file. A pool is a directory of this
// machine that its administrator has opened to volumes; a locator names a pool
// and a relative path in it.
package pool

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// Pools are directories by the UUID that locators name.
type Pools map[string]string

// Parse reads flags UUID=directory. The directories need not exist yet.
// Invalid: a malformed UUID, a directory that is not absolute and clean, or one
// directory in two pools.
func Parse(flags map[string]string) (Pools, error) {
	p, uuid := Pools{}, regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	for _, id := range slices.Sorted(maps.Keys(flags)) {
		dir := flags[id]
		switch {
		case !uuid.MatchString(id):
			return nil, errs.Errorf(errs.Invalid, "pool %.64q=%.256q: the pool name must be a lower-case UUID, such as 0198a6b2-7c1e-7b5e-9d0a-0123456789ab", id, dir)
		case !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" || strings.ContainsRune(dir, 0):
			return nil, errs.Errorf(errs.Invalid, "pool %s: directory %.256q must be an absolute path other than /, without . or .. elements or trailing slashes", id, dir)
		}
		for other, taken := range p {
			if taken == dir {
				return nil, errs.Errorf(errs.Invalid, "pools %s and %s have the same directory %s: a directory can belong to one pool only", other, id, dir)
			}
		}
		p[id] = dir
	}
	return p, nil
}

// File returns the absolute path of a regular file or block device in a pool.
// The path is opened later by name, so a process that can write to the pool's
// directories can replace the file after this check; it must be as trusted as
// the one that opens it. Precondition: the pool or file does not exist, its
// path has a symbolic link, or its type is wrong.
func (p Pools) File(f access.File) (string, error) {
	file, path, err := p.open(f, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("%s of pool %s: %w", f.Name, f.Pool, err)
	}
	if m := info.Mode(); !m.IsRegular() && m.Type() != os.ModeDevice {
		return "", errs.Errorf(errs.Precondition, "%s of pool %s (%s) is %s; a block volume needs a regular file or a block device", f.Name, f.Pool, path, kindOf(m))
	}
	return path, nil
}

// Directory returns a handle (O_PATH), which keeps its directory after renames;
// its Name is the path. Precondition: as for File.
func (p Pools) Directory(f access.File) (*os.File, error) {
	dir, path, err := p.open(f, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, errs.Errorf(errs.Precondition, "%s of pool %s (%s): %w; a file system volume needs a directory", f.Name, f.Pool, path, err)
	}
	return dir, err
}

// tries bounds the retries of a lookup that raced with a rename (EAGAIN of
// openat2).
const tries = 32

func (p Pools) open(f access.File, flags uint64) (file *os.File, path string, err error) {
	dir, known := p[f.Pool]
	if !known {
		return nil, "", errs.Errorf(errs.Precondition, "pool %.64q does not exist on this machine; known pools: %q", f.Pool, slices.Sorted(maps.Keys(p)))
	}
	if !isLocal(f.Name) {
		return nil, "", errs.Errorf(errs.Invalid, "%.256q is not a clean path relative to pool %s", f.Name, f.Pool)
	}
	path = filepath.Join(dir, f.Name)
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, path, errs.Errorf(errs.Precondition, "pool %s: %w", f.Pool, &os.PathError{Op: "open", Path: dir, Err: err})
	}
	defer unix.Close(root)
	// With O_NOFOLLOW, a symbolic link as the last element would be opened.
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd := -1
	for range tries {
		fd, err = unix.Openat2(root, f.Name, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, path, errs.Errorf(errs.Precondition, "%s of pool %s: %w%s", f.Name, f.Pool, &os.PathError{Op: "open", Path: path, Err: err}, hint(err))
	}
	return os.NewFile(uintptr(fd), path), path, nil
}

// isLocal accepts the same paths as the decoder of locators, since records can
// be older.
func isLocal(name string) bool {
	return name != "" && name != "." && filepath.IsLocal(name) && filepath.Clean(name) == name && !strings.ContainsRune(name, 0)
}

func hint(err error) string {
	switch {
	case errors.Is(err, unix.ELOOP):
		return ": the path has a symbolic link, which is not followed; use the path of its target"
	case errors.Is(err, unix.EXDEV):
		return ": the path leaves the pool"
	case errors.Is(err, unix.ENOENT):
		return ": it must exist before the device is created"
	}
	return ""
}

func kindOf(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&os.ModeCharDevice != 0:
		return "a character device"
	case m&os.ModeNamedPipe != 0:
		return "a pipe"
	case m&os.ModeSocket != 0:
		return "a socket"
	}
	return "a " + m.Type().String()
}
