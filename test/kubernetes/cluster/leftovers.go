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

// restoredSysctls lists the sysctls that a kubelet or a runtime changes for the
// whole machine.
var restoredSysctls = []string{
	"kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// machineState is the state of the machine before a cluster, to be restored.
type machineState struct {
	site    *site
	sysctls map[string]string
	made    []string // created directories
	inUse   map[string]*os.File
}

func recordState(s *site) (*machineState, error) {
	b := &machineState{site: s, sysctls: map[string]string{}, inUse: map[string]*os.File{}}
	for _, name := range restoredSysctls {
		text, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		b.sysctls[name] = strings.TrimSpace(string(text))
	}
	for _, dir := range slices.Concat(volatile, hostDirs, slices.Collect(maps.Keys(bindMounts))) {
		if err := b.claim(dir); err != nil {
			return nil, err
		}
	}
	return b, s.makeCgroups()
}

// claim creates a directory if needed and locks it, so that a concurrent
// cluster does not remove it with the mounts on it.
func (b *machineState) claim(dir string) error {
	for {
		if err := b.make(dir); err != nil {
			return err
		}
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the other cluster has just removed it
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

// make creates a directory and its parents, and records the created ones.
func (b *machineState) make(dir string) error {
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
			continue // another cluster created it
		} else if err != nil {
			return err
		}
		b.made = append(b.made, missing)
	}
}

// remove removes a created directory, unless another cluster uses it.
func (b *machineState) remove(dir string) error {
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

// restore restores the state of the machine. Resources that the cluster should
// have released are released, and reported as errors.
func (b *machineState) restore() error {
	var failed []error
	for name, value := range b.sysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			failed = append(failed, fmt.Errorf("restore a sysctl: %w", err))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	loops := b.detachLoops(ctx)
	failed = append(failed, loops, b.site.removeCgroups())
	if loops != nil {
		// A removed file keeps its space while a loop device uses it.
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

func (b *machineState) emptyPools() error {
	pools, err := filepath.Glob(filepath.Join(b.site.Dir, "cleat", "*", "*", "*.img"))
	added, addedErr := filepath.Glob(filepath.Join(b.site.Dir, "node-*", "cleat", "*", "*", "*.img"))
	err = errors.Join(err, addedErr)
	for _, pool := range append(pools, added...) {
		err = errors.Join(err, os.Truncate(pool, 0))
	}
	return err
}

// detachLoops detaches the loop devices of this cluster and reports each as an
// error.
func (b *machineState) detachLoops(ctx context.Context) error {
	ours, err := loopsOf(ctx, b.site.Dir)
	if err != nil {
		return err
	}
	var failed []error
	for _, d := range slices.Backward(ours) {
		name, _, _ := loop.BackingName(d)
		failed = append(failed, fmt.Errorf("left-over loop device %s of %s", d.Path, name), loop.Detach(ctx, d))
	}
	return errors.Join(failed...)
}

// loopsOf returns the loop devices backed by files of this cluster: files below
// dir, files of file systems on such devices, and such devices themselves,
// which the kubelet holds by loop devices of its own. Paths cannot be compared,
// since they differ between namespaces. A device comes after the one it depends
// on.
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
		return nil, fmt.Errorf("find the loop devices of the cluster: %w", err)
	}
	all, err := loop.List(ctx)
	if err != nil {
		return nil, err
	}
	var ours []loop.Device
	within := map[uint64]bool{} // file systems on these devices
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
