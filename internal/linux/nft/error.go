package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Error is a kernel error; errors.Is matches its Errno.
type Error struct {
	What    string // such as "add chain input of table inet cleat"
	Errno   unix.Errno
	Message string // the kernel's text; often empty
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nf_tables: %s: %v", e.What, e.Errno)
	if e.Message != "" {
		fmt.Fprintf(&b, ": %s", e.Message)
	}
	if e.Errno == unix.EPERM {
		b.WriteString(" (CAP_NET_ADMIN is needed, and only the owner of a table can change it)")
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Errno }

var (
	// ErrLost: messages were dropped (socket buffer overflow).
	ErrLost = errors.New("nf_tables: messages from the kernel were lost")

	errInterrupted = errors.New("nf_tables: the rules changed while they were read")
)

type answer struct {
	errno   unix.Errno
	message string
}

func parseAnswer(m netlink.Message) (answer, error) {
	if len(m.Data) < 4 {
		return answer{}, fmt.Errorf("nf_tables: answer of %d bytes is too short", len(m.Data))
	}
	a := answer{errno: unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))}
	if m.Header.Flags&netlink.AcknowledgeTLVs == 0 || len(m.Data) < 20 {
		return a, nil
	}
	rest := m.Data[4:]
	echoed := uint32(16) // the request's header, and its payload unless capped
	if m.Header.Flags&netlink.Capped == 0 {
		echoed = (binary.NativeEndian.Uint32(rest) + 3) &^ 3
	}
	if uint64(echoed) > uint64(len(rest)) {
		return a, nil
	}
	err := decode(rest[echoed:], func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NLMSGERR_ATTR_MSG {
			a.message = ad.String()
		}
	})
	if err != nil {
		a.message = ""
	}
	return a, nil
}
