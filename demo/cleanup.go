package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// markerName is the file that marks a directory of the demo.
const markerName = "demo.json"

// writeMarker marks dir. own: the demo created dir.
func writeMarker(dir string, own bool) error {
	return os.WriteFile(filepath.Join(dir, markerName), fmt.Appendf(nil, `{"own": %t}`, own), 0o600)
}

// remove removes a directory that --keep or a killed demo left.
func remove(ctx context.Context, dir string) error {
	dir, err := realPath(dir)
	if err != nil {
		return err
	}
	var m struct{ Own bool }
	text, err := os.ReadFile(filepath.Join(dir, markerName))
	if err != nil {
		return fmt.Errorf("%s is not a directory of the demo: %w", dir, err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("parse %s: %w", filepath.Join(dir, markerName), err)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	return removeAll(ctx, dir, m.Own)
}

// clean removes everything; keepLog keeps the log.
func (d *demo) clean(ctx context.Context, keepLog bool) error {
	for _, p := range slices.Backward(d.processes) {
		if p.end(unix.SIGTERM) != nil {
			_ = p.end(unix.SIGKILL) // removeAll kills processes that are left
		}
	}
	var keep []string
	if keepLog {
		keep = append(keep, logName)
	}
	return removeAll(ctx, d.dir, d.own, keep...)
}

// removeAll ends the processes of a demo, removes its mounts and loop devices,
// and empties its directory except for the names in keep. It removes the
// directory if the demo created it and nothing is kept.
func removeAll(ctx context.Context, dir string, own bool, keep ...string) error {
	if err := endProcesses(ctx, dir); err != nil {
		return err
	}
	if err := sweep(ctx, dir); err != nil {
		return err
	}
	if err := removeFiles(dir, keep...); err != nil || !own || len(keep) > 0 {
		return err
	}
	return os.Remove(dir)
}

// removeFiles removes all entries of a directory except for the names in keep.
func removeFiles(dir string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// endProcesses ends all cleat processes that have a path below dir in their
// arguments: SIGTERM, and SIGKILL after stopTimeout.
func endProcesses(ctx context.Context, dir string) error {
	started, signalled := time.Now(), map[int]bool{}
	return retry.For(ctx, 2*stopTimeout, func() (bool, error) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return false, err
		}
		var left []int
		for _, e := range entries {
			pid, _ := strconv.Atoi(e.Name())
			p, err := os.FindProcess(pid) // before reading /proc: the pid can be reused
			if err != nil || pid <= 0 || pid == os.Getpid() {
				continue
			}
			line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
			if strings.HasPrefix(filepath.Base(exe), "cleat") && strings.Contains(string(line), dir+"/") {
				left = append(left, pid)
				if time.Since(started) > stopTimeout {
					_ = p.Kill()
				} else if !signalled[pid] {
					signalled[pid] = true
					_ = p.Signal(unix.SIGTERM)
					_ = p.Signal(unix.SIGCONT) // a stopped process ignores SIGTERM
				}
			}
			_ = p.Release()
		}
		if len(left) == 0 {
			return false, nil
		}
		return true, fmt.Errorf("processes %v still run after SIGTERM and SIGKILL", left)
	})
}

// leftover is a mount, or a loop device backed by a file.
type leftover struct {
	path   string // of the mount, or of the file
	device loop.Device
}

func (t leftover) String() string { return strings.TrimSpace(t.device.Path + " " + t.path) }

func isBelow(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// leftovers lists loop devices backed by files below dir, and the mounts that
// are below dir or show such a device, topmost first.
func leftovers(ctx context.Context, dir string) (mounts, loops []leftover, err error) {
	devices, err := loop.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range devices {
		if path, _, err := loop.BackingName(d); err == nil && isBelow(path, dir) { // an error: the device was detached
			loops = append(loops, leftover{path, d})
		}
	}
	table, err := mount.Table(ctx)
	for _, m := range slices.Backward(table) { // later mounts are on top
		// A volume can be attached elsewhere: as a file system, or as a bound
		// device node.
		isLoop := slices.ContainsFunc(loops, func(t leftover) bool {
			return int(t.device.Major) == m.Major && int(t.device.Minor) == m.Minor || "/"+filepath.Base(t.device.Path) == m.Root
		})
		if isLoop || isBelow(m.Target, dir) {
			mounts = append(mounts, leftover{path: m.Target})
		}
	}
	return mounts, loops, err
}

// sweep unmounts and detaches what is left of a demo. It retries, since a
// container that starts can hold a copy of a mount for a moment.
func sweep(ctx context.Context, dir string) error {
	return retry.For(ctx, 10*time.Second, func() (bool, error) {
		mounts, loops, err := leftovers(ctx, dir)
		if err != nil || len(mounts)+len(loops) == 0 {
			return false, err
		}
		err = fmt.Errorf("mounts %v and loop devices %v are left", mounts, loops)
		for _, t := range mounts {
			err = errors.Join(err, mount.Unmount(ctx, t.path))
		}
		for _, t := range loops {
			err = errors.Join(err, loop.Detach(ctx, t.device)) // can be detached already
		}
		return true, err
	})
}

// checkNoSockets fails if a socket exists below dir.
func checkNoSockets(dir string) {
	check(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSocket != 0 {
			err = fmt.Errorf("socket %s is left after all processes ended", path)
		}
		return err
	}))
}
