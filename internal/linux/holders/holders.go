// Package holders finds out who keeps a mount or a block device from being let
// go, for the text of an error. It looks at /proc and /sys only, never at the
// file systems in question, which may be dead, and gives up soon: what it
// returns may be incomplete or already past.
package holders

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	most  = 5                      // holders named in one text
	bound = 500 * time.Millisecond // spent on a search
)

// OfMount names what holds the mount at a path of this mount namespace: mounts
// and loop devices on it, and processes of the same namespace that have files
// below it open or stand in it.
func OfMount(ctx context.Context, target string) string {
	s := newSearch(ctx)
	s.mountsBelow(target)
	s.loopsBelow(target)
	s.processesBelow(target)
	return s.text()
}

// OfDevice names what holds a block device: devices on top of it, mounts of it
// in any mount namespace, and processes that have it open.
func OfDevice(ctx context.Context, major, minor uint32) string {
	s := newSearch(ctx)
	s.devicesAbove(major, minor)
	s.mountsOf(major, minor)
	s.processesWith(major, minor)
	return s.text()
}

// search collects holders until there are enough or its time is over.
type search struct {
	ctx      context.Context
	deadline time.Time
	found    []string
	late     bool // its time was over before all was looked at
}

func newSearch(ctx context.Context) *search {
	return &search{ctx: ctx, deadline: time.Now().Add(bound)}
}

func (s *search) over() bool {
	if len(s.found) >= most {
		return true
	}
	s.late = s.late || s.ctx.Err() != nil || time.Now().After(s.deadline)
	return s.late
}

func (s *search) add(format string, args ...any) {
	s.found = append(s.found, fmt.Sprintf(format, args...))
}

func (s *search) text() string {
	switch {
	case len(s.found) == 0 && s.late:
		return "something that was not found in time"
	case len(s.found) == 0:
		return "nothing that /proc shows"
	case s.late:
		return strings.Join(s.found, "; ") + "; and maybe more that was not found in time"
	}
	return strings.Join(s.found, "; ")
}

// process is one directory of /proc.
type process struct {
	pid int
	dir string
}

// processes lists those that run now.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var all []process
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, process{pid, filepath.Join("/proc", name)})
		}
	}
	return all
}

// namespace identifies the mount namespace; empty when the process is gone.
func (p process) namespace() string {
	link, _ := os.Readlink(filepath.Join(p.dir, "ns/mnt"))
	return link
}

// files lists the links to the process's open files.
func (p process) files() []string {
	dir, err := os.Open(filepath.Join(p.dir, "fd"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for i, name := range names {
		names[i] = filepath.Join(dir.Name(), name)
	}
	return names
}

func (p process) String() string {
	if p.pid == os.Getpid() {
		return "this process"
	}
	name, err := os.ReadFile(filepath.Join(p.dir, "comm"))
	if err != nil {
		return fmt.Sprintf("process %d", p.pid)
	}
	return fmt.Sprintf("process %d (%s)", p.pid, strings.TrimSpace(string(name)))
}
