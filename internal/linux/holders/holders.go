// Package holders finds the users that keep a mount or a block device busy, for
// error texts. It reads only /proc and /sys, never the file systems in
// question, which can hang. The result can be incomplete or outdated.
package holders

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxHolders = 5
	bound      = 500 * time.Millisecond
)

// OfMount lists the users of a mount in this mount namespace: mounts, loop
// devices and processes below it.
func OfMount(ctx context.Context, target string) string {
	s := newSearch(ctx, bound)
	s.mountsBelow(target)
	s.loopsBelow(target)
	s.processesBelow(target)
	return s.text()
}

// OfDevice lists the users of a block device and its partitions: stacked devices,
// mounts in any namespace, and processes that have it open.
func OfDevice(ctx context.Context, major, minor uint32) string {
	return searchDevice(ctx, bound, major, minor).text()
}

// longBound is for a search whose result decides.
const longBound = 5 * time.Second

// UsersOfDevice is OfDevice with more time, for devices whose kernel driver does
// not refuse to remove those in use. found is also true if the search is not
// complete.
func UsersOfDevice(ctx context.Context, major, minor uint32) (users string, found bool) {
	s := searchDevice(ctx, longBound, major, minor)
	return s.text(), s.hasFound()
}

// UsersOfFileSystem lists the processes in all mount namespaces that use files
// of a file system. found is also true if the search is not complete.
func UsersOfFileSystem(ctx context.Context, major, minor uint32) (users string, found bool) {
	s := newSearch(ctx, longBound)
	s.processesOn(number{major, minor})
	return s.text(), s.hasFound()
}

func searchDevice(ctx context.Context, bound time.Duration, major, minor uint32) *search {
	s := newSearch(ctx, bound)
	of := s.devicesOf(major, minor)
	s.devicesAbove(of)
	s.mountsOf(of)
	s.processesWith(of)
	return s
}

type search struct {
	ctx      context.Context
	deadline time.Time
	found    []string
	late     bool
	failed   error // why something could not be read, although it exists
}

func newSearch(ctx context.Context, bound time.Duration) *search {
	return &search{ctx: ctx, deadline: time.Now().Add(bound)}
}

func (s *search) over() bool {
	if len(s.found) >= maxHolders {
		return true
	}
	s.late = s.late || s.ctx.Err() != nil || time.Now().After(s.deadline)
	return s.late
}

func (s *search) hasFound() bool { return len(s.found) > 0 || s.late || s.failed != nil }

// check notes a lack of descriptors or memory. Other errors are of a process or
// device that is gone, or that this process is not allowed to see.
func (s *search) check(err error) {
	for _, lack := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, lack) {
			s.failed = err
		}
	}
}

func (s *search) add(format string, args ...any) {
	s.found = append(s.found, fmt.Sprintf(format, args...))
}

func (s *search) text() string {
	switch {
	case len(s.found) == 0 && s.failed != nil:
		return fmt.Sprintf("users that could not be looked for (%v)", s.failed)
	case len(s.found) == 0 && s.late:
		return "users that were not found in time"
	case len(s.found) == 0:
		return "no users visible in /proc"
	case s.late:
		return strings.Join(s.found, "; ") + "; possibly more that were not found in time"
	}
	return strings.Join(s.found, "; ")
}

type process struct {
	pid int
	dir string
}

func (s *search) processes() []process {
	var all []process
	for _, name := range s.names("/proc") {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, process{pid, filepath.Join("/proc", name)})
		}
	}
	return all
}

// namespace is empty if the process is gone.
func (p process) namespace() string {
	link, _ := os.Readlink(filepath.Join(p.dir, "ns/mnt"))
	return link
}

func (s *search) files(p process) []string {
	dir := filepath.Join(p.dir, "fd")
	names := s.names(dir)
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names
}

// names lists a directory, as far as it exists.
func (s *search) names(path string) []string {
	dir, err := os.Open(path)
	s.check(err)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	s.check(err)
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
