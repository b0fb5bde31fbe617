// Package claim ensures that one host registers a directory's plugins: two
// would both call every plugin.
package claim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/inotify"
)

var (
	// ErrHeld: another host holds the claim on the directory.
	ErrHeld = errors.New("another host registers the plugins of this directory")
	// ErrKubelet: a kubelet watches the directory.
	ErrKubelet = errors.New("a kubelet registers the plugins of this directory")
)

// lockName is in the directory, which hosts in different containers share.
// Hosts ignore hidden names and regular files.
const lockName = ".cleat-host.lock"

// Claim is the exclusive right to a directory's plugins.
type Claim struct {
	dir  *os.File
	lock *os.File
}

// Take claims a directory. The error is ErrHeld if another host has it, or
// ErrKubelet if a visible kubelet watches it. besideKubelet skips the latter
// check.
func Take(dir string, besideKubelet bool) (*Claim, error) {
	c, err := take(dir, besideKubelet)
	if err != nil {
		return nil, fmt.Errorf("plugins directory %s: %w", dir, err)
	}
	return c, nil
}

func take(dir string, besideKubelet bool) (*Claim, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	if !besideKubelet {
		if err := checkNoKubelet(dir); err != nil {
			return nil, err
		}
	}
	opened, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	c := &Claim{dir: opened}
	if err := c.acquire(); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return c, nil
}

// makeDir uses the kubelet's mode, and 0755 for parents.
func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Executables are kubelet, MicroK8s' kubelite, and k3s.
func checkNoKubelet(dir string) error {
	found, err := inotify.Watchers(dir, func(name string) bool {
		return slices.ContainsFunc([]string{"kubelet", "kubelite", "k3s"}, func(known string) bool { return strings.HasPrefix(name, known) })
	})
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOSPC) {
		return nil // no inotify instance: the host reports that
	}
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: %v watches it", ErrKubelet, found[0])
	}
	return nil
}

// acquire retries if the last holder removed the file between open and lock.
func (c *Claim) acquire() error {
	for {
		lock, err := c.open()
		if err != nil {
			return err
		}
		err = flock.Try(lock)
		if err == nil && c.isCurrent(lock) {
			c.lock = lock
			return c.writePID()
		}
		holder := readPID(lock)
		_ = lock.Close()
		switch {
		case errors.Is(err, flock.ErrHeld) && holder != "":
			return fmt.Errorf("%w: process %s holds the lock file %s", ErrHeld, holder, lockName)
		case errors.Is(err, flock.ErrHeld):
			return fmt.Errorf("%w: another process holds the lock file %s", ErrHeld, lockName)
		case err != nil:
			return err
		}
	}
}

// open never follows a symbolic link.
func (c *Claim) open() (*os.File, error) {
	path := filepath.Join(c.dir.Name(), lockName)
	fd, err := unix.Openat(int(c.dir.Fd()), lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (c *Claim) isCurrent(lock *os.File) bool {
	var named, open unix.Stat_t
	if unix.Fstatat(int(c.dir.Fd()), lockName, &named, unix.AT_SYMLINK_NOFOLLOW) != nil || unix.Fstat(int(lock.Fd()), &open) != nil {
		return false
	}
	return named.Dev == open.Dev && named.Ino == open.Ino
}

func (c *Claim) writePID() error {
	err := c.lock.Truncate(0)
	if err == nil {
		_, err = c.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return errors.Join(err, c.lock.Close())
	}
	return nil
}

// readPID is for error messages.
func readPID(lock *os.File) string {
	var text [20]byte
	n, _ := lock.ReadAt(text[:], 0)
	pid := strings.TrimSpace(string(text[:n]))
	if _, err := strconv.Atoi(pid); err != nil {
		return ""
	}
	return pid
}

// Release ends the claim, once.
func (c *Claim) Release() error {
	var err error
	if c.isCurrent(c.lock) { // the file is its own
		err = unix.Unlinkat(int(c.dir.Fd()), lockName, 0)
	}
	return errors.Join(err, c.lock.Close(), c.dir.Close())
}
