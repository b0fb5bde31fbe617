// Package nft is a client of the kernel's nf_tables for tables of the family
// inet: atomic batches of changes, reads of tables, chains, sets, elements and
// rules with their expressions, and notifications of changes by any process.
// Unlike existing libraries it supports table owners, and passing the owner, a
// socket, from one process to another.
package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Constants of linux/netfilter/nf_tables.h that x/sys/unix lacks.
const (
	tableOwner    = 7 // NFTA_TABLE_OWNER: the port of the owner's socket
	chainFlags    = 10
	setElemKeyEnd = 10
)

// The flags of a table.
const (
	Dormant = 0x1 // its chains see no packets
	Owner   = 0x2 // only the socket that created it can change it; without Persist it is deleted with that socket
	Persist = 0x4 // it survives the owner's socket, and can then get a new owner; since Linux 6.9
)

// Table is a table of the family inet.
type Table struct {
	Name  string
	Flags uint32
	Owner uint32 // port of the owner's socket; zero without an owner
	Use   uint32 // number of chains, sets and other objects in it
}

// Chain is a base chain, which is attached to a hook.
type Chain struct {
	Table, Name string
	Type        string // such as "filter"
	Hook        uint32
	Priority    int32
	Policy      uint32 // a verdict
	Flags       uint32 // as read: 1 for a base chain
}

// Hooks of the family inet, verdicts, and the priority before connection
// tracking, of linux/netfilter.h and netfilter_ipv4.h.
const (
	HookPrerouting = 0
	HookInput      = 1

	Drop   = 0
	Accept = 1

	PriorityRaw = -300

	BaseChain = 1 // flag of a chain that is attached to a hook
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
// is the first key after one; an interval without an end extends to the last
// possible key.
type Element struct {
	Key []byte
	End bool
	// Odd describes other properties reported by the kernel, such as the
	// catch-all element or a timeout. It is not set when adding elements.
	Odd string
}

// Rule is a rule of a chain.
type Rule struct {
	Table, Chain string
	Expressions  []Expression
}

func message(kind uint16, flags netlink.HeaderFlags, data []byte) netlink.Message {
	header := []byte{unix.NFPROTO_INET, 0, 0, 0} // struct nfgenmsg
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: netlink.Request | flags,
		},
		Data: append(header, data...),
	}
}

// batchEdge returns the message that starts or ends a batch.
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

// nested encodes nested attributes.
func nested(ae *netlink.AttributeEncoder, kind uint16, fill func(*netlink.AttributeEncoder)) {
	ae.Nested(kind, func(inner *netlink.AttributeEncoder) error {
		fill(inner)
		return nil
	})
}

// decode calls take for each attribute.
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

// within decodes nested attributes.
func within(ad *netlink.AttributeDecoder, take func(*netlink.AttributeDecoder)) {
	ad.Do(func(data []byte) error { return decode(data, take) })
}
