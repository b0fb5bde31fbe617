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

func devicesOf(major, minor uint32) devices {
	all := devices{{major, minor}: true}
	paths, _ := filepath.Glob(fmt.Sprintf("/sys/dev/block/%d:%d/*/partition", major, minor))
	for _, path := range paths {
		var n number
		text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "dev"))
		if _, bad := fmt.Sscanf(string(text), "%d:%d", &n.major, &n.minor); err == nil && bad == nil {
			all[n] = true
		}
	}
	return all
}

func (s *search) devicesAbove(of devices) {
	for n := range of {
		entries, _ := os.ReadDir(fmt.Sprintf("/sys/dev/block/%d:%d/holders", n.major, n.minor))
		for _, e := range entries {
			if !s.over() {
				s.add("block device %s on top of it", e.Name())
			}
		}
	}
}

// mountsOf searches all mount namespaces: a container can keep a copy of a
// mount that is unmounted here.
func (s *search) mountsOf(of devices) {
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
		for _, target := range p.mountPoints(of) {
			s.add("a mount at %s in the mount namespace of %v", target, p)
		}
	}
}

func (p process) mountPoints(of devices) []string {
	f, err := os.Open(filepath.Join(p.dir, "mountinfo"))
	if err != nil {
		return nil
	}
	defer f.Close()
	mounts, _ := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return !of.haveMount(m), false
	})
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
	for _, p := range processes() {
		if s.over() {
			return
		}
		for _, link := range p.files() {
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
