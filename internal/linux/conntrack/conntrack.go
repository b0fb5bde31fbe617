// Package conntrack lists the connections whose destination this machine
// translates (DNAT), as connection tracking has them.
package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// State is the kernel's number of a connection's state (enum tcp_conntrack).
type State uint8

const (
	Established State = 3
	TimeWait    State = 7 // both sides have closed it
	Closed      State = 8 // one side has reset it
)

// Flow is one tracked TCP connection.
type Flow struct {
	Client netip.AddrPort // that began it
	Called netip.AddrPort // that the client calls
	Server netip.AddrPort // that answers
	State  State          // zero if the kernel does not report it
}

// Conn queries the network namespace of the thread that created it. It is safe
// for concurrent use.
type Conn struct{ conn *netlink.Conn }

// Dial opens a Conn.
func Dial() (*Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open a socket of conntrack: %w", err)
	}
	return &Conn{conn}, nil
}

// Close ends the Conn.
func (c *Conn) Close() error { return c.conn.Close() }

// Attributes and values of linux/netfilter/nfnetlink_conntrack.h and
// nf_conntrack_common.h.
const (
	getMessage     = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	tupleOrig      = 1
	tupleReply     = 2
	status         = 3
	protoInfo      = 4
	tupleAddresses = 1
	tupleProtocol  = 2
	sourceV4       = 1
	destinationV4  = 2
	sourceV6       = 3
	destinationV6  = 4
	protocolNumber = 1
	sourcePort     = 2
	destPort       = 3
	protoInfoTCP   = 1
	tcpState       = 1
	translated     = 1 << 5 // IPS_DST_NAT
	sizeofHeader   = 4      // struct nfgenmsg
)

// Translated lists the TCP connections with a translated destination. Since
// Linux 5.18 the kernel selects them; before, all connections are read. A read
// that outlasts ctx ends without the caller.
func (c *Conn) Translated(ctx context.Context) ([]Flow, error) {
	// Without the file the kernel tracks no connections. A dump of an empty table
	// takes milliseconds too: all namespaces share the kernel's table.
	count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if errors.Is(err, os.ErrNotExist) || strings.TrimSpace(string(count)) == "0" {
		return nil, nil
	}
	type result struct {
		flows []Flow
		err   error
	}
	done := make(chan result, 1)
	go func() {
		flows, err := c.dump()
		done <- result{flows, err}
	}()
	select {
	case r := <-done:
		return r.flows, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// dump reads the connections of both families at once: each dump walks the whole
// table.
func (c *Conn) dump() ([]Flow, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Uint32(status, translated)
	attributes, err := e.Encode()
	if err != nil {
		return nil, err
	}
	messages, err := c.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: getMessage, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
	if err != nil {
		return nil, fmt.Errorf("list the tracked connections: %w", err)
	}
	var found []Flow
	for _, m := range messages {
		flow, is, err := parse(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list the tracked connections: %w", err)
		}
		if is {
			found = append(found, flow)
		}
	}
	return found, nil
}

type tuple struct {
	source, destination netip.AddrPort
	protocol            uint8
}

// parse returns false for other protocols and without a translation.
func parse(data []byte) (f Flow, is bool, err error) {
	if len(data) < sizeofHeader {
		return f, false, fmt.Errorf("a message of %d bytes", len(data))
	}
	d, err := netlink.NewAttributeDecoder(data[sizeofHeader:])
	if err != nil {
		return f, false, err
	}
	d.ByteOrder = binary.BigEndian
	var orig, reply tuple
	var bits uint32
	for d.Next() {
		switch d.Type() {
		case tupleOrig:
			d.Nested(orig.decode)
		case tupleReply:
			d.Nested(reply.decode)
		case status:
			bits = d.Uint32()
		case protoInfo:
			d.Nested(func(d *netlink.AttributeDecoder) error { return f.decodeState(d) })
		}
		if bits != 0 && bits&translated == 0 {
			return f, false, nil
		}
	}
	f.Client, f.Called, f.Server = orig.source, orig.destination, reply.source
	return f, orig.protocol == unix.IPPROTO_TCP && bits&translated != 0, d.Err()
}

func (t *tuple) decode(d *netlink.AttributeDecoder) error {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for d.Next() {
		switch d.Type() {
		case tupleAddresses:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					switch address, _ := netip.AddrFromSlice(d.Bytes()); d.Type() {
					case sourceV4, sourceV6:
						from = address.Unmap()
					case destinationV4, destinationV6:
						to = address.Unmap()
					}
				}
				return nil
			})
		case tupleProtocol:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					switch d.Type() {
					case protocolNumber:
						t.protocol = d.Uint8()
					case sourcePort:
						fromPort = d.Uint16()
					case destPort:
						toPort = d.Uint16()
					}
				}
				return nil
			})
		}
	}
	t.source, t.destination = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return nil
}

func (f *Flow) decodeState(d *netlink.AttributeDecoder) error {
	for d.Next() {
		if d.Type() == protoInfoTCP {
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					if d.Type() == tcpState {
						f.State = State(d.Uint8())
					}
				}
				return nil
			})
		}
	}
	return nil
}
