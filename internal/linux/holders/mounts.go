package holders

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func (s *search) mountsBelow(target string) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(target))
	if err != nil {
		return
	}
	for _, m := range mounts {
		if m.Mountpoint != target && !s.over() {
			s.add("a mount of %s at %s", m.Source, m.Mountpoint)
		}
	}
}

func (s *search) loopsBelow(target string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil || s.over() {
			continue
		}
		if path := strings.TrimSpace(string(backing)); below(path, target) {
			s.add("loop device %s with its file %s", filepath.Base(filepath.Dir(filepath.Dir(file))), path)
		}
	}
}

// processesBelow finds processes that use the mount at target. Paths are
// compared as text, so only processes in our own mount namespace count.
func (s *search) processesBelow(target string) {
	own, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return
	}
	for _, p := range s.processes() {
		if s.over() {
			return
		}
		if p.namespace() != own {
			continue
		}
		if use := s.useBelow(p, target); use != "" {
			s.add("%v, whose %s", p, use)
		}
	}
}

func (s *search) processesOn(n number) {
	for _, p := range s.processes() {
		if s.over() {
			return
		}
		if use := s.useOn(p, n); use != "" {
			s.add("%v, whose %s", p, use)
		}
	}
}

// useOn compares device numbers: paths depend on the mount namespace.
func (s *search) useOn(p process, n number) string {
	for _, use := range uses {
		if link := filepath.Join(p.dir, use.link); n.has(link) {
			path, _ := os.Readlink(link)
			return use.meaning + " is " + path
		}
	}
	for _, link := range s.files(p) {
		if n.has(link) {
			path, _ := os.Readlink(link)
			return "open file is " + path
		}
	}
	maps, err := os.ReadFile(filepath.Join(p.dir, "maps")) // proc_pid_maps(5)
	s.check(err)
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[3] == fmt.Sprintf("%02x:%02x", n.major, n.minor) {
			return "mapped file is " + fields[5]
		}
	}
	return ""
}

// has follows a link of /proc, which leads to the file itself, and does not
// access the file system.
func (n number) has(link string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	return err == nil && n == number{st.Dev_major, st.Dev_minor}
}

var uses = [...]struct{ link, meaning string }{
	{"cwd", "working directory"}, {"root", "root directory"}, {"exe", "program"},
}

func (s *search) useBelow(p process, target string) string {
	for _, use := range uses {
		if path, err := os.Readlink(filepath.Join(p.dir, use.link)); err == nil && below(path, target) {
			return use.meaning + " is " + path
		}
	}
	for _, link := range s.files(p) {
		if path, err := os.Readlink(link); err == nil && below(path, target) {
			return "open file is " + path
		}
	}
	return ""
}

// below includes dir itself.
func below(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/' || rest == " (deleted)")
}
