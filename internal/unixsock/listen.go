// Package unixsock listens on and connects to UNIX sockets. A socket becomes
// visible only when it serves, a live socket of another process is never
// replaced, no file is left over, and Close removes only the own inode.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/flock"
)

var (
	// ErrLive: another process serves the socket, which is unchanged.
	ErrLive = errors.New("a live process serves this socket")
	// ErrTooLong: clients cannot connect to such a path.
	ErrTooLong = errors.New("the socket path is too long")
)

// hidden is the name of a socket until it serves, used under the directory's
// lock.
const hidden = ".cleat.new"

// prepareBound is the wait for another process in the same directory.
const prepareBound = 10 * time.Second

// MaxPath is the limit of sun_path without its NUL. Clients need Dial for
// longer paths.
const MaxPath = 107

// Address is a socket path with access rights.
type Address struct {
	Path string // absolute and clean
	// DirMode of the socket's own directory, default 0750. A directory with
	// other files keeps mode and group.
	DirMode fs.FileMode
	// SharedDir: the directory belongs to another program, such as a kubelet's
	// registry: it must exist and is not changed.
	SharedDir bool
	// Beside is another name allowed in the socket's own directory.
	Beside string
	// AnyLength allows a path that only Dial can connect to.
	AnyLength bool
	Mode      fs.FileMode // of the socket; default 0600
	Group     string      // of both, by name or number
}

// Listener is a listening socket, removed from the file system first by Close.
type Listener struct {
	*net.UnixListener
	path  string
	inode inode
	dir   *os.File // at the time of Listen

	once   sync.Once
	closed error
}

// Listen creates the socket, and its directory if missing. A stale socket is
// replaced atomically. Errors: ErrLive, ErrTooLong, and those of the file
// system.
func Listen(ctx context.Context, a Address) (*Listener, error) {
	l, err := listen(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", a.Path, err)
	}
	return l, nil
}

func listen(ctx context.Context, a Address) (*Listener, error) {
	if err := checkPath(a.Path); err != nil {
		return nil, err
	}
	if filepath.Base(a.Path) == hidden {
		return nil, errors.New("this name is reserved for sockets in creation: use another name")
	}
	if len(a.Path) > MaxPath && !a.AnyLength {
		return nil, fmt.Errorf("%w: %d bytes, the maximum is %d", ErrTooLong, len(a.Path), MaxPath)
	}
	gid, err := groupID(a.Group)
	if err != nil {
		return nil, err
	}
	dir, err := openDir(filepath.Dir(a.Path), orElse(a.DirMode, 0o750), !a.SharedDir)
	if err != nil {
		return nil, err
	}
	base := filepath.Base(a.Path)
	if detour := len(short(dir, base)); len(a.Path) > MaxPath && detour > MaxPath {
		return nil, errors.Join(fmt.Errorf("%w: its last element has %d bytes", ErrTooLong, len(base)), dir.Close())
	}
	l, err := listenIn(ctx, dir, a, gid)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return l, nil
}

// listenIn holds the directory's lock. The kernel releases it when its holder
// dies, so a hidden socket found under it is left over.
func listenIn(ctx context.Context, dir *os.File, a Address, gid int) (*Listener, error) {
	bound, cancel := context.WithTimeout(ctx, prepareBound)
	defer cancel()
	if err := flock.Lock(bound, dir); err != nil {
		return nil, fmt.Errorf("lock the directory, in which another process creates a socket: %w", err)
	}
	defer func() { _ = flock.Unlock(dir) }()
	base := filepath.Base(a.Path)
	if err := removeLeftover(dir); err != nil {
		return nil, err
	}
	flags := uint(unix.RENAME_NOREPLACE)
	switch found, err := lstat(dir, base); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !found.isSocket:
		return nil, errors.New("the existing file is not a socket: remove it or use another path")
	default:
		if err := CheckDead(ctx, a.Path); err != nil {
			return nil, err
		}
		flags = 0
	}
	if !a.SharedDir {
		if err := own(dir, []string{base, a.Beside}, orElse(a.DirMode, 0o750), gid); err != nil {
			return nil, err
		}
	}
	u, err := bind(ctx, dir, orElse(a.Mode, 0o600), gid)
	if err != nil {
		return nil, errors.Join(err, removeLeftover(dir))
	}
	found, err := lstat(dir, hidden)
	if err == nil {
		err = unix.Renameat2(fd(dir), hidden, fd(dir), base, flags)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rename: %w", err), u.Close(), removeLeftover(dir))
	}
	return &Listener{UnixListener: u, path: a.Path, inode: found.inode, dir: dir}, nil
}

// bind sets the mode before the socket has a name, so that other users cannot
// connect in between.
func bind(ctx context.Context, dir *os.File, mode fs.FileMode, gid int) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscallConn) error {
		var err error
		return errors.Join(c.Control(func(s uintptr) { err = unix.Fchmod(int(s), uint32(mode.Perm())) }), err)
	}}
	listener, err := config.Listen(ctx, "unix", short(dir, hidden))
	if err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	u := listener.(*net.UnixListener)
	u.SetUnlinkOnClose(false) // Close unlinks by inode
	if gid >= 0 {
		err = unix.Fchownat(fd(dir), hidden, -1, gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil { // again: bind applied the umask
		err = unix.Fchmodat(fd(dir), hidden, uint32(mode.Perm()), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set mode %o and group: %w", mode.Perm(), err), u.Close())
	}
	return u, nil
}

// Addr returns the path of the socket.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Path returns the path of the socket.
func (l *Listener) Path() string { return l.path }

// PathState is the state of a Listener's path.
type PathState string

const (
	Ours     PathState = "ours"     // created by Listen
	Missing  PathState = "missing"  // no file or no directory
	Replaced PathState = "replaced" // another file
)

// Look returns the state of the path. If it is not ours, clients do not find
// the socket, and the Listener has to be recreated.
func (l *Listener) Look() (PathState, error) {
	found, err := lookAt(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return Missing, nil
	case err != nil:
		return "", fmt.Errorf("socket %s: %w", l.path, err)
	case found.inode != l.inode:
		return Replaced, nil
	}
	return Ours, nil
}

// Close removes the socket if it is still that of Listen, and stops listening.
// It is idempotent.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.closed = errors.Join(l.unlink(), l.UnixListener.Close(), l.dir.Close())
	})
	return l.closed
}

func (l *Listener) unlink() error {
	// Under the lock no other process replaces the socket between check and
	// removal. If a stuck process holds it, the next start replaces the stale
	// socket.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := flock.Lock(ctx, l.dir); err != nil {
		return fmt.Errorf("socket %s is left over: %w", l.path, err)
	}
	defer func() { _ = flock.Unlock(l.dir) }()
	base := filepath.Base(l.path)
	found, err := lstat(l.dir, base)
	if errors.Is(err, fs.ErrNotExist) || err == nil && found.inode != l.inode {
		return nil
	}
	if err == nil {
		err = unix.Unlinkat(fd(l.dir), base, 0)
	}
	if err != nil {
		return fmt.Errorf("remove socket %s: %w", l.path, err)
	}
	return nil
}

// short returns a path that fits into sun_path, for any directory.
func short(dir *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(fd(dir)) + "/" + name
}

func orElse(mode, fallback fs.FileMode) fs.FileMode {
	if mode == 0 {
		return fallback
	}
	return mode
}
