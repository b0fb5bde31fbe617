package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PFItem is an element of pfNames or rootDevices: a PF, and which of its
// functions: "eth0" is all of them, "eth0#0-3,5" are five.
type PFItem struct {
	Text  string
	Name  string // of the PF, or its address
	All   bool
	Spans []IndexRange // unless All
}

// IndexRange is a range of function indexes, both ends included. One with First
// above Last is empty.
type IndexRange struct{ First, Last int }

// Has reports whether the item names the function with an index.
func (i PFItem) Has(index int) bool {
	return i.All || slices.ContainsFunc(i.Spans, func(s IndexRange) bool { return s.First <= index && index <= s.Last })
}

// ParsePFItem reads one item. With an error the Item is still what upstream
// makes of it: the spans before the first one that cannot be understood.
func ParsePFItem(text string) (PFItem, error) {
	name, functions, some := strings.Cut(text, "#")
	i := PFItem{Text: text, Name: name, All: !some}
	if !some {
		return i, nil
	}
	if strings.Contains(functions, "#") {
		return i, fmt.Errorf("%q has more than one #: it names no function, want for example %q", text, name+"#0-3,5")
	}
	for part := range strings.SplitSeq(functions, ",") {
		s, err := parseIndexRange(part)
		if err != nil {
			return i, fmt.Errorf("%q: %w; it and what follows it name no function, want for example %q", text, err, name+"#0-3,5")
		}
		i.Spans = append(i.Spans, s)
	}
	return i, nil
}

// UnmarshalText is ParsePFItem.
func (i *PFItem) UnmarshalText(text []byte) (err error) {
	*i, err = ParsePFItem(string(text))
	return err
}

func parseIndexRange(text string) (IndexRange, error) {
	low, high, isRange := strings.Cut(text, "-")
	first, err := strconv.Atoi(low)
	if err != nil {
		return IndexRange{}, fmt.Errorf("%q is neither a number nor a range", text)
	}
	if !isRange {
		return IndexRange{First: first, Last: first}, nil
	}
	last, err := strconv.Atoi(high)
	if err != nil || strings.Contains(high, "-") {
		return IndexRange{}, fmt.Errorf("%q is neither a number nor a range", text)
	}
	return IndexRange{First: first, Last: last}, nil
}
