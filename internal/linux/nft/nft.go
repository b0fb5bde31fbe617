// Package nft is a client of nf_tables for the family inet: atomic batches,
// reads, and notifications of changes by any process. Unlike existing libraries
// it supports table owners, and passing the owner, a socket, to another
// process.
package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// of linux/netfilter/nf_tables.h, missing in x/sys/unix
const (
	tableOwner    = 7
	chainFlags    = 10
	setElemKeyEnd = 10
)

const (
	Dormant = 0x1 // its chains see no packets
	Owner   = 0x2 // only the creating socket can change it; without Persist it is deleted with that socket
	Persist = 0x4 // survives the owner's socket, and can get a new owner; since Linux 6.9
)

// Table is a table of the family inet.
type Table struct {
	Name  string
	Flags uint32
	Owner uint32 // the socket's port; zero without an owner
	Use   uint32 // number of objects in it
}

// Chain is a base chain.
type Chain struct {
	Table, Name string
	Type        string // such as "filter"
	Hook        uint32
	Priority    int32
	Policy      uint32 // a verdict
	Flags       uint32 // as read: 1 for a base chain
}

// Of linux/netfilter.h and netfilter_ipv4.h.
const (
	HookPrerouting = 0
	HookInput      = 1

	Drop   = 0
	Accept = 1

	PriorityRaw = -300

	BaseChain = 1
)

// Set is a set of keys for Lookup.
type Set struct {
	Table, Name string
	KeyType     uint32 // how nft(8) displays the keys
	KeyLen      uint32 // bytes
	Flags       uint32
	Timeout     uint64 // milliseconds; zero if elements do not expire
}

// Key types as numbered by nft(8), and the flag of a set of intervals.
const (
	KeyIPv4     = 7
	KeyIPv6     = 8
	KeyProtocol = 12
	KeyPort     = 13

	Intervals = unix.NFT_SET_INTERVAL
)

// Element is a key of a set. In a set of intervals it starts one, or with End
// is the first key after it; an interval without an end is unlimited.
type Element struct {
	Key []byte
	End bool
	// Odd describes other properties as read, such as the catch-all element or
	// a timeout.
	Odd string
}

// Rule is a rule of a chain.
type Rule struct {
	Table, Chain string
	Expressions  []Expression
}

func message(kind uint16, flags netlink.HeaderFlags, data []byte) netlink.Message {
	header := []byte{unix.NFPROTO_INET, 0, 0, 0}
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: netlink.Request | flags,
		},
		Data: append(header, data...),
	}
}

// batchEdge starts or ends a batch.
func batchEdge(kind netlink.HeaderType) netlink.Message {
	data := []byte{0, 0}
	return netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request},
		Data:   binary.BigEndian.AppendUint16(data, unix.NFNL_SUBSYS_NFTABLES),
	}
}

// encode encodes attributes; numbers in nf_tables are big-endian.
func encode(fill func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	fill(ae)
	return ae.Encode()
}

func nested(ae *netlink.AttributeEncoder, kind uint16, fill func(*netlink.AttributeEncoder)) {
	ae.Nested(kind, func(inner *netlink.AttributeEncoder) error {
		fill(inner)
		return nil
	})
}

func decode(data []byte, take func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		take(ad)
	}
	return ad.Err()
}

func within(ad *netlink.AttributeDecoder, take func(*netlink.AttributeDecoder)) {
	ad.Do(func(data []byte) error { return decode(data, take) })
}
