// Package nft speaks to the kernel's packet filter, nf_tables, for tables of
// the family inet: changes as one batch that happens whole or not at all,
// read-back of tables, chains, sets, elements and rules with their
// expressions, and the stream of changes that anybody makes. It can do what
// the libraries cannot: tables with an owner, and a socket that is handed from
// one process to another, since the owner of a table is a socket.
package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// What linux/netfilter/nf_tables.h says and x/sys/unix does not.
const (
	tableOwner    = 7 // NFTA_TABLE_OWNER: the port of the owner's socket
	chainFlags    = 10
	setElemKeyEnd = 10
)

// The flags of a table.
const (
	Dormant = 0x1 // its chains see no packets
	Owner   = 0x2 // only the socket that made it may change it; without Persist it goes with that socket
	Persist = 0x4 // it stays when its owner's socket is closed, and may be owned again; from Linux 6.9 on
)

// Table is a table of the family inet.
type Table struct {
	Name  string
	Flags uint32
	Owner uint32 // the port of the socket that owns it; zero when none does
	Use   uint32 // how many chains, sets and other objects are in it
}

// Chain is a base chain: it hangs on a hook.
type Chain struct {
	Table, Name string
	Type        string // as "filter"
	Hook        uint32
	Priority    int32
	Policy      uint32 // a verdict
	Flags       uint32 // as read: 1 for a base chain
}

// Hooks of the family inet, verdicts, and the priority before connection
// tracking; of linux/netfilter.h and netfilter_ipv4.h.
const (
	HookPrerouting = 0
	HookInput      = 1

	Drop   = 0
	Accept = 1

	PriorityRaw = -300

	BaseChain = 1 // the flag of one that hangs on a hook
)

// Set is a set that rules look packets up in.
type Set struct {
	Table, Name string
	KeyType     uint32 // what nft(8) shows the keys as
	KeyLen      uint32 // bytes
	Flags       uint32
	Timeout     uint64 // milliseconds; zero when elements stay
}

// Types of keys, as nft(8) numbers them, and the flag for a set of intervals.
const (
	KeyIPv4     = 7
	KeyIPv6     = 8
	KeyProtocol = 12
	KeyPort     = 13

	Intervals = unix.NFT_SET_INTERVAL
)

// Element is a key of a set. In a set of intervals it begins one, or with End
// ends one, of which it is no part any more; an interval without an end goes
// up to the last key there is.
type Element struct {
	Key []byte
	End bool
	// Odd says what else the kernel told of it, such as that it is no key but
	// the catch-all, or that it will go after a time. Never set to add one.
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

// batchEdge begins or ends a batch.
func batchEdge(kind netlink.HeaderType) netlink.Message {
	data := []byte{0, 0}
	return netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request},
		Data:   binary.BigEndian.AppendUint16(data, unix.NFNL_SUBSYS_NFTABLES),
	}
}

// encode makes attributes; numbers of nf_tables are big-endian.
func encode(fill func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	fill(ae)
	return ae.Encode()
}

// nested adds attributes within one.
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

// within decodes the attributes in one.
func within(ad *netlink.AttributeDecoder, take func(*netlink.AttributeDecoder)) {
	ad.Do(func(data []byte) error { return decode(data, take) })
}
