// Package sockdiag lists and destroys the TCP sockets of a network namespace by
// sock_diag(7), identified by their cookies.
package sockdiag

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var (
	// ErrGone: the socket does not exist; one with the same addresses is
	// another socket.
	ErrGone = errors.New("the socket is gone")
	// ErrNoDestroy: this kernel cannot destroy sockets, or not this kind.
	ErrNoDestroy = errors.New("the kernel cannot destroy the socket (CONFIG_INET_DIAG_DESTROY)")
)

// State is the kernel's number of a TCP state.
type State uint8

const (
	Established State = 1
	SynSent     State = 2
	SynReceived State = 3
	FinWait1    State = 4
	FinWait2    State = 5
	TimeWait    State = 6
	Closed      State = 7
	CloseWait   State = 8
	LastAck     State = 9
	Listen      State = 10
	Closing     State = 11
)

// Socket is one TCP socket.
type Socket struct {
	State  State
	Local  netip.AddrPort // without a zone, never 4in6
	Remote netip.AddrPort // zero for a listener
	// Cookie is unique until reboot, and stays when a connection request
	// becomes a socket.
	Cookie uint64
	// Inode is that of socket:[Inode] in /proc/PID/fd; zero without a process:
	// not accepted yet, or closed.
	Inode   uint32
	Receive uint32 // unread bytes; of a listener: queued connections

	id [sizeofID]byte // struct inet_diag_sockid
	// family of the socket, which can have 4in6 addresses
	family uint8
}

// Conn queries the sockets of the network namespace of the thread that created
// it. It is safe for concurrent use.
type Conn struct{ conn *netlink.Conn }

// Dial opens a Conn.
func Dial() (*Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("open a socket of sock_diag: %w", err)
	}
	return &Conn{conn}, nil
}

// Close ends the Conn.
func (c *Conn) Close() error { return c.conn.Close() }

// Namespace returns the cookie of the network namespace (SO_NETNS_COOKIE).
func (c *Conn) Namespace() (uint64, error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	var cookie uint64
	var failed error
	err = raw.Control(func(fd uintptr) {
		cookie, failed = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return cookie, nil
}

// TCP lists all TCP sockets except those in TIME_WAIT, which receive no data.
//
// The list can miss an existing socket while others come and go: the kernel
// continues a dump by position in a hash chain. A second list very probably has
// it.
func (c *Conn) TCP() ([]Socket, error) {
	var all []Socket
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, err := c.dump(family)
		if errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list the TCP sockets: %w: the kernel lacks tcp_diag (CONFIG_INET_TCP_DIAG)", err)
		}
		if err != nil {
			return nil, fmt.Errorf("list the TCP sockets: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (c *Conn) dump(family uint8) ([]Socket, error) {
	messages, err := c.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump},
		Data:   request(family, dumped, [sizeofID]byte{}),
	})
	if err != nil {
		return nil, err
	}
	found := make([]Socket, 0, len(messages))
	for _, m := range messages {
		s, waits, err := parse(m.Data)
		if err != nil {
			return nil, err
		}
		if !waits {
			found = append(found, s)
		}
	}
	return found, nil
}

// Destroy ends a socket at once: the peer gets a reset, the process
// ECONNABORTED after the received bytes. Errors: ErrGone, ErrNoDestroy.
func (c *Conn) Destroy(s Socket) error {
	_, err := c.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: sockDestroy, Flags: netlink.Request | netlink.Acknowledge},
		Data:   request(s.family, anyState, s.id),
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return ErrGone
	case errors.Is(err, unix.EOPNOTSUPP):
		return ErrNoDestroy
	case err != nil:
		return fmt.Errorf("destroy the socket %v to %v: %w", s.Local, s.Remote, err)
	}
	return nil
}
