// Package claim sees to it that one host alone registers the plugins of a
// directory. Two would both call every plugin, tell it two results, and each
// think that it is the one that uses it.
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
	// ErrHeld: another host has claimed the directory.
	ErrHeld = errors.New("another host registers the plugins of this directory")
	// ErrKubelet: a kubelet watches the directory.
	ErrKubelet = errors.New("a kubelet registers the plugins of this directory")
)

// lockName lies in the directory, so that hosts in several containers meet at
// it. No host takes a hidden name, or a regular file, for a plugin.
const lockName = ".cleat-host.lock"

// Claim is held on a directory.
type Claim struct {
	dir  *os.File
	lock *os.File
}

// Take claims a directory, which it makes when missing. It fails with ErrHeld,
// and with ErrKubelet when a kubelet that this process can see watches the
// directory now; besideKubelet leaves that out.
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
		if err := noKubelet(dir); err != nil {
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

// makeDir makes it as the kubelet would; those above get the usual mode.
func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// noKubelet looks for one by the names under which it is shipped: on its own,
// and inside MicroK8s and k3s.
func noKubelet(dir string) error {
	found, err := inotify.Watchers(dir, func(name string) bool {
		return slices.ContainsFunc([]string{"kubelet", "kubelite", "k3s"}, func(known string) bool { return strings.HasPrefix(name, known) })
	})
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOSPC) {
		return nil // no inotify left: the host itself will say so, and what to do
	}
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: %v watches it", ErrKubelet, found[0])
	}
	return nil
}

// acquire locks the file of that name. One that its last holder removed after
// it was opened here is no good any more, so it is looked at again under the
// lock.
func (c *Claim) acquire() error {
	for {
		lock, err := c.open()
		if err != nil {
			return err
		}
		err = flock.Try(lock)
		if err == nil && c.names(lock) {
			c.lock = lock
			return c.sign()
		}
		holder := readPID(lock)
		_ = lock.Close()
		switch {
		case errors.Is(err, flock.ErrHeld) && holder != "":
			return fmt.Errorf("%w: process %s holds %s", ErrHeld, holder, lockName)
		case errors.Is(err, flock.ErrHeld):
			return fmt.Errorf("%w: it holds %s", ErrHeld, lockName)
		case err != nil:
			return err
		}
	}
}

// open never follows a link, which could lie anywhere.
func (c *Claim) open() (*os.File, error) {
	path := filepath.Join(c.dir.Name(), lockName)
	fd, err := unix.Openat(int(c.dir.Fd()), lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// names reports whether the lock's name still is that open file.
func (c *Claim) names(lock *os.File) bool {
	var named, open unix.Stat_t
	if unix.Fstatat(int(c.dir.Fd()), lockName, &named, unix.AT_SYMLINK_NOFOLLOW) != nil || unix.Fstat(int(lock.Fd()), &open) != nil {
		return false
	}
	return named.Dev == open.Dev && named.Ino == open.Ino
}

func (c *Claim) sign() error {
	err := c.lock.Truncate(0)
	if err == nil {
		_, err = c.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return errors.Join(err, c.lock.Close())
	}
	return nil
}

// readPID is for words only; empty when the file does not hold a number.
func readPID(lock *os.File) string {
	var text [20]byte
	n, _ := lock.ReadAt(text[:], 0)
	pid := strings.TrimSpace(string(text[:n]))
	if _, err := strconv.Atoi(pid); err != nil {
		return ""
	}
	return pid
}

// Release gives the directory back. Call it once.
func (c *Claim) Release() error {
	var err error
	if c.names(c.lock) { // the lock is held, so nobody else's
		err = unix.Unlinkat(int(c.dir.Fd()), lockName, 0)
	}
	return errors.Join(err, c.lock.Close(), c.dir.Close())
}
