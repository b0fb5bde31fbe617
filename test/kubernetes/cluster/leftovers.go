package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
)

// changed are the sysctls that a kubelet or a runtime writes for the whole
// machine.
var changed = []string{
	"kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// before is what the machine was like before a cluster.
type before struct {
	site    *site
	sysctls map[string]string
	made    []string // directories that were not there
	inUse   map[string]*os.File
}

func lookBefore(s *site) (*before, error) {
	b := &before{site: s, sysctls: map[string]string{}, inUse: map[string]*os.File{}}
	for _, name := range changed {
		text, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		b.sysctls[name] = strings.TrimSpace(string(text))
	}
	for _, dir := range slices.Concat(volatile, wanted, slices.Collect(maps.Keys(bound))) {
		if err := b.claim(dir); err != nil {
			return nil, err
		}
	}
	return b, s.makeCgroups()
}

// claim makes a directory if it is not there, and keeps it from being removed
// by another cluster beside this one: what is mounted there would go with it.
func (b *before) claim(dir string) error {
	for {
		if err := b.make(dir); err != nil {
			return err
		}
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the other has just removed it
		}
		if err != nil {
			return err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
			return errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
		}
		locked, err := f.Stat()
		if err != nil {
			return errors.Join(err, f.Close())
		}
		if there, err := os.Stat(dir); err == nil && os.SameFile(locked, there) {
			b.inUse[dir] = f
			return nil
		}
		f.Close()
	}
}

// make makes a directory and those above it, and remembers which.
func (b *before) make(dir string) error {
	for {
		missing := ""
		for at := dir; ; at = filepath.Dir(at) {
			if _, err := os.Stat(at); err == nil {
				break
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			missing = at
		}
		if missing == "" {
			return nil
		}
		if err := os.Mkdir(missing, 0o755); errors.Is(err, fs.ErrExist) {
			continue // another cluster has made it
		} else if err != nil {
			return err
		}
		b.made = append(b.made, missing)
	}
}

// remove removes a directory that was made, unless another cluster uses it.
func (b *before) remove(dir string) error {
	if f := b.inUse[dir]; f != nil {
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return nil
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sweep puts the machine back as it was. What the cluster should have given
// back and has not is given back, and is an error.
func (b *before) sweep() error {
	var failed []error
	for name, value := range b.sysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			failed = append(failed, fmt.Errorf("put back a sysctl: %w", err))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	loops := b.endLoops(ctx)
	failed = append(failed, loops, b.site.removeCgroups())
	if loops != nil {
		// A file that a device still holds keeps its room after it is removed.
		failed = append(failed, b.emptyPools())
	}
	for _, dir := range slices.Backward(b.made) {
		failed = append(failed, b.remove(dir))
	}
	for _, f := range b.inUse {
		failed = append(failed, f.Close())
	}
	failed = append(failed, os.RemoveAll(b.site.Dir))
	return errors.Join(failed...)
}

func (b *before) emptyPools() error {
	pools, err := filepath.Glob(filepath.Join(b.site.Dir, "cleat", "*", "*", "*.img"))
	added, addedErr := filepath.Glob(filepath.Join(b.site.Dir, "node-*", "cleat", "*", "*", "*.img"))
	err = errors.Join(err, addedErr)
	for _, pool := range append(pools, added...) {
		err = errors.Join(err, os.Truncate(pool, 0))
	}
	return err
}

// endLoops detaches the loop devices of this cluster, each of which is an error.
func (b *before) endLoops(ctx context.Context) error {
	ours, err := loopsOf(ctx, b.site.Dir)
	if err != nil {
		return err
	}
	var failed []error
	for _, d := range slices.Backward(ours) {
		name, _, _ := loop.BackingName(d)
		failed = append(failed, fmt.Errorf("loop device %s of %s was left behind", d.Path, name), loop.Detach(ctx, d))
	}
	return errors.Join(failed...)
}

// loopsOf returns loop devices whose files are of this cluster: files below a
// directory, files of file systems on such devices, and such devices
// themselves, which the kubelet holds with loop devices of its own. Paths tell
// nothing, since they read differently in each namespace. A device comes after
// that which it needs.
func loopsOf(ctx context.Context, dir string) ([]loop.Device, error) {
	files := map[loop.Backing]bool{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		file, err := identity(path)
		files[file] = true
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for loop devices of the cluster: %w", err)
	}
	all, err := loop.List(ctx)
	if err != nil {
		return nil, err
	}
	var ours []loop.Device
	within := map[uint64]bool{} // file systems on devices of ours
	for grew := true; grew; {
		grew = false
		for _, d := range all {
			if (files[d.Backing] || within[d.Backing.Dev]) && !slices.Contains(ours, d) {
				ours, grew = append(ours, d), true
				within[unix.Mkdev(d.Major, d.Minor)] = true
				if node, err := identity(d.Path); err == nil {
					files[node] = true
				}
			}
		}
	}
	return ours, nil
}

func identity(path string) (loop.Backing, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return loop.Backing{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return loop.Backing{Dev: stat.Dev, Inode: stat.Ino}, nil
}
