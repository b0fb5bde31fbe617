// Package genetlink asks families of generic netlink, such as devlink and vDPA,
// each time on a socket of its own.
//
// The kernel does what a request says before the call that sends it returns,
// whatever deadline the socket has: behind a driver that hangs, so does the
// call. A context bounds the waits for answers; who needs more calls from a
// goroutine that may be left behind.
package genetlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoFamily: the kernel lacks a family of generic netlink, which its module
// or its configuration brings.
var ErrNoFamily = errors.New("the kernel does not have it")

// sizeofHeader is struct genlmsghdr: command, version, two bytes of nothing.
const sizeofHeader = 4

// Family is the number of a family, by its name.
func Family(ctx context.Context, name string) (uint16, error) {
	id, err := family(ctx, name)
	if errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("%w: generic netlink's %s: load its module, or take a kernel that has it", ErrNoFamily, name)
	}
	if err != nil {
		return 0, fmt.Errorf("ask for generic netlink's %s: %w", name, err)
	}
	return id, nil
}

func family(ctx context.Context, name string) (uint16, error) {
	answers, err := Ask(ctx, unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, 0, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.CTRL_ATTR_FAMILY_NAME, name)
	})
	if err != nil {
		return 0, err
	}
	id := uint16(0)
	for _, ad := range answers {
		for ad.Next() {
			if ad.Type() == unix.CTRL_ATTR_FAMILY_ID {
				id = ad.Uint16()
			}
		}
		if err := ad.Err(); err != nil {
			return 0, err
		}
	}
	if id == 0 {
		return 0, errors.New("the answer has no number of the family")
	}
	return id, nil
}

// Ask sends a command to a family and returns the attributes of each answer.
func Ask(ctx context.Context, family uint16, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
	ae := netlink.NewAttributeEncoder()
	encode(ae)
	attributes, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	const version = 1 // of all families asked here
	messages, err := Execute(ctx, unix.NETLINK_GENERIC, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family), Flags: netlink.Request | flags},
		Data:   append([]byte{command, version, 0, 0}, attributes...),
	})
	if err != nil {
		return nil, err
	}
	return parse(messages)
}

func parse(messages []netlink.Message) ([]*netlink.AttributeDecoder, error) {
	var answers []*netlink.AttributeDecoder
	for _, m := range messages {
		if m.Header.Type == netlink.Error || m.Header.Type == netlink.Done {
			continue
		}
		if len(m.Data) < sizeofHeader {
			return nil, fmt.Errorf("an answer of %d bytes: at least %d are right", len(m.Data), sizeofHeader)
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[sizeofHeader:])
		if err != nil {
			return nil, err
		}
		answers = append(answers, ad)
	}
	return answers, nil
}

// mostWait bounds requests whose context has no deadline.
const mostWait = 30 * time.Second

// Execute sends a request of a netlink protocol on a socket of its own.
func Execute(ctx context.Context, protocol int, m netlink.Message) ([]netlink.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, mostWait)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(protocol, nil)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	// Errors then have a text. Every kernel with devlink or vDPA has the option.
	if err := conn.SetOption(netlink.ExtendedAcknowledge, true); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	messages, err := conn.Execute(m)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return nil, fmt.Errorf("no answer of the kernel: %w", ctx.Err())
	}
	return messages, err
}
