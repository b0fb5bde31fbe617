package netlinks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	library "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// reportErrors makes vishvananda/netlink request the kernel's error texts
// (extended acknowledgements), which it does only on the sockets of a zero
// Handle.
var reportErrors = sync.OnceFunc(func() { nl.EnableErrorMessageReporting = true })

// NewHandle returns a handle whose errors include the kernel's text. It must
// not dump: nl.NetlinkRequest of v1.3.1 panics on the text of a failed dump.
func NewHandle() *library.Handle {
	reportErrors()
	return &library.Handle{}
}

// maxWait bounds requests whose context has no deadline.
const maxWait = 30 * time.Second

// Execute makes requests that vishvananda/netlink cannot make. Errors include
// the kernel's errno and text.
//
// The context bounds the wait for answers only: the kernel executes requests
// inside sendmsg(2) and recvmsg(2), so Execute hangs if a driver hangs.
func Execute(ctx context.Context, protocol int, m netlink.Message) ([]netlink.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(protocol, nil)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetOption(netlink.ExtendedAcknowledge, true); err != nil {
		return nil, fmt.Errorf("request the kernel's error texts: %w", err)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(maxWait)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	messages, err := conn.Execute(m)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("no answer from the kernel: %w", context.DeadlineExceeded)
	}
	if op, ok := errors.AsType[*netlink.OpError](err); ok {
		if err = op.Err; op.Message != "" {
			err = fmt.Errorf("%w: %s", op.Err, op.Message)
		}
	}
	return messages, err
}
