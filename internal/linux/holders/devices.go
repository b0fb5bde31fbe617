package holders

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// devices are a block device and its partitions. The kernel looks for partitions
// on every disk, also on one that a virtual machine divides.
type devices map[number]bool

type number struct{ major, minor uint32 }

func (s *search) devicesOf(major, minor uint32) devices {
	all := devices{{major, minor}: true}
	dir := fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)
	for _, name := range s.names(dir) {
		if _, err := os.Stat(filepath.Join(dir, name, "partition")); err != nil {
			continue
		}
		var n number
		text, err := os.ReadFile(filepath.Join(dir, name, "dev"))
		s.check(err)
		if _, bad := fmt.Sscanf(string(text), "%d:%d", &n.major, &n.minor); err == nil && bad == nil {
			all[n] = true
		}
	}
	return all
}

func (s *search) devicesAbove(of devices) {
	for n := range of {
		for _, name := range s.names(fmt.Sprintf("/sys/dev/block/%d:%d/holders", n.major, n.minor)) {
			if !s.over() {
				s.add("block device %s on top of it", name)
			}
		}
	}
}

// mountsOf searches all mount namespaces: a container can keep a copy of a
// mount that is unmounted here.
func (s *search) mountsOf(of devices) {
	seen := map[string]bool{}
	for _, p := range s.processes() {
		if s.over() {
			return
		}
		namespace := p.namespace()
		if namespace == "" || seen[namespace] {
			continue
		}
		seen[namespace] = true
		for _, target := range s.mountPoints(p, of) {
			s.add("a mount at %s in the mount namespace of %v", target, p)
		}
	}
}

func (s *search) mountPoints(p process, of devices) []string {
	f, err := os.Open(filepath.Join(p.dir, "mountinfo"))
	s.check(err)
	if err != nil {
		return nil
	}
	defer f.Close()
	mounts, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return !of.haveMount(m), false
	})
	s.check(err)
	var targets []string
	for _, m := range mounts {
		targets = append(targets, m.Mountpoint)
	}
	return targets
}

// haveMount finds a file system with an anonymous device number, as btrfs has,
// by its source.
func (d devices) haveMount(m *mountinfo.Info) bool {
	if m.Major == 0 && filepath.IsAbs(m.Source) && d.include(m.Source) {
		return true
	}
	return d[number{uint32(m.Major), uint32(m.Minor)}]
}

func (s *search) processesWith(of devices) {
	for _, p := range s.processes() {
		if s.over() {
			return
		}
		for _, link := range s.files(p) {
			if of.areOpen(link) {
				s.add("%v, which has it open", p)
				break
			}
		}
	}
}

// areOpen skips links without a path.
func (d devices) areOpen(link string) bool {
	path, err := os.Readlink(link)
	return err == nil && strings.HasPrefix(path, "/") && d.include(link)
}

// include uses statx without sync, so that a dead network server cannot block
// it.
func (d devices) include(path string) bool {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return false
	}
	return st.Mode&unix.S_IFMT == unix.S_IFBLK && d[number{st.Rdev_major, st.Rdev_minor}]
}
