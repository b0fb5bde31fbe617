package blocklist

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

const (
	// expiry of new entries, and the rest below which they are renewed.
	expiry     = 5 * 365 * 24 * time.Hour
	renewBelow = expiry / 5
	// maxHostBits is the size of a block, 256 addresses, where the release has no
	// ranges: each address gets an entry of its own.
	maxHostBits = 8
)

// entries are those that fences need.
type entries struct {
	blocks    []entry
	clients   []entry // other addresses of clients in the blocks
	instances []entry
}

func (w entries) all() []entry { return slices.Concat(w.blocks, w.clients, w.instances) }

// required returns the entries for a set of fences. Unsupported: the release
// cannot block one of the blocks.
func required(set volume.FenceSet, instances []volume.Instance, hasRanges bool) (w entries, err error) {
	for _, b := range set.Blocks {
		list, err := entriesOf(b, hasRanges)
		if err != nil {
			return w, err
		}
		w.blocks = append(w.blocks, list...)
	}
	isIn := func(a netip.Addr) bool {
		return slices.ContainsFunc(set.Blocks, func(b netip.Prefix) bool { return b.Contains(a) })
	}
	for _, c := range set.Clients {
		for _, a := range c.Addrs {
			if e := addressEntry(a); !isIn(a) && !slices.Contains(w.clients, e) {
				w.clients = append(w.clients, e)
			}
		}
	}
	known := map[entry]bool{}
	for _, i := range instances {
		e := addressEntry(i.Addr)
		if e.nonce = i.Nonce; !known[e] {
			known[e] = true
			w.instances = append(w.instances, e)
		}
	}
	return w, nil
}

func entriesOf(b netip.Prefix, hasRanges bool) ([]entry, error) {
	hosts := b.Addr().BitLen() - b.Bits()
	switch {
	case hosts == 0:
		return []entry{addressEntry(b.Addr())}, nil
	case hasRanges && b.Bits() == 0: // which Ceph refuses
		low := netip.PrefixFrom(b.Addr(), 1)
		high := b.Addr().AsSlice()
		high[0] = 0x80
		top, _ := netip.AddrFromSlice(high)
		return []entry{{block: low, ranged: true}, {block: netip.PrefixFrom(top, 1), ranged: true}}, nil
	case hasRanges:
		return []entry{{block: b, ranged: true}}, nil
	case hosts > maxHostBits:
		return nil, errs.Errorf(errs.Unsupported, "block %s has more than %d addresses, and this Ceph release cannot block ranges as 16.2.15 can; fence the addresses of the nodes, or update Ceph", b, 1<<maxHostBits)
	}
	var list []entry
	for a := b.Addr(); a.IsValid() && b.Contains(a); a = a.Next() {
		list = append(list, addressEntry(a))
	}
	return list, nil
}

// own is the record of an address or range that cleat has put on the blocklist,
// or is about to.
type own struct {
	Block   netip.Prefix `json:"block"`
	Range   bool         `json:"range,omitempty"`
	OfFence bool         `json:"ofFence"` // it is part of a fenced block
	// Foreign is when the entry would expire that another program had made
	// before; zero: it did not exist.
	Foreign time.Time `json:"foreign,omitzero"`
}

func (o own) entry() entry { return entry{block: o.Block, ranged: o.Range} }

// command changes the blocklist.
type command struct {
	entry  entry
	expire time.Duration // 0: remove the entry
}

func (c command) json() ([]byte, error) {
	text := struct {
		Prefix string      `json:"prefix"`
		Range  string      `json:"range,omitempty"`
		Op     string      `json:"blocklistop"`
		Addr   string      `json:"addr"`
		Expire json.Number `json:"expire,omitempty"`
	}{Prefix: "osd blocklist", Op: "rm", Addr: c.entry.String()}
	if c.entry.ranged {
		text.Range = "range" // without it Ceph takes the length for a nonce
	}
	if c.expire > 0 {
		// The monitors refuse a number without a fraction.
		text.Op, text.Expire = "add", json.Number(fmt.Sprintf("%.1f", c.expire.Seconds()))
	}
	return json.Marshal(text)
}

// BlockInstance returns the command that puts one client instance on the
// blocklist, for five years. It refuses an address of more than that.
func BlockInstance(address string) ([]byte, error) {
	w, port, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	if port != 0 || w.Nonce == 0 {
		return nil, fmt.Errorf("address %q is not of one client instance, expected IP:0/NONCE", address)
	}
	e := addressEntry(w.Addr)
	e.nonce = w.Nonce
	return command{e, expiry}.json()
}

// steps lead from the observed blocklist to the required entries: record, add,
// then remove and forget.
type steps struct {
	record      []own
	add, remove []command
	forget      []own
}

// makePlan is pure. It removes only what is recorded as own; an entry of another
// program with the same address keeps its expiry.
func makePlan(want entries, owned []own, observed osdMap, now time.Time) (s steps) {
	have := map[entry]own{}
	for _, o := range owned {
		have[o.entry()] = o
	}
	needed := map[entry]bool{}
	for i, e := range want.all() {
		if !isHeld(observed, e, now) {
			s.add = append(s.add, command{e, expiry})
		}
		if e.nonce != 0 {
			continue // never removed
		}
		needed[e] = true
		next := own{Block: e.block, Range: e.ranged, OfFence: i < len(want.blocks)}
		before, recorded := have[e]
		if next.Foreign = before.Foreign; !recorded && observed.until[e].After(now) {
			next.Foreign = observed.until[e]
		}
		if !recorded || before.OfFence != next.OfFence {
			s.record = append(s.record, next)
		}
	}
	for _, o := range owned {
		e := o.entry()
		if needed[e] {
			continue
		}
		s.forget = append(s.forget, o)
		until, exists := observed.until[e]
		switch rest := o.Foreign.Sub(now).Truncate(time.Second); {
		case !exists || until.Equal(o.Foreign):
		case rest > 0:
			s.remove = append(s.remove, command{e, rest})
		default:
			s.remove = append(s.remove, command{e, 0})
		}
	}
	return s
}

// removesPartOf reports whether an entry that is to be removed has addresses of
// required entries.
func (s steps) removesPartOf(want entries) bool {
	return slices.ContainsFunc(s.remove, func(c command) bool {
		return slices.ContainsFunc(want.all(), func(e entry) bool { return e.block.Overlaps(c.entry.block) })
	})
}

// isHeld reports whether an entry exists and is not about to expire.
func isHeld(m osdMap, e entry, now time.Time) bool { return m.until[e].Sub(now) >= renewBelow }
