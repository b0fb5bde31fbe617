package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PFItem is an element of pfNames or rootDevices: a PF and its selected
// functions. "eth0" selects all, "eth0#0-3,5" five.
type PFItem struct {
	Text  string
	Name  string // of the PF, or its address
	All   bool
	Spans []IndexRange // unless All
}

// IndexRange is a range of function indexes, both ends included. It is empty if
// First is above Last.
type IndexRange struct{ First, Last int }

// Has reports whether the item selects the function with an index.
func (i PFItem) Has(index int) bool {
	return i.All || slices.ContainsFunc(i.Spans, func(s IndexRange) bool { return s.First <= index && index <= s.Last })
}

// ParsePFItem parses one item. With an error the PFItem is what upstream makes of
// the text: the ranges before the first one that cannot be parsed.
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
