package grpcline

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

// Idle is a connection on which nothing is asked any more. It shows whether
// the other end lives, and costs little: the server is answered when it wants
// to know the same, and the connection is ended when it wants that, so that it
// does not hold up a server that shuts down.
type Idle struct {
	raw  net.Conn
	fd   syscall.RawConn
	http idleHTTP
}

// Rest makes a line idle; no more calls are possible. An error means that the
// other end is about to end it, or has, and it is closed.
func (l *Line) Rest() (*Idle, error) {
	if l.ended == nil && l.fd == nil {
		l.ended = errors.New("it is no real connection")
	}
	if l.ended != nil {
		return nil, errors.Join(l.ended, l.raw.Close())
	}
	rest := make([]byte, l.in.Buffered(), l.in.Buffered()+len(l.ahead.bytes))
	_, _ = io.ReadFull(l.in, rest) // of the buffer alone
	i := &Idle{raw: l.raw, fd: l.fd}
	if !i.take(append(rest, l.ahead.bytes...)) {
		return nil, errors.Join(errors.New("the server goes away"), l.raw.Close())
	}
	return i, nil
}

// Control runs f with the descriptor, for something that waits until it is
// readable.
func (i *Idle) Control(f func(fd uintptr)) error { return i.fd.Control(f) }

// Close ends the connection.
func (i *Idle) Close() error { return i.raw.Close() }

// Stir takes in, without waiting, what the other end said. It returns false
// when the connection is over; then Close it.
func (i *Idle) Stir() bool {
	var buf [512]byte
	for {
		n, err := readNow(i.fd, buf[:])
		if n == 0 || err != nil {
			return err == nil
		}
		if !i.take(buf[:n]) {
			return false
		}
	}
}

func (i *Idle) take(b []byte) bool {
	answer, bye := i.http.read(b)
	if bye {
		return false
	}
	if len(answer) == 0 {
		return true
	}
	// It is so little that there is room for it, or the other end does not read.
	n := 0
	var err error
	failed := i.fd.Write(func(fd uintptr) bool {
		n, err = unix.Write(int(fd), answer)
		return true
	})
	return failed == nil && err == nil && n == len(answer)
}

const frameHead = 9 // length (3), type, flags, stream (4)

// idleHTTP follows the frames of a server (RFC 9113) without keeping them.
type idleHTTP struct {
	head []byte // of a frame, and the payload of a ping, as far as they came
	skip int    // bytes that belong to a frame without interest
}

// read takes in what came, and returns what to answer. bye is set when the
// server wants the connection ended, or does not speak HTTP/2.
func (h *idleHTTP) read(b []byte) (answer []byte, bye bool) {
	for len(b) > 0 {
		if h.skip > 0 {
			n := min(h.skip, len(b))
			h.skip -= n
			b = b[n:]
			continue
		}
		n := min(h.wants()-len(h.head), len(b))
		h.head = append(h.head, b[:n]...)
		b = b[n:]
		if len(h.head) < h.wants() {
			continue
		}
		more, end := h.frame()
		if end {
			return nil, true
		}
		answer = append(answer, more...)
		h.head = h.head[:0]
	}
	return answer, false
}

func (h *idleHTTP) kind() http2.FrameType { return http2.FrameType(h.head[3]) }

// wants is how many bytes are looked at together.
func (h *idleHTTP) wants() int {
	if len(h.head) >= frameHead && h.kind() == http2.FramePing {
		return frameHead + 8
	}
	return frameHead
}

// frame looks at a whole head.
func (h *idleHTTP) frame() (answer []byte, bye bool) {
	size, flags := int(binary.BigEndian.Uint32(h.head)>>8), http2.Flags(h.head[4])
	switch kind := h.kind(); {
	case size > frameBytes, kind == http2.FrameGoAway, kind == http2.FramePing && size != 8:
		return nil, true
	case kind == http2.FramePing && !flags.Has(http2.FlagPingAck):
		answer = append([]byte{0, 0, 8, byte(http2.FramePing), byte(http2.FlagPingAck), 0, 0, 0, 0}, h.head[frameHead:]...)
	case kind == http2.FrameSettings && !flags.Has(http2.FlagSettingsAck):
		answer = []byte{0, 0, 0, byte(http2.FrameSettings), byte(http2.FlagSettingsAck), 0, 0, 0, 0}
	}
	if h.kind() != http2.FramePing {
		h.skip = size
	}
	return answer, false
}
