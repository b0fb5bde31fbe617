package holders

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
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
	for _, p := range processes() {
		if s.over() {
			return
		}
		if p.namespace() != own {
			continue
		}
		if use := p.useBelow(target); use != "" {
			s.add("%v, whose %s", p, use)
		}
	}
}

func (p process) useBelow(target string) string {
	for _, use := range []struct{ link, meaning string }{
		{"cwd", "working directory"}, {"root", "root directory"}, {"exe", "program"},
	} {
		if path, err := os.Readlink(filepath.Join(p.dir, use.link)); err == nil && below(path, target) {
			return use.meaning + " is " + path
		}
	}
	for _, link := range p.files() {
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
