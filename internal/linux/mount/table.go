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
	Root         string // directory or file of the file system that is mounted; with suffix "//deleted" if it was removed
	Target       string // absolute, as seen by this process
	FSType       string
	Source       string
	Options      []string // of this mount
	SuperOptions []string // of the file system, for all its mounts
	Shared       bool     // new mounts below it propagate to its peers, such as other containers
}

// ReadOnly reports whether the mount or the file system is read-only.
func (e Entry) ReadOnly() bool {
	return slices.Contains(e.Options, "ro") || slices.Contains(e.SuperOptions, "ro")
}

// IsOf reports whether this is a mount of the file system on a block device,
// given by its path and number. File systems with an anonymous device number,
// such as btrfs, are recognized by their source device.
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

// Table returns all mounts visible to this process, including mounts covered by
// others.
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

// At returns the topmost mount whose root is at target, or false if target is
// not a mount point or does not exist. It does not access the mounted file
// system, so it works if that hangs. Symbolic links are followed except in the
// last element.
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

// Holding returns the mount of a table that contains a path: the topmost at the
// path or at its nearest parent. The path must be absolute, clean and without
// symbolic links. It is a pure function. False: the table has no root.
func Holding(table []Entry, path string) (Entry, bool) {
	e, _ := topmost(table, path)
	return e, e.ID != outside
}

// Resolve returns the name under which the kernel lists a mount at target. It
// follows symbolic links in the parent only, as the target can hang.
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

// place is the location of a mount: a path in its parent mount.
type place struct {
	parent int
	target string
}

// outside represents the parent of the root mount, which is not visible.
const outside = -1

// topmost walks to a path like the kernel, from mount to mount, and returns the
// last mount, and whether the path is its root. The table's order is not
// sufficient: a mount can be inserted beneath another, or be covered by one on
// a parent directory.
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

// prefixes lists / and all parents of a clean absolute path, and the path
// itself.
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
