package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Error is what the kernel refused. It is, for errors.Is, its Errno.
type Error struct {
	What    string // as "add chain input of table inet cleat"
	Errno   unix.Errno
	Message string // the kernel's own words; often empty
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nf_tables: %s: %v", e.What, e.Errno)
	if e.Message != "" {
		fmt.Fprintf(&b, ": %s", e.Message)
	}
	if e.Errno == unix.EPERM {
		b.WriteString(" (it takes CAP_NET_ADMIN, and a table with an owner is for its owner only)")
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Errno }

var (
	// ErrLost: messages were dropped since they were not read in time.
	ErrLost = errors.New("nf_tables: messages of the kernel were lost")

	errInterrupted = errors.New("nf_tables: the rules changed while they were read")
)

// answer is what NLMSG_ERROR says: errno is zero for an acknowledgement.
type answer struct {
	errno   unix.Errno
	message string
}

// parseAnswer reads struct nlmsgerr and the extended acknowledgement after it.
func parseAnswer(m netlink.Message) (answer, error) {
	if len(m.Data) < 4 {
		return answer{}, fmt.Errorf("nf_tables: an answer of %d bytes", len(m.Data))
	}
	a := answer{errno: unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))}
	if m.Header.Flags&netlink.AcknowledgeTLVs == 0 || len(m.Data) < 20 {
		return a, nil
	}
	rest := m.Data[4:]
	said := uint32(16) // the header of the request, and what it said unless that was cut
	if m.Header.Flags&netlink.Capped == 0 {
		said = (binary.NativeEndian.Uint32(rest) + 3) &^ 3
	}
	if uint64(said) > uint64(len(rest)) {
		return a, nil
	}
	err := decode(rest[said:], func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NLMSGERR_ATTR_MSG {
			a.message = ad.String()
		}
	})
	if err != nil {
		a.message = ""
	}
	return a, nil
}
