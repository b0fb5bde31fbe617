// Package claim ensures that only one host registers the plugins of a
// directory. Two hosts would both call every plugin and report two results to
// it.
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

// lockName is the lock file in the directory. It is there so that hosts in
// different containers see the same file. Hosts ignore hidden names and regular
// files, so it is never taken for a plugin.
const lockName = ".cleat-host.lock"

// Claim is the exclusive right to register the plugins of a directory.
type Claim struct {
	dir  *os.File
	lock *os.File
}

// Take claims a directory and creates it if missing. The error is ErrHeld if
// another host holds the claim, or ErrKubelet if a kubelet visible to this
// process watches the directory. With besideKubelet set, Take does not look for
// a kubelet.
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

// makeDir creates the directory with the kubelet's mode, and its parents with
// 0755.
func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// checkNoKubelet looks for a kubelet by the names of its executables: kubelet,
// MicroK8s' kubelite, and k3s.
func checkNoKubelet(dir string) error {
	found, err := inotify.Watchers(dir, func(name string) bool {
		return slices.ContainsFunc([]string{"kubelet", "kubelite", "k3s"}, func(known string) bool { return strings.HasPrefix(name, known) })
	})
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOSPC) {
		return nil // no inotify instance left: the host reports that itself, with advice
	}
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: %v watches it", ErrKubelet, found[0])
	}
	return nil
}

// acquire locks the lock file. If its last holder removed the file between open
// and lock, acquire retries with a new one.
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

// open opens the lock file and never follows a symbolic link.
func (c *Claim) open() (*os.File, error) {
	path := filepath.Join(c.dir.Name(), lockName)
	fd, err := unix.Openat(int(c.dir.Fd()), lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// isCurrent reports whether lock is still the file at the lock's path.
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

// readPID returns the PID in the lock file for error messages; empty if the
// file does not contain a number.
func readPID(lock *os.File) string {
	var text [20]byte
	n, _ := lock.ReadAt(text[:], 0)
	pid := strings.TrimSpace(string(text[:n]))
	if _, err := strconv.Atoi(pid); err != nil {
		return ""
	}
	return pid
}

// Release removes the lock file and ends the claim. Call it once.
func (c *Claim) Release() error {
	var err error
	if c.isCurrent(c.lock) { // this process holds the lock, so the file is its own
		err = unix.Unlinkat(int(c.dir.Fd()), lockName, 0)
	}
	return errors.Join(err, c.lock.Close(), c.dir.Close())
}
