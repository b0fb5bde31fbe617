// Package inotify wraps inotify(7) for directories, with masks and dropped
// events.
package inotify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Names of inotify(7).
const (
	Create     = unix.IN_CREATE
	Delete     = unix.IN_DELETE
	MovedFrom  = unix.IN_MOVED_FROM
	MovedTo    = unix.IN_MOVED_TO
	DeleteSelf = unix.IN_DELETE_SELF
	MoveSelf   = unix.IN_MOVE_SELF

	Unmount  = unix.IN_UNMOUNT
	Overflow = unix.IN_Q_OVERFLOW // the kernel dropped events; not for a watch
	Ignored  = unix.IN_IGNORED    // the last event of a watch
	IsDir    = unix.IN_ISDIR

	OnlyDir    = unix.IN_ONLYDIR
	DontFollow = unix.IN_DONT_FOLLOW
)

var (
	// ErrInstances: the user has used up fs.inotify.max_user_instances.
	ErrInstances = errors.New("the user has no inotify instances left: raise the sysctl fs.inotify.max_user_instances, or stop programs that use them")
	// ErrWatches: the user has used up fs.inotify.max_user_watches.
	ErrWatches = errors.New("the user has no inotify watches left: raise the sysctl fs.inotify.max_user_watches, or stop programs that use them")
)

// Watch is the number of a watch, unique within a Watcher.
type Watch int32

// Event is one change.
type Event struct {
	Watch  Watch
	Mask   uint32
	Cookie uint32 // connects both halves of a move
	Name   string // in the watched directory; empty for the directory itself
}

// Watcher is an inotify instance.
type Watcher struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
}

// New creates an instance, or returns ErrInstances.
func New() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	switch {
	case errors.Is(err, unix.EMFILE) && descriptorsLeft():
		return nil, fmt.Errorf("inotify: %w (%w)", ErrInstances, err)
	case err != nil:
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("inotify: %w", err), file.Close())
	}
	return &Watcher{file: file, raw: raw, buf: make([]byte, 64<<10)}, nil
}

// descriptorsLeft: EMFILE also means that this process has no descriptors left.
func descriptorsLeft() bool {
	fd, err := unix.Dup(0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return !errors.Is(err, unix.EMFILE)
}

// Add watches a path. An inode that is already watched, by any path, keeps its
// Watch and gets the new mask. Errors: ErrWatches.
func (w *Watcher) Add(path string, mask uint32) (Watch, error) {
	var wd int
	err := w.control(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(fd, path, mask)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOSPC):
		return 0, fmt.Errorf("watch %s: %w (%w)", path, ErrWatches, err)
	case err != nil:
		return 0, fmt.Errorf("watch %s: %w", path, err)
	}
	return Watch(wd), nil
}

// Remove removes a watch. It is idempotent; earlier events are still delivered,
// followed by Ignored.
func (w *Watcher) Remove(wd Watch) error {
	err := w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(wd))
		return err
	})
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove watch %d: %w", wd, err)
	}
	return nil
}

func (w *Watcher) control(f func(fd int) error) error {
	var err error
	if failed := w.raw.Control(func(fd uintptr) { err = f(int(fd)) }); failed != nil {
		return os.ErrClosed
	}
	return err
}

// Read waits for events and appends them. It returns context.Cause when ctx
// ends, os.ErrDeadlineExceeded at the deadline (zero: no deadline) and
// os.ErrClosed after Close. Calls must not be concurrent.
func (w *Watcher) Read(ctx context.Context, deadline time.Time, events []Event) ([]Event, error) {
	if err := w.file.SetReadDeadline(deadline); err != nil {
		return events, os.ErrClosed
	}
	hooked := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(hooked)
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !unhook() {
			<-hooked // it must not interrupt the next Read
		}
	}()
	n, err := w.file.Read(w.buf)
	switch {
	case ctx.Err() != nil:
		return events, context.Cause(ctx)
	case errors.Is(err, unix.EINVAL): // the buffer is too small; our events have at most 272 bytes
		return events, fmt.Errorf("inotify: the buffer of %d bytes is too small: %w", len(w.buf), err)
	case err != nil:
		return events, err
	}
	return parse(events, w.buf[:n])
}

// Pending appends queued events without waiting; more can follow. It must not
// be called during Read.
func (w *Watcher) Pending(events []Event) ([]Event, error) {
	n := 0
	err := w.control(func(fd int) (err error) {
		n, err = unix.Read(fd, w.buf)
		return err
	})
	switch {
	case errors.Is(err, unix.EAGAIN):
		return events, nil
	case err != nil:
		return events, fmt.Errorf("inotify: %w", err)
	}
	return parse(events, w.buf[:n])
}

// Close removes all watches and interrupts a blocked Read.
func (w *Watcher) Close() error { return w.file.Close() }

// parse appends the events in the result of read(2): each is a header of 16
// bytes in native byte order and a NUL-padded name.
func parse(events []Event, buf []byte) ([]Event, error) {
	for len(buf) > 0 {
		if len(buf) < unix.SizeofInotifyEvent {
			return events, fmt.Errorf("inotify: %d bytes left, want an event of at least %d bytes", len(buf), unix.SizeofInotifyEvent)
		}
		e := Event{
			Watch:  Watch(binary.NativeEndian.Uint32(buf)),
			Mask:   binary.NativeEndian.Uint32(buf[4:]),
			Cookie: binary.NativeEndian.Uint32(buf[8:]),
		}
		size := uint64(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[unix.SizeofInotifyEvent:]
		if size > uint64(len(buf)) {
			return events, fmt.Errorf("inotify: event with a name of %d bytes, but only %d bytes are left", size, len(buf))
		}
		name, _, _ := bytes.Cut(buf[:size], []byte{0})
		e.Name = string(name)
		buf = buf[size:]
		events = append(events, e)
	}
	return events, nil
}
