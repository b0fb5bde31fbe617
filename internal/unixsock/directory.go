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

// lookAt is lstat of a path, whichever directory it leads through now.
func lookAt(path string) (entry, error) { return lstatAt(unix.AT_FDCWD, path, path) }

func lstatAt(dir int, name, path string) (entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return entry{inode: inode{st.Dev, st.Ino}, isSocket: st.Mode&unix.S_IFMT == unix.S_IFSOCK}, nil
}

// openDir opens the directory. One's own is made if need be; those above it get
// the usual mode, since the socket's own directory is what keeps others out.
func openDir(path string, mode fs.FileMode, own bool) (*os.File, error) {
	if own {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("make the directory: %w", err)
		}
		if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make the directory: %w", err)
		}
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the directory: %w", err)
	}
	return dir, nil
}

// own gives the directory the mode and group that were asked for when it is
// the socket's own: ours, and with nothing in it but its names. So a crash
// right after the directory was made is repaired by the next start, and a
// directory such as /tmp (sticky, even when empty) is left alone.
func own(dir *os.File, its []string, mode fs.FileMode, gid int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd(dir), &st); err != nil {
		return fmt.Errorf("stat the directory: %w", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&unix.S_ISVTX != 0 {
		return nil
	}
	again, err := os.Open(short(dir, ".")) // an open of its own for its own position
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
			return fmt.Errorf("give the directory to group %d: %w", gid, err)
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
		return fmt.Errorf("%s beside it is in the way and not a socket; move it away", hidden)
	}
	if err := unix.Unlinkat(fd(dir), hidden, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s, left by a crash: %w", hidden, err)
	}
	return nil
}

// checkDead fails unless it is sure that nobody serves the socket.
func checkDead(ctx context.Context, path string) error {
	c, err := dial(ctx, path)
	switch {
	case err == nil:
		defer func() { _ = c.Close() }()
		// Its number is 0 when it lives in a process namespace out of sight.
		if who, err := PeerCredentials(c); err == nil && who.PID > 0 {
			return fmt.Errorf("%w (process %d)", ErrLive, who.PID)
		}
		return ErrLive
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE):
		// A full queue, or a socket of another type: somebody is there.
		return fmt.Errorf("%w (%w)", ErrLive, err)
	default:
		return fmt.Errorf("it cannot be told whether a process serves it: %w", err)
	}
}

// groupID resolves a name or number; empty is -1, "leave it".
func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if id, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(id), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("group %q is neither a number nor known on this machine: %w", group, err)
	}
	id, err := strconv.ParseUint(g.Gid, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("group %q has the id %q: %w", group, g.Gid, err)
	}
	return int(id), nil
}
