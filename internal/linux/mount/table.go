package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
)

// Entry is one mount of this process's mount namespace.
type Entry struct {
	ID, Parent   int
	Major, Minor int    // of the file system's device
	Root         string // directory or file of the file system that is shown; "//deleted" behind it when that is gone
	Target       string // absolute, as this process sees it
	FSType       string
	Source       string
	Options      []string // of this mount
	SuperOptions []string // of the file system, for all its mounts
	Shared       bool     // mounts made below it appear in its peers too, such as other containers
}

// ReadOnly reports whether writes through this mount are refused, be it by the
// mount or by the file system.
func (e Entry) ReadOnly() bool {
	return slices.Contains(e.Options, "ro") || slices.Contains(e.SuperOptions, "ro")
}

// IsOf reports whether this is a mount of the file system on a block device,
// which is given by the path of its node and its number. A file system with a
// device number of its own making, as btrfs has it, is recognised by the device
// node that it was mounted from.
func (e Entry) IsOf(path string, major, minor uint32) bool {
	if e.Major != 0 {
		return e.Major == int(major) && e.Minor == int(minor)
	}
	if e.Source == path {
		return true
	}
	if !filepath.IsAbs(e.Source) {
		return false
	}
	maj, min, err := blockdev.Rdev(e.Source)
	return err == nil && maj == major && min == minor
}

// Table returns all mounts that this process can see, hidden ones too.
func Table(ctx context.Context) ([]Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	entries := make([]Entry, len(infos))
	for i, m := range infos {
		entries[i] = Entry{
			ID: m.ID, Parent: m.Parent, Major: m.Major, Minor: m.Minor,
			Root: m.Root, Target: m.Mountpoint, FSType: m.FSType, Source: m.Source,
			Options: strings.Split(m.Options, ","), SuperOptions: strings.Split(m.VFSOptions, ","),
			Shared: slices.ContainsFunc(strings.Fields(m.Optional), func(f string) bool { return strings.HasPrefix(f, "shared:") }),
		}
	}
	return entries, nil
}

// At returns the mount whose root is at target: the topmost, the one that a
// process which goes there sees. False: target is no mount point, or there is
// no such path. The mounted file system itself is not touched, so a dead one
// is answered as well. Symbolic links are followed but for the last element.
func At(ctx context.Context, target string) (Entry, bool, error) {
	path, err := Resolve(target)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, err
	}
	entries, err := Table(ctx)
	if err != nil {
		return Entry{}, false, err
	}
	e, ok := topmost(entries, path)
	return e, ok, nil
}

// Holding returns the mount of a table that a path lies in: the topmost at the
// path itself or at the nearest directory above. The path is absolute and clean,
// and no symbolic link stands in it. It is pure. False: the table has no root.
func Holding(table []Entry, path string) (Entry, bool) {
	e, _ := topmost(table, path)
	return e, e.ID != outside
}

// Resolve gives the name under which the kernel lists a mount at target. It
// follows links in the parent only: the target may be dead.
func Resolve(target string) (string, error) {
	if !filepath.IsAbs(target) {
		return "", errs.Errorf(errs.Invalid, "mount point %q: an absolute path is needed", target)
	}
	target = filepath.Clean(target)
	parent, err := filepath.EvalSymlinks(filepath.Dir(target))
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", target, err)
	}
	return filepath.Join(parent, filepath.Base(target)), nil
}

// place is where a mount sits: on a path within the mount below it.
type place struct {
	parent int
	target string
}

// outside is the mount under the first one, which is not ours to see.
const outside = -1

// topmost walks to a path as the kernel does, from mount to mount, and returns
// the mount that it ends in, and whether it ends at the root of that. The order
// of the table does not tell: a mount may be put beneath another, or be hidden
// by one on a directory above.
func topmost(entries []Entry, path string) (Entry, bool) {
	ids := make(map[int]bool, len(entries))
	for _, e := range entries {
		ids[e.ID] = true
	}
	on := make(map[place]Entry, len(entries))
	for _, e := range entries {
		parent := e.Parent
		if parent == e.ID || !ids[parent] {
			parent = outside
		}
		on[place{parent, e.Target}] = e
	}
	here, found := Entry{ID: outside}, false
	for _, p := range prefixes(path) {
		found = false
		for {
			next, ok := on[place{here.ID, p}]
			if !ok {
				break
			}
			here, found = next, true
		}
	}
	return here, found
}

// prefixes lists / and every directory on the way to a clean absolute path,
// and the path itself.
func prefixes(path string) []string {
	all := []string{"/"}
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			all = append(all, path[:i])
		}
	}
	if path != "/" {
		all = append(all, path)
	}
	return all
}
