// Package sockfd finds the processes, visible in /proc, that have sockets open.
package sockfd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process is a process at the time of the search.
type Process struct {
	PID  int
	Name string // comm; empty if the process is gone
	FD   string // of a holder: its first descriptor
}

func (p Process) String() string {
	text := fmt.Sprintf("%s (process %d)", p.Name, p.PID)
	switch {
	case p.PID == os.Getpid():
		text = "this process"
	case p.Name == "":
		text = fmt.Sprintf("process %d", p.PID)
	}
	if p.FD != "" {
		text += " as descriptor " + p.FD
	}
	return text
}

// Holders returns the processes that have the wanted inodes open. A socket that
// is passed between processes meanwhile can be missed; one in flight in an
// SCM_RIGHTS message is not found. hidden lists the processes that this one is
// not permitted to inspect (root and CAP_SYS_PTRACE are not always enough);
// they can hold any socket.
func Holders(ctx context.Context, wanted map[uint32]bool) (held map[uint32][]Process, hidden []Process, err error) {
	fds := map[uint32]map[int]string{} // by inode and process
	hidden, err = visit(ctx, func(d descriptor) error {
		if !wanted[d.inode] {
			return nil
		}
		if fds[d.inode] == nil {
			fds[d.inode] = map[int]string{}
		}
		if fds[d.inode][d.pid] == "" {
			fds[d.inode][d.pid] = d.name
		}
		return nil
	})
	names := map[int]string{}
	held = make(map[uint32][]Process, len(fds))
	for inode, of := range fds {
		for _, pid := range slices.Sorted(maps.Keys(of)) {
			if _, known := names[pid]; !known {
				names[pid] = nameOf(pid)
			}
			held[inode] = append(held[inode], Process{pid, names[pid], of[pid]})
		}
	}
	return held, hidden, err
}

func nameOf(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(name))
}

type descriptor struct {
	pid   int
	dir   *os.File
	name  string
	inode uint32
	own   bool // in a thread's own table
}

func visit(ctx context.Context, see func(descriptor) error) (hidden []Process, err error) {
	pids, err := numbers("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return hidden, context.Cause(ctx)
		}
		if err := visitProcess(pid, see); errors.Is(err, os.ErrPermission) {
			hidden = append(hidden, Process{PID: pid, Name: nameOf(pid)})
		} else if err != nil {
			return hidden, fmt.Errorf("list the open files of %v: %w", Process{PID: pid, Name: nameOf(pid)}, err)
		}
	}
	return hidden, nil
}

func visitProcess(pid int, see func(descriptor) error) error {
	dir := fmt.Sprintf("/proc/%d", pid)
	if err := visitTable(pid, dir, false, see); err != nil {
		return err
	}
	threads, err := ownTables(pid, dir)
	if err != nil {
		return err
	}
	for _, thread := range threads {
		if err := visitTable(pid, filepath.Join(dir, "task", strconv.Itoa(thread)), true, see); err != nil {
			return err
		}
	}
	return nil
}

// visitTable visits the sockets of one descriptor table; a missing table is not
// an error.
func visitTable(pid int, of string, own bool, see func(descriptor) error) error {
	dir, err := os.Open(filepath.Join(of, "fd"))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil && !gone(err) {
		return err
	}
	link := make([]byte, 64)
	for _, name := range names {
		n, err := unix.Readlinkat(int(dir.Fd()), name, link)
		if err != nil && !gone(err) {
			return &os.PathError{Op: "readlink", Path: filepath.Join(dir.Name(), name), Err: err}
		}
		if inode, is := socketInode(link[:max(n, 0)]); is {
			if err := see(descriptor{pid: pid, dir: dir, name: name, inode: inode, own: own}); err != nil {
				return err
			}
		}
	}
	return nil
}

func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

// socketInode parses socket:[123], which is never a path: those are absolute.
func socketInode(link []byte) (uint32, bool) {
	text, is := strings.CutPrefix(string(link), "socket:[")
	text, closed := strings.CutSuffix(text, "]")
	if !is || !closed {
		return 0, false
	}
	inode, err := strconv.ParseUint(text, 10, 32)
	return uint32(inode), err == nil
}

// ownTables lists threads that unshared the first thread's table, or whose
// first thread has ended.
func ownTables(pid int, dir string) ([]int, error) {
	threads, err := numbers(filepath.Join(dir, "task"))
	if gone(err) {
		return nil, nil
	}
	return slices.DeleteFunc(threads, func(thread int) bool { return thread == pid || sameTable(pid, thread) }), err
}

// sameTable is also false without CONFIG_KCMP; a shared table is then visited
// more than once.
func sameTable(a, b int) bool {
	const kcmpFiles = 2
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return errno == 0 && order == 0
}

func numbers(path string) ([]int, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found, nil
}
