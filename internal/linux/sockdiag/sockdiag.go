// Package sockdiag lists the TCP sockets of a network namespace and destroys
// them, as sock_diag(7) does, by the identity that the kernel gives each of
// them and never by addresses alone.
package sockdiag

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var (
	// ErrGone: no such socket is left; one with the same addresses is another.
	ErrGone = errors.New("the socket is gone")
	// ErrNoDestroy: this kernel destroys no sockets, or not one of this kind.
	ErrNoDestroy = errors.New("the kernel cannot destroy the socket (CONFIG_INET_DIAG_DESTROY)")
)

// State is that of a TCP socket, as in the kernel's enum.
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
	Local  netip.AddrPort // never 4in6, without a zone
	Remote netip.AddrPort // likewise; the zero address and port 0 of a listener
	// Cookie is the socket's and no other's until the machine is booted again.
	// It stays when a connection that is being set up becomes a socket.
	Cookie uint64
	// Inode is what /proc/PID/fd shows as socket:[Inode]; zero when the socket
	// belongs to nobody: it has not been accepted yet, or has been closed.
	Inode   uint32
	Receive uint32 // bytes received that nobody has read; of a listener the connections that wait

	id [sizeofID]byte // as the kernel gave it; addresses, interface and cookie
	// family is that of the socket, which differs from that of its addresses
	// when they are 4in6.
	family uint8
}

// Conn asks about the sockets of one network namespace: that of the thread
// which made it. It may be used by many goroutines.
type Conn struct{ conn *netlink.Conn }

// Dial opens a Conn. Close must be called.
func Dial() (*Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("open a socket of sock_diag: %w", err)
	}
	return &Conn{conn}, nil
}

// Close ends the Conn.
func (c *Conn) Close() error { return c.conn.Close() }

// Namespace is the cookie of the network namespace, as SO_NETNS_COOKIE gives it
// for each socket in it.
func (c *Conn) Namespace() (uint64, error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("which network namespace this is: %w", err)
	}
	var cookie uint64
	var failed error
	err = raw.Control(func(fd uintptr) {
		cookie, failed = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("which network namespace this is: %w", err)
	}
	return cookie, nil
}

// TCP lists all TCP sockets of both families that listen, are connected or are
// about to be. Those in TIME_WAIT are left out, also when they wait for the
// other side's FIN: they take no data any more.
//
// A list made while other sockets come and go may lack one that was there all
// the time: the kernel continues by position in a chain when a part of the list
// is read. A second list that lacks it too is very unlikely.
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

// Destroy ends a socket at once: the other side gets a reset, the process that
// holds it gets ECONNABORTED, but only after the bytes that were received
// before. It returns ErrGone or ErrNoDestroy where that is so.
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
