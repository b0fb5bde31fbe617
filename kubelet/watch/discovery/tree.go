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

type dir struct {
	parent  *dir
	name    string
	rel     string        // from the root, with a trailing slash
	watch   inotify.Watch // 0: not watched
	dropped bool
	dirs    map[string]*dir
	sockets map[string]identity
}

const (
	treeMask = inotify.Create | inotify.Delete | inotify.MovedFrom | inotify.MovedTo | inotify.OnlyDir | inotify.DontFollow
	rootMask = treeMask | inotify.MoveSelf
)

func hidden(name string) bool { return strings.HasPrefix(name, ".") }

// at resolves symbolic links of the root; reported has Options.Dir as given.
func (f *Finder) at(d *dir, name string) string       { return filepath.Join(f.real, d.rel+name) }
func (f *Finder) reported(d *dir, name string) string { return filepath.Join(f.Dir, d.rel+name) }

// look updates a name that is not a directory. What cannot be read stays as it
// was, unless another file has the name.
func (f *Finder) look(d *dir, name string) {
	id, err := identify(f.at(d, name))
	before, known := d.sockets[name]
	unknown := err != nil && !errors.Is(err, errNoSocket) && !isAbsent(err)
	if unknown {
		f.Logger.Debug("reading directory entry failed", "path", f.reported(d, name), "err", err)
	}
	switch {
	case err == nil && known && before == id, unknown && (id.file == inode{} || id.file == before.file):
		return
	case err == nil:
		f.drop(d, name)
		if d.sockets == nil {
			d.sockets = map[string]identity{}
		}
		d.sockets[name] = id
		f.changes = append(f.changes, Change{Path: f.reported(d, name)})
	default:
		f.drop(d, name)
	}
}

// isAbsent: nothing is at a path. Other errors do not show that.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// lookDir watches a directory, and scans it if it is a new one or deep is set.
// inotify has one watch per inode, which identifies the directory.
func (f *Finder) lookDir(d *dir, name string, deep bool) {
	watch, err := f.watcher.Add(f.at(d, name), treeMask)
	if isAbsent(err) {
		f.drop(d, name)
		return
	}
	child := d.dirs[name]
	if child == nil {
		f.drop(d, name) // it was a socket
		child, deep = &dir{parent: d, name: name, rel: d.rel + name + "/"}, true
		if d.dirs == nil {
			d.dirs = map[string]*dir{}
		}
		d.dirs[name] = child
	}
	f.problem(f.reported(child, ""), err)
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

// Another file can already have the removed name, and its event can come first:
// an exchange is two moves.
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

func (f *Finder) drop(d *dir, name string) {
	if _, known := d.sockets[name]; known {
		delete(d.sockets, name)
		f.changes = append(f.changes, Change{Path: f.reported(d, name), Gone: true})
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
	f.forget(f.reported(d, ""))
}

// unwatch keeps a watch that another path shares: a bind mount, or a move with
// pending events.
func (f *Finder) unwatch(d *dir) {
	if d.watch == 0 {
		return
	}
	left := slices.DeleteFunc(slices.Clone(f.watches[d.watch]), func(other *dir) bool { return other == d })
	if f.watches[d.watch] = left; len(left) == 0 {
		delete(f.watches, d.watch)
		if err := f.watcher.Remove(d.watch); err != nil {
			f.Logger.Warn("removing watch failed", "path", f.reported(d, ""), "err", err)
		}
	}
	d.watch = 0
}

// Unreadable entries stay as they were.
func (f *Finder) scan(d *dir) {
	missing, err := f.list(d)
	switch {
	case isAbsent(err):
		if d == f.root {
			f.rootUnconfirmed = true
		}
		return // the parent's event reports the removal
	case err != nil:
		f.problem(f.reported(d, ""), err)
		return
	case d.watch != 0:
		f.problem(f.reported(d, ""), nil)
	}
	for _, name := range missing {
		f.drop(d, name)
	}
}

// list also returns known names that no longer exist.
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
		entries, err := file.ReadDir(1024) // bounded memory
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
			return nil, fmt.Errorf("list %s: %w", f.reported(d, ""), err)
		}
	}
}
