// Package inotify tells of changes to the names in directories, as inotify(7)
// does: nothing is hidden, not the mask, and not that events were dropped.
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

// What to watch for, what an event says, and how a watch is set; the words of
// inotify(7).
const (
	Create     = unix.IN_CREATE
	Delete     = unix.IN_DELETE
	MovedFrom  = unix.IN_MOVED_FROM
	MovedTo    = unix.IN_MOVED_TO
	DeleteSelf = unix.IN_DELETE_SELF
	MoveSelf   = unix.IN_MOVE_SELF

	Unmount  = unix.IN_UNMOUNT
	Overflow = unix.IN_Q_OVERFLOW // the kernel dropped events; of no watch
	Ignored  = unix.IN_IGNORED    // the last event of a watch
	IsDir    = unix.IN_ISDIR

	OnlyDir    = unix.IN_ONLYDIR
	DontFollow = unix.IN_DONT_FOLLOW
)

var (
	// ErrInstances: the user has used up fs.inotify.max_user_instances.
	ErrInstances = errors.New("no inotify instance is left for this user: raise the sysctl fs.inotify.max_user_instances, or stop programs that hold them")
	// ErrWatches: the user has used up fs.inotify.max_user_watches.
	ErrWatches = errors.New("no inotify watch is left for this user: raise the sysctl fs.inotify.max_user_watches, or stop programs that hold them")
)

// Watch is the number of a watch. The kernel does not use it again within the
// life of a Watcher.
type Watch int32

// Event is one change.
type Event struct {
	Watch  Watch
	Mask   uint32
	Cookie uint32 // the same for both halves of a move
	Name   string // in the watched directory; empty for the directory itself
}

// Watcher is one inotify instance.
type Watcher struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
}

// New makes an instance, or returns ErrInstances.
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

// descriptorsLeft tells the two reasons for EMFILE apart: the user's instances
// are used up, or the descriptors of this process.
func descriptorsLeft() bool {
	fd, err := unix.Dup(0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return !errors.Is(err, unix.EMFILE)
}

// Add watches a path. A file or directory that is watched already, by whatever
// path, keeps its Watch and gets the new mask. It returns ErrWatches when the
// user has no watch left.
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

// Remove ends a watch; one that has ended by itself is no error. Events that
// came before are still delivered, and Ignored after them.
func (w *Watcher) Remove(wd Watch) error {
	err := w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(wd))
		return err
	})
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("end the watch %d: %w", wd, err)
	}
	return nil
}

func (w *Watcher) control(f func(fd int) error) error {
	var err error
	if failed := w.raw.Control(func(fd uintptr) { err = f(int(fd)) }); failed != nil {
		return os.ErrClosed // the only reason there is
	}
	return err
}

// Read waits for events and appends what there is, many at a time. It returns
// context.Cause when ctx ends, os.ErrDeadlineExceeded at the deadline (zero:
// none) and os.ErrClosed after Close. One call at a time is possible.
func (w *Watcher) Read(ctx context.Context, deadline time.Time, events []Event) ([]Event, error) {
	if err := w.file.SetReadDeadline(deadline); err != nil {
		return events, os.ErrClosed // the only reason there is
	}
	hooked := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(hooked)
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !unhook() {
			<-hooked // it must not end the next Read
		}
	}()
	n, err := w.file.Read(w.buf)
	switch {
	case ctx.Err() != nil:
		return events, context.Cause(ctx)
	case errors.Is(err, unix.EINVAL): // no event fits: ours are at most 272 bytes
		return events, fmt.Errorf("inotify: the buffer of %d bytes is too small: %w", len(w.buf), err)
	case err != nil:
		return events, err
	}
	return parse(events, w.buf[:n])
}

// Pending appends the events that wait already; there may be more after them. It
// must not be called during Read.
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

// Close ends all watches and a Read that waits.
func (w *Watcher) Close() error { return w.file.Close() }

// parse appends the events in what read(2) returned: a head of 16 bytes each,
// in the machine's order, and a name that is filled up with NULs.
func parse(events []Event, buf []byte) ([]Event, error) {
	for len(buf) > 0 {
		if len(buf) < unix.SizeofInotifyEvent {
			return events, fmt.Errorf("inotify: %d bytes are left where an event of at least %d should be", len(buf), unix.SizeofInotifyEvent)
		}
		e := Event{
			Watch:  Watch(binary.NativeEndian.Uint32(buf)),
			Mask:   binary.NativeEndian.Uint32(buf[4:]),
			Cookie: binary.NativeEndian.Uint32(buf[8:]),
		}
		size := uint64(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[unix.SizeofInotifyEvent:]
		if size > uint64(len(buf)) {
			return events, fmt.Errorf("inotify: an event announces a name of %d bytes, and %d are left", size, len(buf))
		}
		name, _, _ := bytes.Cut(buf[:size], []byte{0})
		e.Name = string(name)
		buf = buf[size:]
		events = append(events, e)
	}
	return events, nil
}
