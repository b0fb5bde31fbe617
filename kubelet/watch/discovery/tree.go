package discovery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/inotify"
)

// dir is a directory of the tree.
type dir struct {
	parent  *dir
	name    string
	rel     string        // from the root, with a slash behind; empty for it
	watch   inotify.Watch // 0: none
	dropped bool
	dirs    map[string]*dir
	sockets map[string]identity
}

const (
	treeMask = inotify.Create | inotify.Delete | inotify.MovedFrom | inotify.MovedTo | inotify.OnlyDir | inotify.DontFollow
	rootMask = treeMask | inotify.MoveSelf
)

func hidden(name string) bool { return strings.HasPrefix(name, ".") }

// at is where a name of the tree really is, told where it is for others.
func (f *Finder) at(d *dir, name string) string   { return filepath.Join(f.real, d.rel+name) }
func (f *Finder) told(d *dir, name string) string { return filepath.Join(f.Dir, d.rel+name) }

// look finds out what a name stands for now that is no directory.
func (f *Finder) look(d *dir, name string) {
	id, err := identify(f.at(d, name))
	switch before, known := d.sockets[name]; {
	case err == nil && known && before == id:
		return
	case err == nil:
		f.drop(d, name)
		if d.sockets == nil {
			d.sockets = map[string]identity{}
		}
		d.sockets[name] = id
		f.changes = append(f.changes, Change{Path: f.told(d, name)})
	default:
		if !errors.Is(err, errNoSocket) && !errors.Is(err, fs.ErrNotExist) {
			f.Logger.Debug("a name cannot be looked at", "path", f.told(d, name), "error", err)
		}
		f.drop(d, name)
	}
}

// lookDir watches a directory and, when it is another than before or deep is
// set, looks through it. Which one it is shows in its watch: the kernel has one
// for an inode.
func (f *Finder) lookDir(d *dir, name string, deep bool) {
	watch, err := f.watcher.Add(f.at(d, name), treeMask)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		f.drop(d, name)
		return
	}
	child := d.dirs[name]
	if child == nil {
		f.drop(d, name) // a socket
		child, deep = &dir{parent: d, name: name, rel: d.rel + name + "/"}, true
		if d.dirs == nil {
			d.dirs = map[string]*dir{}
		}
		d.dirs[name] = child
	}
	f.problem(f.told(child, ""), err)
	if err == nil && child.watch != watch {
		deep = true
		f.unwatch(child)
		child.watch = watch
		f.watches[watch] = append(f.watches[watch], child)
	}
	if deep {
		f.scan(child)
	}
}

// removed takes note that what had a name has it no longer. Something else may
// have it by now, and its event may have come before: exchanging two names is
// told as one move after the other.
func (f *Finder) removed(d *dir, name string) {
	_, socket := d.sockets[name]
	if !socket && d.dirs[name] == nil {
		return
	}
	f.drop(d, name)
	var st unix.Stat_t
	if err := unix.Lstat(f.at(d, name), &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		f.lookDir(d, name, false)
	} else if err == nil {
		f.look(d, name)
	}
}

// drop takes a name out of the tree, with all that is below it.
func (f *Finder) drop(d *dir, name string) {
	if _, known := d.sockets[name]; known {
		delete(d.sockets, name)
		f.changes = append(f.changes, Change{Path: f.told(d, name), Gone: true})
	}
	if child := d.dirs[name]; child != nil {
		delete(d.dirs, name)
		f.dropAll(child)
	}
}

func (f *Finder) dropAll(d *dir) {
	for _, name := range slices.Sorted(maps.Keys(d.sockets)) {
		f.drop(d, name)
	}
	for _, name := range slices.Sorted(maps.Keys(d.dirs)) {
		f.drop(d, name)
	}
	f.unwatch(d)
	d.dropped = true
	f.forget(f.told(d, ""))
}

// unwatch ends the watch of a directory, unless it is also seen under another
// path: after a move whose events are still to come, or by a bind mount.
func (f *Finder) unwatch(d *dir) {
	if d.watch == 0 {
		return
	}
	left := slices.DeleteFunc(slices.Clone(f.watches[d.watch]), func(other *dir) bool { return other == d })
	if f.watches[d.watch] = left; len(left) == 0 {
		delete(f.watches, d.watch)
		if err := f.watcher.Remove(d.watch); err != nil {
			f.Logger.Warn("a watch is left behind", "directory", f.told(d, ""), "error", err)
		}
	}
	d.watch = 0
}

// scan compares a directory with what is known of it. What it could not read
// stays as it was.
func (f *Finder) scan(d *dir) {
	missing, err := f.list(d)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		if d == f.root {
			f.doubtful = true
		}
		return // its end is told by its parent
	case err != nil:
		f.problem(f.told(d, ""), err)
		return
	case d.watch != 0:
		f.problem(f.told(d, ""), nil)
	}
	for _, name := range missing {
		f.drop(d, name)
	}
}

// list looks at every name in a directory, and returns those that were known
// and are no longer there.
func (f *Finder) list(d *dir) (missing []string, err error) {
	file, err := os.OpenFile(f.at(d, ""), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	left := make(map[string]bool, len(d.sockets)+len(d.dirs))
	for name := range d.sockets {
		left[name] = true
	}
	for name := range d.dirs {
		left[name] = true
	}
	for {
		entries, err := file.ReadDir(1024) // however many files there are
		for _, e := range entries {
			name := e.Name()
			if hidden(name) {
				continue
			}
			delete(left, name)
			switch e.Type() {
			case fs.ModeDir:
				f.lookDir(d, name, true)
			case fs.ModeSocket, fs.ModeSymlink:
				f.look(d, name)
			default:
				f.drop(d, name)
			}
		}
		if errors.Is(err, io.EOF) {
			return slices.Sorted(maps.Keys(left)), nil
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", f.told(d, ""), err)
		}
	}
}
