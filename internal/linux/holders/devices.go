package holders

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func (s *search) devicesAbove(major, minor uint32) {
	entries, _ := os.ReadDir(fmt.Sprintf("/sys/dev/block/%d:%d/holders", major, minor))
	for _, e := range entries {
		if !s.over() {
			s.add("block device %s on top of it", e.Name())
		}
	}
}

// mountsOf searches all mount namespaces: a container can keep a copy of a
// mount that is unmounted here.
func (s *search) mountsOf(major, minor uint32) {
	seen := map[string]bool{}
	for _, p := range processes() {
		if s.over() {
			return
		}
		namespace := p.namespace()
		if namespace == "" || seen[namespace] {
			continue
		}
		seen[namespace] = true
		for _, target := range p.mountPoints(major, minor) {
			s.add("a mount at %s in the mount namespace of %v", target, p)
		}
	}
}

func (p process) mountPoints(major, minor uint32) []string {
	f, err := os.Open(filepath.Join(p.dir, "mountinfo"))
	if err != nil {
		return nil
	}
	defer f.Close()
	mounts, _ := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return !isMountOf(m, major, minor), false
	})
	var targets []string
	for _, m := range mounts {
		targets = append(targets, m.Mountpoint)
	}
	return targets
}

// isMountOf finds a file system with an anonymous device number, as btrfs has,
// by its source.
func isMountOf(m *mountinfo.Info, major, minor uint32) bool {
	if m.Major == 0 && filepath.IsAbs(m.Source) && isDevice(m.Source, major, minor) {
		return true
	}
	return m.Major == int(major) && m.Minor == int(minor)
}

func (s *search) processesWith(major, minor uint32) {
	for _, p := range processes() {
		if s.over() {
			return
		}
		for _, link := range p.files() {
			if isOpenDevice(link, major, minor) {
				s.add("%v, which has it open", p)
				break
			}
		}
	}
}

// isOpenDevice skips links without a path.
func isOpenDevice(link string, major, minor uint32) bool {
	path, err := os.Readlink(link)
	return err == nil && strings.HasPrefix(path, "/") && isDevice(link, major, minor)
}

// isDevice uses statx without sync, so that a dead network server cannot block
// it.
func isDevice(path string, major, minor uint32) bool {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return false
	}
	return st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev_major == major && st.Rdev_minor == minor
}
