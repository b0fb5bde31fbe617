package nodestate

import (
	"fmt"
	"strconv"
	"strings"
)

// Range is a run of indexes of virtual functions, both ends included.
type Range struct{ First, Last int }

// maxIndex is the last index that a function can have: sriov_numvfs is a
// number of 16 bits.
const maxIndex = 1<<16 - 2

// Has reports whether the index is in the range.
func (r Range) Has(index int) bool { return r.First <= index && index <= r.Last }

// Overlaps reports whether both have an index.
func (r Range) Overlaps(o Range) bool { return r.First <= o.Last && o.First <= r.Last }

func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// ParseRange parses a vfRange: always two numbers, "0-3", or "2-2" for one
// function. The operator misreads lists and single numbers.
func ParseRange(text string) (Range, error) {
	low, high, two := strings.Cut(text, "-")
	first, ok := index(low)
	if ok && !two {
		return Range{}, fmt.Errorf("%q is no range of functions; for one function write \"%d-%d\"", text, first, first)
	}
	last, ok2 := index(high)
	switch {
	case strings.Contains(text, ","):
		return Range{}, fmt.Errorf("%q is a list: want one range such as \"0-3\", and a group for each", text)
	case !ok || !ok2:
		return Range{}, fmt.Errorf("%q is no range of functions: want the first and the last such as \"0-3\", at most %d", text, maxIndex)
	case first > last:
		return Range{}, fmt.Errorf("%q is an empty range: did you mean \"%d-%d\"?", text, last, first)
	}
	return Range{first, last}, nil
}

func index(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && n <= maxIndex
}
