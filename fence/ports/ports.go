// Package ports is a storage server's set of ports, whose traffic a fence drops
// and whose sessions it ends.
package ports

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// Range is inclusive.
type Range struct{ First, Last uint16 }

func (r Range) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Set is a set of ports; zero is all traffic of any protocol.
type Set struct {
	ranges []Range // disjoint, not adjacent, sorted
}

// All is all traffic.
func All() Set { return Set{} }

type protocol struct {
	name   string
	ranges []Range
}

// protocols has IANA's ports, and default ranges: of Ceph's daemons
// (ms_bind_port_min and ms_bind_port_max), of GlusterFS's bricks (base-port and
// the 512 after it), and of DRBD's resources (from 7788).
func protocols() []protocol {
	return []protocol{
		{"nvme-tcp", []Range{{4420, 4420}, {8009, 8009}}},
		{"iscsi", []Range{{3260, 3260}}},
		{"nfs", []Range{{2049, 2049}}},
		{"ceph", []Range{{3300, 3300}, {6789, 6789}, {6800, 7568}}},
		{"nbd", []Range{{10809, 10809}}},
		{"smb", []Range{{139, 139}, {445, 445}}},
		{"drbd", []Range{{7788, 7799}}},
		{"glusterfs", []Range{{24007, 24008}, {49152, 49664}}},
	}
}

// Protocols returns Parse's names, for help texts.
func Protocols() []string {
	var names []string
	for _, p := range protocols() {
		names = append(names, p.name)
	}
	return names
}

// Storage returns all known protocols' ports.
func Storage() Set {
	var all []Range
	for _, p := range protocols() {
		all = append(all, p.ranges...)
	}
	return Set{merged(all)}
}

// Parse parses at least one word such as 4420, 6800-7568 and nvme-tcp.
func Parse(words []string) (Set, error) {
	var all []Range
	for _, word := range words {
		ranges, err := parse(strings.TrimSpace(word))
		if err != nil {
			return Set{}, err
		}
		all = append(all, ranges...)
	}
	if len(all) == 0 {
		return Set{}, fmt.Errorf("no ports specified: use ports, ranges such as 6800-7568, or protocols (%s)", strings.Join(Protocols(), ", "))
	}
	return Set{merged(all)}, nil
}

func parse(word string) ([]Range, error) {
	for _, p := range protocols() {
		if p.name == word {
			return p.ranges, nil
		}
	}
	first, last, isRange := strings.Cut(word, "-")
	if word == "" || strings.Trim(word, "0123456789-") != "" {
		if n := errs.Nearest(word, Protocols()); n != "" {
			return nil, fmt.Errorf("%q is neither a port nor a known protocol; did you mean %q?", word, n)
		}
		return nil, fmt.Errorf("%q is neither a port, nor a range such as 6800-7568, nor one of %s", word, strings.Join(Protocols(), ", "))
	}
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	if err == nil && from == 0 {
		err = fmt.Errorf("port 0 is not valid")
	}
	to, errTo := strconv.ParseUint(last, 10, 16)
	switch {
	case err != nil || errTo != nil:
		return nil, fmt.Errorf("%q is not a port or range of ports from 1 to 65535", word)
	case from > to:
		return nil, fmt.Errorf("range %q is reversed: write %d-%d", word, to, from)
	}
	return []Range{{uint16(from), uint16(to)}}, nil
}

func merged(all []Range) []Range {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Range) int { return int(a.First) - int(b.First) })
	var out []Range
	for _, r := range all {
		if n := len(out); n > 0 && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// IsAll reports whether the set is all traffic.
func (s Set) IsAll() bool { return len(s.ranges) == 0 }

// Ranges returns the ports, disjoint and sorted; empty is all traffic.
func (s Set) Ranges() []Range { return slices.Clone(s.ranges) }

func (s Set) Contains(port uint16) bool {
	return s.IsAll() || slices.ContainsFunc(s.ranges, func(r Range) bool { return r.First <= port && port <= r.Last })
}

func (s Set) String() string {
	if s.IsAll() {
		return "all"
	}
	words := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		words[i] = r.String()
	}
	return strings.Join(words, ",")
}
