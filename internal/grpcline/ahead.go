package grpcline

import (
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ahead is a reader behind what was read of it ahead of time.
type ahead struct {
	io.Reader
	bytes []byte
}

func (a *ahead) Read(b []byte) (int, error) {
	if len(a.bytes) == 0 {
		return a.Reader.Read(b)
	}
	n := copy(b, a.bytes)
	a.bytes = a.bytes[n:]
	return n, nil
}

// readNow reads without waiting. It returns io.EOF at the end of the
// connection, and 0 when nothing has come.
func readNow(fd syscall.RawConn, b []byte) (n int, err error) {
	failed := fd.Read(func(fd uintptr) bool {
		for {
			if n, err = unix.Read(int(fd), b); !errors.Is(err, unix.EINTR) {
				return true
			}
		}
	})
	switch {
	case failed != nil:
		return 0, failed
	case errors.Is(err, unix.EAGAIN):
		return 0, nil
	case err == nil && n == 0:
		return 0, io.EOF
	}
	return n, err
}

// catchUp takes in what the server said between calls. It returns false when
// that was its end.
func (l *Line) catchUp() bool {
	if l.fd == nil {
		return true
	}
	var buf [1024]byte
	for len(l.ahead.bytes) < frameBytes {
		n, err := readNow(l.fd, buf[:])
		if err != nil {
			l.ended = err
			return false
		}
		if n == 0 {
			break
		}
		l.ahead.bytes = append(l.ahead.bytes, buf[:n]...)
	}
	// Headers may come in several frames, of which only the first is there.
	_ = l.raw.SetDeadline(time.Now().Add(time.Second))
	defer func() { _ = l.raw.SetDeadline(time.Time{}) }()
	for l.ended == nil && l.wholeFrame() {
		frame, err := l.http.ReadFrame()
		if err == nil {
			err = l.take(frame, &reply{})
		}
		if err == nil {
			err = l.flush()
		}
		if err != nil {
			l.ended = err
		}
	}
	return l.ended == nil
}

// wholeFrame reports whether a frame can be read without waiting.
func (l *Line) wholeFrame() bool {
	have := l.in.Buffered() + len(l.ahead.bytes)
	if have < frameHead {
		return false
	}
	head, err := l.in.Peek(frameHead)
	return err == nil && have >= frameHead+int(binary.BigEndian.Uint32(head)>>8)
}
