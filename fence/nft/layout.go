package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/internal/linux/nft"
)

type layout struct {
	table string
	flags uint32
	ports ports.Set
}

const (
	clients4  = "clients4"
	clients6  = "clients6"
	protocols = "protocols"
	portSet   = "ports"
)

// chains: prerouting before connection tracking matches known connections too;
// input has redirected ports as the server's, and reassembled fragments.
func (l layout) chains() []nft.Chain {
	chain := func(name string, hook uint32) nft.Chain {
		return nft.Chain{Table: l.table, Name: name, Type: "filter", Hook: hook, Priority: nft.PriorityRaw, Policy: nft.Accept}
	}
	return []nft.Chain{chain("prerouting", nft.HookPrerouting), chain("input", nft.HookInput)}
}

func (l layout) sets() []nft.Set {
	set := func(name string, keyType, keyLen, flags uint32) nft.Set {
		return nft.Set{Table: l.table, Name: name, KeyType: keyType, KeyLen: keyLen, Flags: flags}
	}
	sets := []nft.Set{
		set(clients4, nft.KeyIPv4, 4, nft.Intervals),
		set(clients6, nft.KeyIPv6, 16, nft.Intervals),
	}
	if !l.ports.IsAll() {
		sets = append(sets, set(protocols, nft.KeyProtocol, 1, 0), set(portSet, nft.KeyPort, 2, nft.Intervals))
	}
	return sets
}

// fixed returns the elements of sets without clients.
func (l layout) fixed() map[string][]nft.Element {
	if l.ports.IsAll() {
		return nil
	}
	fixed := map[string][]nft.Element{
		protocols: {{Key: []byte{unix.IPPROTO_TCP}}, {Key: []byte{unix.IPPROTO_UDP}}},
	}
	for _, r := range l.ports.Ranges() {
		fixed[portSet] = append(fixed[portSet], nft.Element{Key: binary.BigEndian.AppendUint16(nil, r.First)})
		if r.Last < 65535 {
			fixed[portSet] = append(fixed[portSet], nft.Element{Key: binary.BigEndian.AppendUint16(nil, r.Last+1), End: true})
		}
	}
	return fixed
}

// rules has one per chain and address family.
func (l layout) rules() []nft.Rule {
	var rules []nft.Rule
	for _, c := range l.chains() {
		rules = append(rules,
			nft.Rule{Table: l.table, Chain: c.Name, Expressions: l.drop(unix.NFPROTO_IPV4, nft.Payload{Base: nft.NetworkHeader, Offset: 12, Len: 4}, clients4)},
			nft.Rule{Table: l.table, Chain: c.Name, Expressions: l.drop(unix.NFPROTO_IPV6, nft.Payload{Base: nft.NetworkHeader, Offset: 8, Len: 16}, clients6)},
		)
	}
	return rules
}

func (l layout) drop(family byte, source nft.Payload, clients string) []nft.Expression {
	match := []nft.Expression{
		nft.Meta{Key: nft.MetaFamily}, nft.Compare{Value: string([]byte{family})},
		source, nft.Lookup{Set: clients},
	}
	if !l.ports.IsAll() {
		match = append(match,
			nft.Meta{Key: nft.MetaProtocol}, nft.Lookup{Set: protocols},
			nft.Payload{Base: nft.TransportHeader, Offset: 2, Len: 2}, nft.Lookup{Set: portSet},
		)
	}
	return append(match, nft.Counter{}, nft.Verdict{Code: nft.Drop})
}

// renew replaces the clients in a table that matches its layout except for its
// owner.
func (l layout) renew(b *nft.Batch, v4, v6 []nft.Element) {
	if l.flags&nft.Owner != 0 {
		b.SetTable(l.table, l.flags)
	}
	b.FlushSet(l.table, clients4)
	b.FlushSet(l.table, clients6)
	b.AddElements(l.table, clients4, v4)
	b.AddElements(l.table, clients6, v6)
}

// install recreates the table.
func (l layout) install(b *nft.Batch, v4, v6 []nft.Element) {
	b.AddTable(l.table) // DeleteTable fails without it
	b.DeleteTable(l.table)
	b.SetTable(l.table, l.flags)
	for _, s := range l.sets() {
		b.AddSet(s)
	}
	for name, fixed := range l.fixed() {
		b.AddElements(l.table, name, fixed)
	}
	b.AddElements(l.table, clients4, v4)
	b.AddElements(l.table, clients6, v6)
	for _, c := range l.chains() {
		b.AddChain(c)
	}
	for _, r := range l.rules() {
		b.AddRule(r)
	}
}

// reading is a table as read; missing objects are zero.
type reading struct {
	table    nft.Table
	chains   []nft.Chain
	sets     []nft.Set
	rules    []nft.Rule
	elements map[string][]nft.Element // of client sets only on request
}

// fault returns the first difference from the layout. ownerFault checks the
// owner.
func (l layout) fault(r reading) error {
	chains, sets := l.chains(), l.sets()
	if r.table.Name == "" {
		return fmt.Errorf("table inet %s does not exist", l.table)
	}
	if rest := r.table.Flags &^ nft.Owner; rest != l.flags&^nft.Owner {
		return fmt.Errorf("table inet %s has flags %#x instead of %#x", l.table, r.table.Flags, l.flags)
	}
	for i, want := range chains {
		if want.Flags = nft.BaseChain; r.chains[i] != want {
			return fmt.Errorf("chain %s of table inet %s is %+v instead of %+v", want.Name, l.table, r.chains[i], want)
		}
	}
	for i, want := range sets {
		if r.sets[i] != want {
			return fmt.Errorf("set %s of table inet %s is %+v instead of %+v", want.Name, l.table, r.sets[i], want)
		}
	}
	if want := uint32(len(chains) + len(sets)); r.table.Use != want {
		return fmt.Errorf("table inet %s has %d chains, sets and other objects instead of %d", l.table, r.table.Use, want)
	}
	for name, want := range l.fixed() {
		if !sameElements(want, r.elements[name]) {
			return fmt.Errorf("set %s of table inet %s has unexpected elements", name, l.table)
		}
	}
	return l.ruleFault(r.rules)
}

func (l layout) ruleFault(rules []nft.Rule) error {
	want := l.rules()
	if len(rules) != len(want) {
		return fmt.Errorf("table inet %s has %d rules instead of %d", l.table, len(rules), len(want))
	}
	// Chains have the kernel's order.
	for _, c := range l.chains() {
		ours := func(r nft.Rule) bool { return r.Chain != c.Name }
		was, must := slices.DeleteFunc(slices.Clone(rules), ours), slices.DeleteFunc(slices.Clone(want), ours)
		if !slices.EqualFunc(was, must, sameRule) {
			return fmt.Errorf("chain %s of table inet %s has unexpected rules", c.Name, l.table)
		}
	}
	return nil
}

func sameRule(a, b nft.Rule) bool {
	return slices.EqualFunc(a.Expressions, b.Expressions, func(x, y nft.Expression) bool {
		_, countsX := x.(nft.Counter)
		_, countsY := y.(nft.Counter)
		return x == y || countsX && countsY
	})
}

func sameElements(a, b []nft.Element) bool {
	sorted := func(all []nft.Element) []string {
		var keys []string
		for _, e := range all {
			keys = append(keys, fmt.Sprintf("%x %t %s", e.Key, e.End, e.Odd))
		}
		slices.Sort(keys)
		return keys
	}
	return slices.Equal(sorted(a), sorted(b))
}

func (l layout) ownerFault(t nft.Table, port uint32) error {
	switch {
	case l.flags&nft.Owner == 0 && t.Owner == 0:
		return nil
	case t.Flags&nft.Owner == 0:
		return fmt.Errorf("table inet %s has lost its owner", l.table)
	case t.Owner != port:
		return fmt.Errorf("table inet %s is owned by netlink port %d (often a process ID) instead of %d", l.table, t.Owner, port)
	}
	return nil
}

func dropped(rules []nft.Rule, clients string) uint64 {
	var packets uint64
	for _, r := range rules {
		if !slices.Contains(r.Expressions, nft.Expression(nft.Lookup{Set: clients})) {
			continue
		}
		for _, e := range r.Expressions {
			if c, ok := e.(nft.Counter); ok {
				packets += c.Packets
			}
		}
	}
	return packets
}
