package sockfd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Closed is a TCP socket whose connection has ended, but which processes have
// open and can read buffered data from. sock_diag does not list it.
type Closed struct {
	Local, Remote netip.AddrPort // never 4in6, without a zone
	Cookie        uint64         // as in package sockdiag
	Inode         uint32
	Holders       []Process
}

// CanTakeDescriptors returns an error if the kernel lacks pidfd_getfd(2), or a
// seccomp filter forbids it.
func CanTakeDescriptors() error {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(self)
	fd, err := unix.PidfdGetfd(self, self, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_getfd", err)
	}
	return unix.Close(fd)
}

// ClosedTCP finds the closed sockets of a network namespace (a cookie), except
// the inodes for which live is true. It duplicates descriptors briefly, and
// skips hidden processes and descriptor tables of single threads.
func ClosedTCP(ctx context.Context, namespace uint64, live func(inode uint32) bool) ([]Closed, error) {
	seen := map[uint32]*Closed{} // nil: not a closed TCP socket
	_, err := visit(ctx, func(d descriptor) error {
		if d.own || live(d.inode) {
			return nil
		}
		one, known := seen[d.inode]
		if !known {
			var err error
			if one, err = d.closedTCP(namespace); err != nil {
				return fmt.Errorf("inspect descriptor %s: %w", d.name, err)
			}
			seen[d.inode] = one
		}
		if one != nil && !slices.ContainsFunc(one.Holders, func(p Process) bool { return p.PID == d.pid }) {
			one.Holders = append(one.Holders, Process{d.pid, nameOf(d.pid), d.name})
		}
		return nil
	})
	var found []Closed
	for _, inode := range slices.Sorted(maps.Keys(seen)) {
		if one := seen[inode]; one != nil {
			found = append(found, *one)
		}
	}
	return found, err
}

// closedTCP is nil for other or gone sockets.
func (d descriptor) closedTCP(namespace uint64) (*Closed, error) {
	if isTCP, err := d.isTCP(); err != nil || !isTCP {
		return nil, err
	}
	fd, err := d.take()
	if fd < 0 || err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // an MPTCP socket without a connection
	}
	if err != nil {
		return nil, os.NewSyscallError("getsockopt TCP_INFO", err)
	}
	of, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
	}
	if info.State != unix.BPF_TCP_CLOSE || of != namespace {
		return nil, nil
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_COOKIE", err)
	}
	local, remote, err := names(fd)
	if errors.Is(err, unix.ENOTCONN) {
		return nil, nil // never connected
	}
	return &Closed{Local: local, Remote: remote, Cookie: cookie, Inode: d.inode}, err
}

// isTCP does not duplicate the descriptor. A plain TCP connection from an MPTCP
// listener, which Go creates, is reported as MPTCP.
func (d descriptor) isTCP() (bool, error) {
	name := make([]byte, 16)
	n, err := unix.Getxattr(d.dir.Name()+"/"+d.name, "system.sockprotoname", name)
	if err != nil {
		return false, ignoreUnseen(os.NewSyscallError("getxattr system.sockprotoname", err))
	}
	protocol := unix.ByteSliceToString(name[:n])
	return slices.Contains([]string{"TCP", "TCPv6", "MPTCP", "MPTCPv6"}, protocol), nil
}

// ignoreUnseen ignores the error of a process or descriptor that is gone or hidden.
func ignoreUnseen(err error) error {
	if gone(err) || errors.Is(err, unix.EBADF) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	return err
}

// take duplicates the descriptor. It returns -1 if it is gone or hidden, or its number
// refers to another file by now.
func (d descriptor) take() (fd int, err error) {
	number, err := strconv.Atoi(d.name)
	if err != nil {
		return -1, err
	}
	process, err := unix.PidfdOpen(d.pid, 0)
	if err != nil {
		return -1, ignoreUnseen(os.NewSyscallError("pidfd_open", err))
	}
	defer unix.Close(process)
	fd, err = unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return -1, ignoreUnseen(os.NewSyscallError("pidfd_getfd", err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || uint32(st.Ino) != d.inode || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return -1, unix.Close(fd)
	}
	return fd, nil
}

// names returns the socket's addresses. The peer address comes from
// SO_PEERNAME, since getpeername(2) works for live connections only. The kernel
// requires the exact address size.
func names(fd int) (local, remote netip.AddrPort, err error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return local, remote, os.NewSyscallError("getsockname", err)
	}
	var raw [unix.SizeofSockaddrInet6]byte
	size := uint32(unix.SizeofSockaddrInet4)
	if _, is6 := name.(*unix.SockaddrInet6); is6 {
		size = unix.SizeofSockaddrInet6
	}
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERNAME,
		uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return local, remote, os.NewSyscallError("getsockopt", errno)
	}
	port := binary.BigEndian.Uint16(raw[2:])
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		local = netip.AddrPortFrom(netip.AddrFrom4(name.Addr), uint16(name.Port))
		return local, netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), nil
	case *unix.SockaddrInet6:
		local = netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), uint16(name.Port))
		return local, netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])).Unmap(), port), nil
	}
	return local, remote, fmt.Errorf("unexpected type %T of the socket's address", name)
}
