package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/epoll"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// lives holds one idle connection to each registered plugin, to learn at once
// when it dies. It is a polite HTTP/2 connection that asks nothing: a silent one
// would be thrown out by servers after two minutes, and would keep them from
// shutting down until then. There is no goroutine for each, only one that waits
// for all.
type lives struct {
	set  *epoll.Set
	most int // connections; the others are looked at now and then
	held map[uint64]*idle
}

func newLives() (*lives, error) {
	set, err := epoll.New()
	if err != nil {
		return nil, err
	}
	// Half of the descriptors are left for everything else.
	l := &lives{set: set, most: 512, held: map[uint64]*idle{}}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		l.most = int(min(limit.Cur/2, 1<<20))
	}
	return l, nil
}

// idle is a connection on which nothing is asked.
type idle struct {
	conn net.Conn
	raw  syscall.RawConn
	http idleHTTP
}

// lookIn connects to a plugin's socket and greets it.
func lookIn(ctx context.Context, path string) (*idle, liveness, failure) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := unixsock.Dial(ctx, path)
	if err == nil {
		var i *idle
		if i, err = greet(conn); err == nil {
			return i, alive, failure{}
		}
	}
	f := failure{step: Registered, text: err.Error(), reason: ofDeath}
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, dead, f
	}
	return nil, unsure, f // no permission, a full queue, the file just gone
}

func greet(conn net.Conn) (*idle, error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, err = conn.Write([]byte(greeting))
		_ = conn.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &idle{conn: conn, raw: raw}, nil
}

// hold keeps a connection; false: there is no room for it.
func (l *lives) hold(token uint64, i *idle) bool {
	l.drop(token)
	if len(l.held) < l.most {
		var err error
		failed := i.raw.Control(func(fd uintptr) { err = l.set.Add(int(fd), token) })
		if failed == nil && err == nil {
			l.held[token] = i
			return true
		}
	}
	_ = i.conn.Close()
	return false
}

func (l *lives) drop(token uint64) {
	if i := l.held[token]; i != nil {
		_ = i.conn.Close()
		delete(l.held, token)
	}
}

func (l *lives) close() {
	for token := range l.held {
		l.drop(token)
	}
}

// stirred takes in what the other end says. It reports whether that was the
// end of the connection.
func (l *lives) stirred(token uint64) (ended bool) {
	i := l.held[token]
	if i == nil {
		return false
	}
	if i.listen() {
		return false
	}
	l.drop(token)
	return true
}

// listen reads without waiting and answers as HTTP/2 demands.
func (i *idle) listen() (stays bool) {
	var buf [512]byte
	for {
		var n int
		var err error
		failed := i.raw.Read(func(fd uintptr) bool {
			n, err = unix.Read(int(fd), buf[:])
			return true
		})
		switch {
		case failed != nil:
			return false
		case errors.Is(err, unix.EAGAIN):
			return true
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || n == 0:
			return false
		}
		answer, bye := i.http.read(buf[:n])
		if bye {
			return false
		}
		if len(answer) == 0 {
			continue
		}
		// What is answered is so little that there is always room for it.
		failed = i.raw.Write(func(fd uintptr) bool {
			n, err = unix.Write(int(fd), answer)
			return true
		})
		if failed != nil || err != nil || n != len(answer) {
			return false
		}
	}
}

// The part of HTTP/2 (RFC 9113) that an idle client needs.
const (
	frameHead     = 9
	frameSettings = 4
	framePing     = 6
	frameGoAway   = 7
	flagAck       = 1
	mostSkipped   = 1 << 14 // the largest frame that was allowed

	greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // and settings: the defaults
)

// idleHTTP follows the frames of a server.
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

// wants is how many bytes are looked at together.
func (h *idleHTTP) wants() int {
	if len(h.head) >= frameHead && h.head[3] == framePing {
		return frameHead + 8
	}
	return frameHead
}

// frame looks at a whole head.
func (h *idleHTTP) frame() (answer []byte, bye bool) {
	size := int(binary.BigEndian.Uint32(h.head) >> 8)
	kind, flags := h.head[3], h.head[4]
	switch {
	case size > mostSkipped, kind == frameGoAway, kind == framePing && size != 8:
		return nil, true
	case kind == framePing && flags&flagAck == 0:
		answer = append([]byte{0, 0, 8, framePing, flagAck, 0, 0, 0, 0}, h.head[frameHead:]...)
	case kind == frameSettings && flags&flagAck == 0:
		answer = []byte{0, 0, 0, frameSettings, flagAck, 0, 0, 0, 0}
	}
	if kind != framePing {
		h.skip = size
	}
	return answer, false
}
