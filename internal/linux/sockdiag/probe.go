package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// CanDestroy tests on a socket of its own whether the kernel can destroy
// sockets. Errors: ErrNoDestroy, or EPERM without CAP_NET_ADMIN. Call it in the
// network namespace of the Conn.
func (c *Conn) CanDestroy() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return fmt.Errorf("create a test socket to destroy: %w", err)
	}
	defer unix.Close(fd)
	own, err := listening(fd)
	if err != nil {
		return fmt.Errorf("create a test socket to destroy: %w", err)
	}
	err = c.Destroy(own)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("destroying sockets needs CAP_NET_ADMIN: %w", err)
	}
	return err
}

func listening(fd int) (Socket, error) {
	loopback := [4]byte{127, 0, 0, 1}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: loopback}); err != nil {
		return Socket{}, err
	}
	if err := unix.Listen(fd, 0); err != nil {
		return Socket{}, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return Socket{}, err
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return Socket{}, err
	}
	s := Socket{family: unix.AF_INET}
	binary.BigEndian.PutUint16(s.id[0:], uint16(name.(*unix.SockaddrInet4).Port))
	copy(s.id[4:], loopback[:])
	binary.NativeEndian.PutUint32(s.id[40:], uint32(cookie))
	binary.NativeEndian.PutUint32(s.id[44:], uint32(cookie>>32))
	return s, nil
}
