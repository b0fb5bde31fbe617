package sockdiag

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// From linux/sock_diag.h and linux/inet_diag.h.
const (
	sockDiagByFamily = 20
	sockDestroy      = 21

	sizeofID      = 48 // struct inet_diag_sockid
	sizeofRequest = 56 // struct inet_diag_req_v2
	sizeofMessage = 72 // struct inet_diag_msg

	timerTimeWait = 3 // idiag_timer of a TIME_WAIT entry

	anyState = ^uint32(0)
	dumped   = anyState &^ (1<<TimeWait | 1<<Closed)
)

func request(family uint8, states uint32, id [sizeofID]byte) []byte {
	b := make([]byte, sizeofRequest)
	b[0] = family
	b[1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], states)
	copy(b[8:], id[:])
	return b
}

// parse decodes struct inet_diag_msg. waits means TIME_WAIT, which the kernel
// can report as FIN_WAIT2.
func parse(b []byte) (s Socket, waits bool, err error) {
	if len(b) < sizeofMessage {
		return Socket{}, false, fmt.Errorf("sock_diag message of %d bytes: want at least %d", len(b), sizeofMessage)
	}
	s.family, s.State = b[0], State(b[1])
	if s.State == 12 { // TCP_NEW_SYN_RECV, a kernel-internal state
		s.State = SynReceived
	}
	s.id = [sizeofID]byte(b[4 : 4+sizeofID])
	local, remote := b[8:24], b[24:40]
	localPort, remotePort := binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:])
	switch s.family {
	case unix.AF_INET:
		s.Local = netip.AddrPortFrom(netip.AddrFrom4([4]byte(local)), localPort)
		s.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte(remote)), remotePort)
	case unix.AF_INET6:
		s.Local = netip.AddrPortFrom(netip.AddrFrom16([16]byte(local)).Unmap(), localPort)
		s.Remote = netip.AddrPortFrom(netip.AddrFrom16([16]byte(remote)).Unmap(), remotePort)
	default:
		return Socket{}, false, fmt.Errorf("sock_diag reported a TCP socket of unknown family %d", s.family)
	}
	s.Cookie = uint64(binary.NativeEndian.Uint32(b[44:])) | uint64(binary.NativeEndian.Uint32(b[48:]))<<32
	s.Receive = binary.NativeEndian.Uint32(b[56:])
	s.Inode = binary.NativeEndian.Uint32(b[68:])
	return s, b[2] == timerTimeWait, nil
}
