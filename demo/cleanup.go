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

// markerName is the file by which a directory of the demo is known.
const markerName = "demo.json"

// writeMarker marks a directory, and whether the demo made it.
func writeMarker(dir string, own bool) error {
	return os.WriteFile(filepath.Join(dir, markerName), fmt.Appendf(nil, `{"own": %t}`, own), 0o600)
}

// remove removes what --keep, or a demo that was killed, left in a directory.
func remove(ctx context.Context, dir string) error {
	dir, err := realPath(dir)
	if err != nil {
		return err
	}
	var m struct{ Own bool }
	text, err := os.ReadFile(filepath.Join(dir, markerName))
	if err != nil {
		return fmt.Errorf("%s is not a directory that the demo left: %w", dir, err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("%s cannot be read: %w", filepath.Join(dir, markerName), err)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanBound)
	defer cancel()
	return removeAll(ctx, dir, m.Own)
}

// clean removes everything; the log may stay.
func (d *demo) clean(ctx context.Context, keepLog bool) error {
	for _, p := range slices.Backward(d.processes) {
		if p.end(unix.SIGTERM) != nil {
			_ = p.end(unix.SIGKILL) // a process that is left is found below
		}
	}
	var keep []string
	if keepLog {
		keep = append(keep, logName)
	}
	return removeAll(ctx, d.dir, d.own, keep...)
}

// removeAll ends the processes of a demo, removes its mounts and loop devices, and
// empties its directory but for some names. It removes the directory too if it
// is the demo's own and empty.
func removeAll(ctx context.Context, dir string, own bool, keep ...string) error {
	if err := endProcesses(ctx, dir); err != nil {
		return err
	}
	if err := sweep(ctx, dir); err != nil {
		return err
	}
	if err := empty(dir, keep...); err != nil || !own || len(keep) > 0 {
		return err
	}
	return os.Remove(dir)
}

// empty removes all files below a directory but for some names.
func empty(dir string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// endProcesses ends the processes of cleat that serve from a directory, also those
// that are no children of this one: by SIGTERM, and by SIGKILL after stopBound.
func endProcesses(ctx context.Context, dir string) error {
	started, signalled := time.Now(), map[int]bool{}
	return retry.For(ctx, 2*stopBound, func() (bool, error) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return false, err
		}
		var left []int
		for _, e := range entries {
			pid, _ := strconv.Atoi(e.Name())
			p, err := os.FindProcess(pid) // before it is looked at: its id may be used again
			if err != nil || pid <= 0 || pid == os.Getpid() {
				continue
			}
			line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
			if strings.HasPrefix(filepath.Base(exe), "cleat") && strings.Contains(string(line), dir+"/") {
				left = append(left, pid)
				if time.Since(started) > stopBound {
					_ = p.Kill()
				} else if !signalled[pid] {
					signalled[pid] = true
					_ = p.Signal(unix.SIGTERM)
					_ = p.Signal(unix.SIGCONT) // a stopped process does not end
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

// thing is a mount, or a loop device on a file.
type thing struct {
	path   string // of the mount, or of the file
	device loop.Device
}

func (t thing) String() string { return strings.TrimSpace(t.device.Path + " " + t.path) }

func below(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// left lists the mounts below a directory and those of loop devices on files there,
// those on top first, and then these devices.
func left(ctx context.Context, dir string) (mounts, loops []thing, err error) {
	devices, err := loop.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range devices {
		if path, _, err := loop.BackingName(d); err == nil && below(path, dir) { // an error: it has just gone
			loops = append(loops, thing{path, d})
		}
	}
	table, err := mount.Table(ctx)
	for _, m := range slices.Backward(table) { // a mount comes after the one below it
		// A volume may be attached elsewhere: as a file system, or as a bound device node.
		ours := slices.ContainsFunc(loops, func(t thing) bool {
			return int(t.device.Major) == m.Major && int(t.device.Minor) == m.Minor || "/"+filepath.Base(t.device.Path) == m.Root
		})
		if ours || below(m.Target, dir) {
			mounts = append(mounts, thing{path: m.Target})
		}
	}
	return mounts, loops, err
}

// sweep unmounts and detaches what is left of a demo. Others may hold a mount for a
// moment, such as a container that starts with a copy of all mounts.
func sweep(ctx context.Context, dir string) error {
	return retry.For(ctx, 10*time.Second, func() (bool, error) {
		mounts, loops, err := left(ctx, dir)
		if err != nil || len(mounts)+len(loops) == 0 {
			return false, err
		}
		err = fmt.Errorf("still there: %v %v", mounts, loops)
		for _, t := range mounts {
			err = errors.Join(err, mount.Unmount(ctx, t.path))
		}
		for _, t := range loops {
			err = errors.Join(err, loop.Detach(ctx, t.device)) // which may have gone
		}
		return true, err
	})
}

// noSockets wants no socket below a directory.
func noSockets(dir string) {
	check(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSocket != 0 {
			err = fmt.Errorf("all processes have ended, and the socket %s is left", path)
		}
		return err
	}))
}
