package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// Conn is a netlink socket to nf_tables. It serializes concurrent requests.
type Conn struct {
	sock *socket.Conn
	port uint32
	busy chan struct{} // full during a request
	seq  uint32
	buf  []byte
}

// answerBound is generous: normally the kernel answers before the send returns.
const answerBound = 30 * time.Second

// A batch is one message in the kernel's queue, with up to 36 bytes per
// element, two per interval.
const (
	sendBuffer    = 32 << 20
	receiveBuffer = 8 << 20
	messageBuffer = 64 << 10 // dumps have parts of at most 32 KiB
)

// Dial opens a socket in the network namespace of the calling thread.
func Dial() (*Conn, error) {
	sock, err := socket.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, "nftables", nil)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	if err := sock.Bind(&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind a netlink socket: %w", err), sock.Close())
	}
	return newConn(sock, receiveBuffer)
}

// FromFile creates a Conn from another process's socket. The caller still owns
// the file.
func FromFile(f *os.File) (*Conn, error) {
	sock, err := socket.FileConn(f, "nftables")
	if err != nil {
		return nil, fmt.Errorf("use the received netlink socket: %w", err)
	}
	if err := checkSocket(sock); err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return newConn(sock, receiveBuffer)
}

// CheckFile reports whether FromFile accepts a descriptor.
func CheckFile(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if domain != unix.AF_NETLINK || protocol != unix.NETLINK_NETFILTER {
		return fmt.Errorf("not a netlink socket of nf_tables: its domain is %d and its protocol %d", domain, protocol)
	}
	return nil
}

func checkSocket(sock *socket.Conn) error {
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	var wrong error
	if err := raw.Control(func(fd uintptr) { wrong = CheckFile(int(fd)) }); err != nil {
		return err
	}
	return wrong
}

func newConn(sock *socket.Conn, receive int) (*Conn, error) {
	c := &Conn{sock: sock, busy: make(chan struct{}, 1), seq: rand.Uint32(), buf: make([]byte, messageBuffer)}
	if err := c.setUp(receive); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink socket: %w", err), sock.Close())
	}
	return c, nil
}

func (c *Conn) setUp(receive int) error {
	address, err := c.sock.Getsockname()
	if err != nil {
		return err
	}
	own, ok := address.(*unix.SockaddrNetlink)
	if !ok || own.Pid == 0 {
		return errors.New("the socket has no port")
	}
	c.port = own.Pid
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err := c.sock.SetsockoptInt(unix.SOL_NETLINK, option, 1); err != nil {
			return err
		}
	}
	// Without CAP_NET_ADMIN in the initial user namespace the sysctl limits
	// apply.
	if c.sock.SetsockoptInt(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
		if err := c.sock.SetsockoptInt(unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer); err != nil {
			return err
		}
	}
	if c.sock.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receive) != nil {
		return c.sock.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUF, receive)
	}
	return nil
}

// Close closes this descriptor only: the socket can have others.
func (c *Conn) Close() error { return c.sock.Close() }

// Port returns the socket's netlink port, which identifies the owner of a
// table.
func (c *Conn) Port() uint32 { return c.port }

// File returns a duplicate descriptor, for another process.
func (c *Conn) File() (*os.File, error) {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	second := -1
	var failed error
	if err := raw.Control(func(fd uintptr) {
		second, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("fcntl", failed)
	}
	return os.NewFile(uintptr(second), "nftables"), nil
}

// Namespace returns the cookie of the network namespace, unique until reboot.
func (c *Conn) Namespace() (uint64, error) {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cookie uint64
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cookie, failed = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	}); err != nil {
		return 0, err
	}
	return cookie, os.NewSyscallError("getsockopt", failed)
}

// begin drains the receive queue: it can hold answers to an abandoned request,
// perhaps of a dead process, and an unfinished dump blocks the next.
func (c *Conn) begin(ctx context.Context) (end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case c.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := c.drain(); err != nil {
		<-c.busy
		return nil, err
	}
	return func() { <-c.busy }, nil
}

func (c *Conn) drain() error {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var n int
		var failed error
		if err := raw.Control(func(fd uintptr) {
			n, _, failed = unix.Recvfrom(int(fd), c.buf, unix.MSG_DONTWAIT)
		}); err != nil {
			return fmt.Errorf("nf_tables: %w", os.ErrClosed)
		}
		switch {
		case errors.Is(failed, unix.EAGAIN):
			return nil
		case errors.Is(failed, unix.ENOBUFS), errors.Is(failed, unix.EINTR):
		case failed != nil:
			return os.NewSyscallError("recvfrom", failed)
		case n == 0:
			return nil
		}
	}
}

// send uses one datagram.
func (c *Conn) send(ctx context.Context, messages []netlink.Message) error {
	size := 0
	for _, m := range messages {
		size += headerLen + len(m.Data) + 3
	}
	data := make([]byte, 0, size)
	for i := range messages {
		m := &messages[i]
		m.Header.Sequence = c.next()
		m.Header.PID = c.port
		data = appendMessage(data, *m)
	}
	_, err := c.sock.Sendmsg(ctx, data, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
	return err
}

func (c *Conn) next() uint32 {
	if c.seq++; c.seq == 0 {
		c.seq++
	}
	return c.seq
}

func (c *Conn) receive(ctx context.Context) ([]netlink.Message, error) {
	for {
		n, _, flags, from, err := c.sock.Recvmsg(ctx, c.buf, nil, 0)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return nil, fmt.Errorf("%w (%w)", ErrLost, err)
		case err != nil && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, fmt.Errorf("nf_tables: %w", err)
		case flags&unix.MSG_TRUNC != 0:
			return nil, fmt.Errorf("%w: one was longer than %d bytes", ErrLost, len(c.buf))
		}
		// Any process can send to a netlink socket.
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		return parseMessages(c.buf[:n])
	}
}

func appendMessage(b []byte, m netlink.Message) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(headerLen+len(m.Data)))
	b = binary.NativeEndian.AppendUint16(b, uint16(m.Header.Type))
	b = binary.NativeEndian.AppendUint16(b, uint16(m.Header.Flags))
	b = binary.NativeEndian.AppendUint32(b, m.Header.Sequence)
	b = binary.NativeEndian.AppendUint32(b, m.Header.PID)
	b = append(b, m.Data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

const headerLen = unix.NLMSG_HDRLEN

func parseMessages(b []byte) ([]netlink.Message, error) {
	b = append([]byte(nil), b...)
	var messages []netlink.Message
	for len(b) >= headerLen {
		length := binary.NativeEndian.Uint32(b)
		if length < headerLen || uint64(length) > uint64(len(b)) {
			return nil, fmt.Errorf("nf_tables: message length %d in a datagram with %d bytes left", length, len(b))
		}
		messages = append(messages, netlink.Message{
			Header: netlink.Header{
				Length:   length,
				Type:     netlink.HeaderType(binary.NativeEndian.Uint16(b[4:])),
				Flags:    netlink.HeaderFlags(binary.NativeEndian.Uint16(b[6:])),
				Sequence: binary.NativeEndian.Uint32(b[8:]),
				PID:      binary.NativeEndian.Uint32(b[12:]),
			},
			Data: b[headerLen:length:length],
		})
		b = b[min(uint64(len(b)), uint64(length+3)&^3):]
	}
	return messages, nil
}

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h.
const membarrierGlobal = 1

// WaitForPackets waits for an RCU grace period: then no CPU processes a packet under
// the rules before the commit.
func WaitForPackets() error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
		switch {
		case errno == 0:
			return nil
		case errors.Is(errno, unix.EINTR):
		case errors.Is(errno, unix.ENOSYS), errors.Is(errno, unix.EINVAL), errors.Is(errno, unix.EPERM):
			// No such call, or nohz_full CPUs. Packets in flight take
			// microseconds.
			return nil
		default:
			return os.NewSyscallError("membarrier", errno)
		}
	}
}
