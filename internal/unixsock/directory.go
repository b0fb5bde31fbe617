package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

type syscallConn = syscall.RawConn

type inode struct{ dev, ino uint64 }

type entry struct {
	inode    inode
	isSocket bool
}

func fd(f *os.File) int { return int(f.Fd()) }

func lstat(dir *os.File, name string) (entry, error) {
	return lstatAt(fd(dir), name, filepath.Join(dir.Name(), name))
}

func lookAt(path string) (entry, error) { return lstatAt(unix.AT_FDCWD, path, path) }

func lstatAt(dir int, name, path string) (entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return entry{inode: inode{st.Dev, st.Ino}, isSocket: st.Mode&unix.S_IFMT == unix.S_IFSOCK}, nil
}

// openDir opens the directory, and creates the socket's own if missing. Parents
// get the usual mode, since the own directory restricts access.
func openDir(path string, mode fs.FileMode, own bool) (*os.File, error) {
	if own {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("create the directory: %w", err)
		}
		if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("create the directory: %w", err)
		}
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the directory: %w", err)
	}
	return dir, nil
}

// own sets mode and group of the socket's own directory: owned by this user,
// and with only expected names in it. This also completes a start that crashed
// after mkdir, and leaves directories such as /tmp (sticky, even if empty)
// unchanged.
func own(dir *os.File, its []string, mode fs.FileMode, gid int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd(dir), &st); err != nil {
		return fmt.Errorf("stat the directory: %w", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&unix.S_ISVTX != 0 {
		return nil
	}
	again, err := os.Open(short(dir, ".")) // its read position is separate
	if err != nil {
		return fmt.Errorf("read the directory: %w", err)
	}
	names, err := again.Readdirnames(len(its) + 1)
	_ = again.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the directory: %w", err)
	}
	if slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(its, name) }) {
		return nil
	}
	if gid >= 0 && int(st.Gid) != gid {
		if err := unix.Fchown(fd(dir), -1, gid); err != nil {
			return fmt.Errorf("change the directory's group to %d: %w", gid, err)
		}
	}
	if err := unix.Fchmod(fd(dir), uint32(mode.Perm())); err != nil {
		return fmt.Errorf("set mode %o on the directory: %w", mode.Perm(), err)
	}
	return nil
}

func removeLeftover(dir *os.File) error {
	found, err := lstat(dir, hidden)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !found.isSocket:
		return fmt.Errorf("%s in the same directory is not a socket: remove it", hidden)
	}
	if err := unix.Unlinkat(fd(dir), hidden, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove left-over socket %s: %w", hidden, err)
	}
	return nil
}

// CheckDead fails unless certainly no process serves the socket: with ErrLive if one
// does.
func CheckDead(ctx context.Context, path string) error {
	c, err := dial(ctx, path)
	switch {
	case err == nil:
		defer func() { _ = c.Close() }()
		// The PID is 0 outside this PID namespace.
		if who, err := PeerCredentials(c); err == nil && who.PID > 0 {
			return fmt.Errorf("%w (process %d)", ErrLive, who.PID)
		}
		return ErrLive
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE):
		// A full queue, or a socket of another type.
		return fmt.Errorf("%w (%w)", ErrLive, err)
	default:
		return fmt.Errorf("check whether a process serves it: %w", err)
	}
}

// groupID: "" is -1, unchanged.
func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if id, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(id), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("group %q not found: %w", group, err)
	}
	id, err := strconv.ParseUint(g.Gid, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("group %q has the invalid ID %q: %w", group, g.Gid, err)
	}
	return int(id), nil
}
