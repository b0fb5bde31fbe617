package discovery

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/inotify"
)

// locate finds the directory, watches it and looks through it. When there is
// none it notes that as a problem, leaves root nil, and watches for its return.
func (f *Finder) locate() {
	// Each turn looks again after the watches are set; another one is needed
	// only when something changed meanwhile.
	for range 100 {
		real, err := filepath.EvalSymlinks(f.Dir)
		if err != nil {
			f.watchAbove(f.Dir, false)
			if _, still := os.Stat(f.Dir); still != nil {
				f.problem(f.Dir, fmt.Errorf("the directory for sockets of plugins cannot be reached: %w", err))
				return
			}
			continue
		}
		f.watchAbove(real, true)
		watch, err := f.watcher.Add(real, rootMask)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if errors.Is(err, unix.ENOTDIR) {
			err = fmt.Errorf("%s is not a directory: %w", f.Dir, err)
		}
		if err != nil {
			f.problem(f.Dir, err)
			return
		}
		f.real, f.root = real, &dir{watch: watch}
		f.watches[watch] = append(f.watches[watch], f.root)
		if f.same() {
			f.scan(f.root)
			return
		}
		f.lose()
	}
	f.problem(f.Dir, errors.New("the directory for sockets of plugins comes and goes; what is there is looked at later"))
}

// same reports whether the directory at the path is still the one that is
// watched.
func (f *Finder) same() bool {
	real, err := filepath.EvalSymlinks(f.Dir)
	if err != nil || real != f.real {
		return false
	}
	watch, err := f.watcher.Add(real, rootMask)
	if err == nil && f.watches[watch] == nil {
		_ = f.watcher.Remove(watch) // was made by the question
	}
	return err == nil && watch == f.root.watch
}

// lose gives up the whole tree.
func (f *Finder) lose() {
	f.dropAll(f.root)
	f.root = nil
}

// check makes sure that the tree is that of the directory at the path. It
// returns false when it was.
func (f *Finder) check() (changed bool) {
	f.doubtful = false
	if f.root != nil {
		if f.same() {
			return false
		}
		f.Logger.Warn("the directory for sockets of plugins is gone, or another took its place", "directory", f.Dir)
		f.lose()
	}
	f.locate()
	return true
}

// watchAbove watches the directories above a path. While it is there, names
// matter only in the one that holds it, whose busy neighbours cost a little;
// the others may be moved. While it is missing each may be where it returns; they
// are watched from the root of the file system on, so that one which is made
// meanwhile is either there when its turn comes or told by the one above it.
func (f *Finder) watchAbove(path string, present bool) {
	anchors := map[inotify.Watch]string{}
	above := parents(path)
	for i, dir := range above {
		mask, name := uint32(inotify.MoveSelf|inotify.OnlyDir), ""
		if last := i == len(above)-1; last || !present {
			mask, name = mask|treeMask&^inotify.DontFollow, nameBelow(dir, path)
		}
		// Without permission for it, or a watch, the periodic scan has to do.
		if watch, err := f.watcher.Add(dir, mask); err == nil {
			anchors[watch] = name
		}
	}
	for watch := range f.anchors {
		if _, kept := anchors[watch]; !kept && f.watches[watch] == nil {
			_ = f.watcher.Remove(watch)
		}
	}
	f.anchors = anchors
}

// parents are the directories above a path, the root of the file system first.
func parents(path string) (all []string) {
	for path != "/" {
		path = filepath.Dir(path)
		all = append(all, path)
	}
	slices.Reverse(all)
	return all
}

// nameBelow is the first name of a path below a directory above it.
func nameBelow(dir, path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, dir), "/"), "/")
	return name
}
