package unixsock

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Credentials are the peer's at the time of connect.
type Credentials struct {
	PID      int32
	UID, GID uint32
}

// PeerCredentials reads the credentials from the kernel.
func PeerCredentials(c net.Conn) (Credentials, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return Credentials{}, fmt.Errorf("a %T has no peer credentials", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return Credentials{}, fmt.Errorf("peer credentials: %w", err)
	}
	var u *unix.Ucred
	var asked error
	err = raw.Control(func(s uintptr) { u, asked = unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, asked); err != nil {
		return Credentials{}, fmt.Errorf("peer credentials: %w", err)
	}
	return Credentials{PID: u.Pid, UID: u.Uid, GID: u.Gid}, nil
}

// AllowUIDs accepts only connections of root and of these users. Others are
// closed and reported. Unmapped users of other user namespaces appear as 65534
// or 4294967295, which are refused even if listed.
func AllowUIDs(l net.Listener, refused func(Credentials), uids ...uint32) net.Listener {
	return &uidListener{Listener: l, refused: refused, uids: uids}
}

type uidListener struct {
	net.Listener
	refused func(Credentials)
	uids    []uint32
}

const (
	// OverflowUID is reported by the kernel for users without a mapping into
	// this user namespace.
	OverflowUID = 65534
	invalidUID  = 1<<32 - 1
)

func (l *uidListener) allows(uid uint32) bool {
	switch uid {
	case 0:
		return true
	case OverflowUID, invalidUID:
		return false
	}
	return slices.Contains(l.uids, uid)
}

// Unwrap returns the listener below.
func (l *uidListener) Unwrap() net.Listener { return l.Listener }

// Accept skips refused users.
func (l *uidListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who, err := PeerCredentials(c)
		if err == nil && l.allows(who.UID) {
			return c, nil
		}
		if err != nil { // unknown users are refused too
			who = Credentials{UID: invalidUID, GID: invalidUID}
		}
		_ = c.Close()
		if l.refused != nil {
			l.refused(who)
		}
	}
}
