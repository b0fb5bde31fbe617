package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The client's connection preface of HTTP/2 (RFC 9113, section 3.4): fixed bytes
// that gRPC also sends, and a SETTINGS frame without settings, which can be followed
// by others.
const (
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	emptySettings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
)

// greet connects and waits until the server sends data, which needs only a
// goroutine and a descriptor: any number of silent sockets can wait. It sends the
// HTTP/2 preface, which some servers wait for, in place of gRPC.
func greet(ctx context.Context, path string, peer func(Peer) error) (net.Conn, error) {
	raw, err := dial(ctx, path, peer)
	if err != nil {
		return nil, err
	}
	// Both ends of a new UNIX socket have space for the preface.
	if _, err = raw.Write([]byte(preface + emptySettings)); err == nil {
		err = awaitData(ctx, raw)
	}
	switch {
	case err == nil:
		return &greeted{Conn: raw, sent: len(preface)}, nil
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", errSilent, ctx.Err())
	default:
		err = errForeign
	}
	_ = raw.Close()
	return nil, err
}

// awaitData waits for the first data, and does not read it.
func awaitData(ctx context.Context, c net.Conn) error {
	socket, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	unhook := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer unhook()
	var n int
	var received error
	err = socket.Read(func(fd uintptr) bool {
		n, _, received = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK)
		return !errors.Is(received, unix.EAGAIN) && !errors.Is(received, unix.EINTR)
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && received == nil && n == 0:
		return io.EOF
	}
	return errors.Join(err, received)
}

// greeted drops the beginning of the preface from what gRPC sends: greet has sent
// it.
type greeted struct {
	net.Conn
	sent int // bytes to drop
}

func (g *greeted) Write(b []byte) (int, error) {
	dropped := min(g.sent, len(b))
	g.sent -= dropped
	if dropped == len(b) {
		return dropped, nil
	}
	n, err := g.Conn.Write(b[dropped:])
	return dropped + n, err
}
