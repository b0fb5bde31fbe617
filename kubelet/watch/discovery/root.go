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

// locate finds the directory, watches and scans it. If the directory is
// missing, locate records a problem, leaves root nil, and watches for its
// creation.
func (f *Finder) locate() {
	// Check again after setting the watches; more iterations only if something
	// changed.
	for range 100 {
		real, err := filepath.EvalSymlinks(f.Dir)
		if err != nil {
			f.watchAbove(f.Dir, false)
			if _, still := os.Stat(f.Dir); still != nil {
				f.problem(f.Dir, fmt.Errorf("the plugin directory is not accessible: %w", err))
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
		if same, err := f.same(); same || err != nil {
			f.scan(f.root)
			return
		}
		f.lose()
	}
	f.problem(f.Dir, errors.New("the plugin directory is created and removed repeatedly; it is scanned later"))
}

// same reports whether the directory of the tree is still at the path. An error
// does not show that it is not.
func (f *Finder) same() (bool, error) {
	real, err := filepath.EvalSymlinks(f.Dir)
	if err != nil || real != f.real {
		return false, unlessAbsent(err)
	}
	watch, err := f.watcher.Add(real, rootMask)
	if errors.Is(err, inotify.ErrWatches) { // that of the tree exists
		return false, nil
	}
	if err == nil && f.watches[watch] == nil {
		_ = f.watcher.Remove(watch) // just created by Add
	}
	return err == nil && watch == f.root.watch, unlessAbsent(err)
}

func unlessAbsent(err error) error {
	if isAbsent(err) {
		return nil
	}
	return err
}

func (f *Finder) lose() {
	f.dropAll(f.root)
	f.root = nil
}

// check replaces the tree if another directory is at the path. done: the new tree was
// scanned, or cannot be.
func (f *Finder) check() (done bool) {
	f.rootUnconfirmed = false
	if f.root != nil {
		same, err := f.same()
		if err != nil {
			f.problem(f.Dir, fmt.Errorf("the plugin directory is not accessible: %w", err))
			return true
		}
		if same {
			return false
		}
		f.Logger.Warn("plugin directory removed or replaced", "path", f.Dir)
		f.lose()
	}
	f.locate()
	return true
}

// watchAbove watches the parent directories of a path. While the path exists,
// names matter only in its direct parent. While it is missing, parents are
// watched from the root down: a directory created meanwhile is found by its own
// Add or by its parent's watch.
func (f *Finder) watchAbove(path string, present bool) {
	anchors := map[inotify.Watch]string{}
	above := parents(path)
	for i, dir := range above {
		mask, name := uint32(inotify.MoveSelf|inotify.OnlyDir), ""
		if last := i == len(above)-1; last || !present {
			mask, name = mask|treeMask&^inotify.DontFollow, nameBelow(dir, path)
		}
		// Without permission or watches, the periodic scan finds changes.
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

func parents(path string) (all []string) {
	for path != "/" {
		path = filepath.Dir(path)
		all = append(all, path)
	}
	slices.Reverse(all)
	return all
}

func nameBelow(dir, path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, dir), "/"), "/")
	return name
}
