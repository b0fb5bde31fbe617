package genetlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
)

// mostWait bounds a request whose context does not: the kernel answers at once.
const mostWait = 30 * time.Second

// Execute asks the kernel by a protocol of netlink, on a socket of its own.
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
	// The kernel then says in words what it does not like. All that can run
	// devlink or vDPA know the option.
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
