// Package epoll waits for many descriptors in one goroutine. Go's own poller
// wants a goroutine for each, which is much where nearly all are idle for ever.
package epoll

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Set is a number of descriptors.
type Set struct {
	file   *os.File
	raw    syscall.RawConn
	events [256]unix.EpollEvent
}

// New makes an empty set.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else the file would not be polled
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Set{file: file, raw: raw}, nil
}

// Add waits for a descriptor to become readable, or to lose its other end,
// from now on until it is closed; the token stands for it.
func (s *Set) Add(fd int, token uint64) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(uint32(token)), Pad: int32(token >> 32)}
	var err error
	if failed := s.raw.Control(func(set uintptr) { err = unix.EpollCtl(int(set), unix.EPOLL_CTL_ADD, fd, &event) }); failed != nil {
		return os.ErrClosed // the only reason there is
	}
	return os.NewSyscallError("epoll_ctl", err)
}

// Wait appends the tokens of those for which something is to be done; who does
// nothing about it is told again. It returns context.Cause when ctx ends, and
// os.ErrClosed after Close. One call at a time is possible.
func (s *Set) Wait(ctx context.Context, tokens []uint64) ([]uint64, error) {
	if err := s.file.SetReadDeadline(time.Time{}); err != nil {
		return tokens, os.ErrClosed // the only reason there is
	}
	hooked := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(hooked)
		_ = s.file.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !unhook() {
			<-hooked // it must not end the next Wait
		}
	}()
	var n int
	var failed error
	err := s.raw.Read(func(set uintptr) (done bool) {
		n, failed = unix.EpollWait(int(set), s.events[:], 0)
		return n != 0 && !errors.Is(failed, unix.EINTR)
	})
	switch {
	case ctx.Err() != nil:
		return tokens, context.Cause(ctx)
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return tokens, os.ErrClosed
	case err != nil || failed != nil:
		return tokens, errors.Join(err, os.NewSyscallError("epoll_wait", failed))
	}
	for _, e := range s.events[:n] {
		tokens = append(tokens, uint64(uint32(e.Fd))|uint64(uint32(e.Pad))<<32)
	}
	return tokens, nil
}

// Close ends the set and a Wait; the descriptors stay open.
func (s *Set) Close() error { return s.file.Close() }
