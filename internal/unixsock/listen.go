// Package unixsock listens on, and connects to, UNIX sockets in the file
// system, by the rules that every server here keeps: a socket is visible only
// when it serves, a live socket of another process is never stolen, nothing is
// left beside it, and on exit only one's own inode is removed.
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
	// ErrLive: another process serves the socket; it is left alone.
	ErrLive = errors.New("a live process serves this socket")
	// ErrTooLong: clients could not connect to a path of that length.
	ErrTooLong = errors.New("the path of the socket is too long")
)

// hidden is what a socket is called until it serves. One name is enough for a
// directory: its lock is held as long as the name is in use.
const hidden = ".cleat.new"

// prepareBound is how long a starter waits for another in the same directory.
const prepareBound = 10 * time.Second

// MaxPath is how many bytes of a path fit sun_path with its closing NUL. No
// client can connect to a longer one without the detour that Dial takes.
const MaxPath = 107

// Address says where a socket is to be and who may use it.
type Address struct {
	Path string // absolute and clean
	// DirMode is for the socket's own directory; zero is 0750. A directory
	// that holds other things keeps its mode and group.
	DirMode fs.FileMode
	// SharedDir is set when the directory is somebody else's, such as the
	// registry of a kubelet: it must be there, and is left as it is.
	SharedDir bool
	// Beside is the name of what else may lie in the socket's own directory.
	Beside string
	// AnyLength admits a path that only Dial can connect to.
	AnyLength bool
	Mode      fs.FileMode // of the socket; zero is 0600
	Group     string      // name or number for both; empty leaves it
}

// Listener is a listening socket. Close takes it out of the file system first.
type Listener struct {
	*net.UnixListener
	path  string
	inode inode
	dir   *os.File // the directory as it was, whatever its path names now

	once   sync.Once
	closed error
}

// Listen makes the directory when it is missing, and the socket. A socket that
// nobody serves is replaced in one step. Errors: ErrLive, ErrTooLong, and what
// the file system says.
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
		return nil, errors.New("this name is used while a socket is made; choose another")
	}
	if len(a.Path) > MaxPath && !a.AnyLength {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are possible", ErrTooLong, len(a.Path), MaxPath)
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
		return nil, errors.Join(fmt.Errorf("%w: even its last element has %d bytes", ErrTooLong, len(base)), dir.Close())
	}
	l, err := listenIn(ctx, dir, a, gid)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return l, nil
}

// listenIn does the work under the lock of the directory. The kernel drops the
// lock when its holder dies, so a hidden socket seen under it is a leftover.
func listenIn(ctx context.Context, dir *os.File, a Address, gid int) (*Listener, error) {
	bound, cancel := context.WithTimeout(ctx, prepareBound)
	defer cancel()
	if err := flock.Lock(bound, dir); err != nil {
		return nil, fmt.Errorf("another process prepares a socket in this directory: %w", err)
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
		return nil, errors.New("there is something that is not a socket; move it away or choose another path")
	default:
		if err := checkDead(ctx, a.Path); err != nil {
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
		return nil, errors.Join(fmt.Errorf("make it visible: %w", err), u.Close(), removeLeftover(dir))
	}
	return &Listener{UnixListener: u, path: a.Path, inode: found.inode, dir: dir}, nil
}

// bind makes a listening socket under the hidden name. Its mode is set on the socket before it has a
// name, so that there is no instant in which others may connect.
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
	u.SetUnlinkOnClose(false) // by inode instead, see Close
	if gid >= 0 {
		err = unix.Fchownat(fd(dir), hidden, -1, gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil { // again, for the bits that the umask took
		err = unix.Fchmodat(fd(dir), hidden, uint32(mode.Perm()), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set mode %o and group: %w", mode.Perm(), err), u.Close())
	}
	return u, nil
}

// Addr returns the path under which clients find the socket.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Path returns the same as a string.
func (l *Listener) Path() string { return l.path }

// Sight is what is found at the path of a Listener.
type Sight string

const (
	Ours     Sight = "ours"     // the socket that Listen made
	Missing  Sight = "missing"  // nothing, or no directory
	Replaced Sight = "replaced" // something else, by somebody else
)

// Look tells what is at the path now. Clients find the socket only while it is
// ours; a Listener that they no longer find has to be closed and made anew.
func (l *Listener) Look() (Sight, error) {
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

// Close removes the socket from the file system when it is still the one that
// Listen made, and stops listening. Every call returns the same.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.closed = errors.Join(l.unlink(), l.UnixListener.Close(), l.dir.Close())
	})
	return l.closed
}

func (l *Listener) unlink() error {
	// The lock keeps a starter from replacing the socket between the look and
	// the removal. Who holds it longer than this is stuck; then rather leave a
	// dead socket, which the next start replaces.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := flock.Lock(ctx, l.dir); err != nil {
		return fmt.Errorf("socket %s is left behind: %w", l.path, err)
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

// short is a path to a name in an open directory that fits sun_path whatever
// the directory's own path is.
func short(dir *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(fd(dir)) + "/" + name
}

func orElse(mode, fallback fs.FileMode) fs.FileMode {
	if mode == 0 {
		return fallback
	}
	return mode
}
