package netlinks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Event is a change; the zero value means no change.
type Event struct {
	// Lost: events are missing, or Watch has just started.
	Lost         bool
	Link         *Link // added, changed or, with Gone, removed
	Gone         bool
	DefaultRoute bool
}

// queue holds some thousand events.
const queue = 2 << 20

// Watch calls each for every change until the context ends, whose cause it
// returns, or the socket fails. The first event is Lost, once changes are
// received.
func Watch(ctx context.Context, each func(Event)) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{
		Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE,
	})
	if err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadBuffer(queue)
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-interrupted
		}
	}()
	each(Event{Lost: true})
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, unix.ENOBUFS):
			each(Event{Lost: true})
		case err != nil:
			return fmt.Errorf("watch links: %w", err)
		}
		for _, m := range messages {
			if e := parseEvent(uint16(m.Header.Type), m.Data); e != (Event{}) {
				each(e)
			}
		}
	}
}

func parseEvent(kind uint16, data []byte) Event {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l, err := parseLink(data)
		if err != nil {
			return Event{Lost: true}
		}
		return Event{Link: &l, Gone: kind == unix.RTM_DELLINK}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		links, err := parseDefault(data)
		if err != nil && !errors.Is(err, errNextHop) {
			return Event{Lost: true}
		}
		return Event{DefaultRoute: err != nil || len(links) > 0}
	default:
		return Event{}
	}
}
