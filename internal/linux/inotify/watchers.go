package inotify

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process is a process that watches a directory.
type Process struct {
	PID  int
	Name string // comm: at most 15 bytes
}

func (p Process) String() string { return fmt.Sprintf("process %d (%s)", p.PID, p.Name) }

// Watchers lists the other processes that watch a directory by inotify and
// whose name fits. It reads fdinfo in /proc (proc(5)): as root, those of its
// PID namespace and child namespaces.
func Watchers(dir string, fits func(name string) bool) ([]Process, error) {
	inode, err := inodeOf(dir)
	if err != nil {
		return nil, fmt.Errorf("list the inotify watchers of %s: %w", dir, err)
	}
	proc, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the inotify watchers of %s: %w", dir, err)
	}
	var found []Process
	for _, entry := range proc {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p := Process{PID: pid, Name: nameOf(pid)}
		if p.Name != "" && fits(p.Name) && watches(pid, inode) {
			found = append(found, p)
		}
	}
	return found, nil
}

// inodeOf reads fdinfo of an own watch: stat returns other device numbers on
// btrfs and overlayfs.
func inodeOf(dir string) (string, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return "", fmt.Errorf("inotify_init1: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_DELETE_SELF|unix.IN_ONLYDIR); err != nil {
		return "", fmt.Errorf("inotify_add_watch: %w", err)
	}
	inodes := watchedBy(os.Getpid(), strconv.Itoa(fd))
	if len(inodes) != 1 {
		return "", errors.New("/proc/self/fdinfo does not list inotify watches")
	}
	return inodes[0], nil
}

func nameOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

func watches(pid int, inode string) bool {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(fmt.Sprintf("/proc/%d/fd", pid), fd.Name()))
		if err != nil || !strings.HasSuffix(link, "inotify") { // anon_inode:inotify
			continue
		}
		for _, watched := range watchedBy(pid, fd.Name()) {
			if watched == inode {
				return true
			}
		}
	}
	return false
}

func watchedBy(pid int, fd string) []string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd))
	if err != nil {
		return nil
	}
	defer f.Close()
	var inodes []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if inode, ok := parseWatched(lines.Text()); ok {
			inodes = append(inodes, inode)
		}
	}
	return inodes
}

// parseWatched returns "ino:2f sdev:800001" of "inotify wd:1 ino:2f sdev:800001
// mask:400 ignored_mask:0 fhandle-bytes:8 …".
func parseWatched(line string) (string, bool) {
	fields := strings.Fields(line)
	if len(fields) < 4 || fields[0] != "inotify" || !strings.HasPrefix(fields[2], "ino:") || !strings.HasPrefix(fields[3], "sdev:") {
		return "", false
	}
	return fields[2] + " " + fields[3], true
}
