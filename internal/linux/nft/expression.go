package nft

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Expression is one step of a rule, comparable with ==.
type Expression interface {
	name() string
	encode(*netlink.AttributeEncoder)
}

const register = unix.NFT_REG_1

type (
	// Meta loads metadata of the packet.
	Meta struct{ Key uint32 }
	// Compare continues if the loaded value equals Value.
	Compare struct{ Value string }
	// Payload loads bytes of the packet.
	Payload struct{ Base, Offset, Len uint32 }
	// Lookup continues if the loaded value is in the set.
	Lookup struct{ Set string }
	// Counter counts the packets that reach it.
	Counter struct{ Packets, Bytes uint64 }
	// Verdict ends the rule and decides on the packet.
	Verdict struct{ Code uint32 }
	// Other is an expression that this package does not write.
	Other struct{ Name string }
)

// Keys of Meta and bases of Payload.
const (
	MetaFamily   = unix.NFT_META_NFPROTO
	MetaProtocol = unix.NFT_META_L4PROTO

	NetworkHeader   = unix.NFT_PAYLOAD_NETWORK_HEADER
	TransportHeader = unix.NFT_PAYLOAD_TRANSPORT_HEADER
)

func (Meta) name() string    { return "meta" }
func (Compare) name() string { return "cmp" }
func (Payload) name() string { return "payload" }
func (Lookup) name() string  { return "lookup" }
func (Counter) name() string { return "counter" }
func (Verdict) name() string { return "immediate" }
func (o Other) name() string { return o.Name }

func (e Meta) encode(ae *netlink.AttributeEncoder) {
	ae.Uint32(unix.NFTA_META_KEY, e.Key)
	ae.Uint32(unix.NFTA_META_DREG, register)
}

func (e Compare) encode(ae *netlink.AttributeEncoder) {
	ae.Uint32(unix.NFTA_CMP_SREG, register)
	ae.Uint32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
	nested(ae, unix.NFTA_CMP_DATA, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(unix.NFTA_DATA_VALUE, []byte(e.Value))
	})
}

func (e Payload) encode(ae *netlink.AttributeEncoder) {
	ae.Uint32(unix.NFTA_PAYLOAD_DREG, register)
	ae.Uint32(unix.NFTA_PAYLOAD_BASE, e.Base)
	ae.Uint32(unix.NFTA_PAYLOAD_OFFSET, e.Offset)
	ae.Uint32(unix.NFTA_PAYLOAD_LEN, e.Len)
}

func (e Lookup) encode(ae *netlink.AttributeEncoder) {
	ae.String(unix.NFTA_LOOKUP_SET, e.Set)
	ae.Uint32(unix.NFTA_LOOKUP_SREG, register)
}

func (e Counter) encode(ae *netlink.AttributeEncoder) {
	ae.Uint64(unix.NFTA_COUNTER_BYTES, e.Bytes)
	ae.Uint64(unix.NFTA_COUNTER_PACKETS, e.Packets)
}

func (e Verdict) encode(ae *netlink.AttributeEncoder) {
	ae.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
	nested(ae, unix.NFTA_IMMEDIATE_DATA, func(ae *netlink.AttributeEncoder) {
		nested(ae, unix.NFTA_DATA_VERDICT, func(ae *netlink.AttributeEncoder) {
			ae.Uint32(unix.NFTA_VERDICT_CODE, e.Code)
		})
	})
}

func (Other) encode(*netlink.AttributeEncoder) {}

func parseExpression(data []byte) (Expression, error) {
	top, err := parseFields(data)
	if err != nil {
		return nil, fmt.Errorf("an expression: %w", err)
	}
	name := top.text(unix.NFTA_EXPR_NAME)
	content := top.within(unix.NFTA_EXPR_DATA)
	e := content.expression(name)
	// Leftover attributes: not written by this package.
	if e == nil || content.broken || len(content.left) > 0 || len(top.left) > 0 || top.broken {
		return Other{Name: name}, nil
	}
	return e, nil
}

// expression returns nil if it is unknown.
func (f *fields) expression(name string) Expression {
	switch name {
	case "meta":
		if f.number(unix.NFTA_META_DREG) == register {
			return Meta{Key: f.number(unix.NFTA_META_KEY)}
		}
	case "cmp":
		if f.number(unix.NFTA_CMP_SREG) == register && f.number(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
			value := f.within(unix.NFTA_CMP_DATA)
			return Compare{Value: string(value.take(unix.NFTA_DATA_VALUE))}
		}
	case "payload":
		if f.number(unix.NFTA_PAYLOAD_DREG) == register {
			return Payload{f.number(unix.NFTA_PAYLOAD_BASE), f.number(unix.NFTA_PAYLOAD_OFFSET), f.number(unix.NFTA_PAYLOAD_LEN)}
		}
	case "lookup":
		// The kernel also reports zero flags; this package sets no others.
		flags, reported := f.left[unix.NFTA_LOOKUP_FLAGS]
		if reported && string(flags) == "\x00\x00\x00\x00" {
			delete(f.left, unix.NFTA_LOOKUP_FLAGS)
		}
		if f.number(unix.NFTA_LOOKUP_SREG) == register {
			return Lookup{Set: f.text(unix.NFTA_LOOKUP_SET)}
		}
	case "counter":
		delete(f.left, unix.NFTA_COUNTER_PAD)
		return Counter{Packets: f.number64(unix.NFTA_COUNTER_PACKETS), Bytes: f.number64(unix.NFTA_COUNTER_BYTES)}
	case "immediate":
		if f.number(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
			verdict := f.within(unix.NFTA_IMMEDIATE_DATA).within(unix.NFTA_DATA_VERDICT)
			code := verdict.number(unix.NFTA_VERDICT_CODE)
			if len(verdict.left) == 0 && !verdict.broken {
				return Verdict{Code: code}
			}
		}
	}
	return nil
}

// fields holds attributes until consumed; broken: one was missing, repeated or
// had the wrong length.
type fields struct {
	left   map[uint16][]byte
	broken bool
}

func parseFields(data []byte) (*fields, error) {
	f := &fields{left: map[uint16][]byte{}}
	err := decode(data, func(ad *netlink.AttributeDecoder) {
		if _, twice := f.left[ad.Type()]; twice {
			f.broken = true
		}
		f.left[ad.Type()] = ad.Bytes()
	})
	return f, err
}

func (f *fields) take(kind uint16) []byte {
	data, ok := f.left[kind]
	if !ok {
		f.broken = true
	}
	delete(f.left, kind)
	return data
}

func (f *fields) number(kind uint16) uint32 {
	data := f.take(kind)
	if len(data) != 4 {
		f.broken = true
		return ^uint32(0)
	}
	return binary.BigEndian.Uint32(data)
}

func (f *fields) number64(kind uint16) uint64 {
	data := f.take(kind)
	if len(data) != 8 {
		f.broken = true
		return 0
	}
	return binary.BigEndian.Uint64(data)
}

func (f *fields) text(kind uint16) string {
	return strings.TrimSuffix(string(f.take(kind)), "\x00")
}

func (f *fields) within(kind uint16) *fields {
	inner, err := parseFields(f.take(kind))
	if err != nil {
		inner.broken, f.broken = true, true
	}
	return inner
}
