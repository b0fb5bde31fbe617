package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// Event is a change in a table of the family inet.
type Event struct {
	Table string
	Port  uint32 // of the requesting socket; zero for the kernel
}

// Monitor receives changes to tables by any process.
type Monitor struct{ conn *Conn }

// Watch creates a Monitor for the network namespace of the calling thread.
func Watch() (*Monitor, error) {
	sock, err := socket.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, "nftables", nil)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	if err := sock.Bind(&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind a netlink socket: %w", err), sock.Close())
	}
	// Own changes are reported too: a few hundred bytes per element.
	conn, err := newConn(sock, monitorBuffer)
	if err != nil {
		return nil, err
	}
	if err := sock.SetsockoptInt(unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to nf_tables changes: %w", err), conn.Close())
	}
	return &Monitor{conn: conn}, nil
}

const monitorBuffer = 64 << 20

// Read waits for changes and appends them. After ErrLost it can be called
// again. Calls must not be concurrent.
func (m *Monitor) Read(ctx context.Context, events []Event) ([]Event, error) {
	messages, err := m.conn.receive(ctx)
	if err != nil {
		return events, err
	}
	for _, message := range messages {
		if e, ok := parseEvent(message); ok {
			events = append(events, e)
		}
	}
	return events, nil
}

// parseEvent reads the table name, the first attribute of every kind of change.
func parseEvent(m netlink.Message) (Event, bool) {
	system, kind := subsystem(m.Header.Type)
	if system != unix.NFNL_SUBSYS_NFTABLES || kind == unix.NFT_MSG_NEWGEN || kind == unix.NFT_MSG_TRACE {
		return Event{}, false
	}
	if len(m.Data) < 4 || m.Data[0] != unix.NFPROTO_INET {
		return Event{}, false
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return Event{}, false
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_TABLE_NAME {
			return Event{Table: ad.String(), Port: m.Header.PID}, true
		}
	}
	return Event{}, false
}

// Close closes the socket and interrupts a blocked Read.
func (m *Monitor) Close() error { return m.conn.Close() }
