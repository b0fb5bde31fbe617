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

// Entry is one mount of this mount namespace.
type Entry struct {
	ID, Parent   int
	Major, Minor int    // of the file system's device
	Root         string // path in the file system; with suffix "//deleted" if removed
	Target       string // absolute, as seen by this process
	FSType       string
	Source       string
	Options      []string // of this mount
	SuperOptions []string // of the file system
	Shared       bool     // mounts below it propagate, such as to other containers
}

// ReadOnly reports whether the mount or the file system is read-only.
func (e Entry) ReadOnly() bool {
	return slices.Contains(e.Options, "ro") || slices.Contains(e.SuperOptions, "ro")
}

// IsOf reports whether this is a mount of a block device, or of the file system
// with an anonymous device number (major 0). File systems of a block device with
// an anonymous device number, such as btrfs, are recognized by their source.
func (e Entry) IsOf(path string, major, minor uint32) bool {
	if e.Major != 0 || major == 0 {
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

// Table returns all visible mounts, including covered ones.
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

// At returns the topmost mount at target, or false. It does not access the
// mounted file system, which can hang, and does not follow a symbolic link in
// the last element.
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

// Holding returns the mount that contains a path, which must be absolute, clean
// and without symbolic links. False: the table has no root.
func Holding(table []Entry, path string) (Entry, bool) {
	e, _ := topmost(table, path)
	return e, e.ID != outside
}

// Resolve returns the kernel's name of a mount at target. It follows symbolic
// links in the parent only, as the target can hang.
func Resolve(target string) (string, error) {
	if !filepath.IsAbs(target) {
		return "", errs.Errorf(errs.Invalid, "mount point %q: an absolute path is required", target)
	}
	target = filepath.Clean(target)
	parent, err := filepath.EvalSymlinks(filepath.Dir(target))
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", target, err)
	}
	return filepath.Join(parent, filepath.Base(target)), nil
}

// place is a path in a parent mount.
type place struct {
	parent int
	target string
}

const outside = -1

// topmost walks like the kernel from mount to mount, and reports whether the
// path is a root. The table's order is not sufficient: mounts can be inserted
// beneath others, or be covered on a parent directory.
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

// prefixes includes / and the path itself.
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
