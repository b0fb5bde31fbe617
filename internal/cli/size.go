package cli

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cleatproject/cleat/errs"
)

// Size in bytes, a pflag.Value: 1GiB, 500M, 1.5Ti. Ki is 1024 and k is 1000,
// with or without a B.
type Size int64

type unit struct {
	name  string // with B
	bytes int64
}

// units has the binary ones first.
func units() []unit {
	return []unit{
		{"EiB", 1 << 60}, {"PiB", 1 << 50}, {"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"EB", 1e18}, {"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3},
	}
}

func binaryUnits() []unit { return units()[:6] }

var sizePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([0-9]{1,30}(?:\.[0-9]{1,30})?) ?([A-Za-z]*)$`)
})

// ParseSize requires a whole number of bytes.
func ParseSize(text string) (Size, error) {
	parts := sizePattern().FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("%q is not a size: use a number of bytes, or a number with a unit such as 10GiB or 500M", text)
	}
	factor, err := unitOf(parts[2])
	if err != nil {
		return 0, fmt.Errorf("%q is not a size: %w", text, err)
	}
	number, _ := new(big.Rat).SetString(parts[1])
	number.Mul(number, new(big.Rat).SetInt64(factor))
	switch {
	case !number.IsInt():
		return 0, fmt.Errorf("%q is not a whole number of bytes", text)
	case !number.Num().IsInt64():
		return 0, fmt.Errorf("%q exceeds the maximum size of %d bytes", text, int64(math.MaxInt64))
	}
	return Size(number.Num().Int64()), nil
}

func unitOf(word string) (int64, error) {
	if word == "" || word == "B" {
		return 1, nil
	}
	var names []string
	for _, u := range units() {
		if word == u.name || word+"B" == u.name {
			return u.bytes, nil
		}
		names = append(names, u.name)
	}
	if n := errs.Nearest(word, names); n != "" {
		return 0, fmt.Errorf("unknown unit %q; did you mean %q?", word, n)
	}
	return 0, fmt.Errorf("unknown unit %q, use one of %s", word, strings.Join(names, ", "))
}

// String does not round, and uses the largest possible unit.
func (s Size) String() string {
	for _, u := range binaryUnits() {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Set implements pflag.Value.
func (s *Size) Set(text string) error {
	parsed, err := ParseSize(text)
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// Type implements pflag.Value.
func (s *Size) Type() string { return "size" }

// HumanBytes rounds: 1.5 GiB.
func HumanBytes(n int64) string {
	units := binaryUnits()
	for i, u := range units {
		if n >= u.bytes || n <= -u.bytes {
			text := strconv.FormatFloat(float64(n)/float64(u.bytes), 'f', 1, 64)
			if i > 0 && (text == "1024.0" || text == "-1024.0") { // rounded up to the next unit
				text, u = strings.Replace(text, "1024.0", "1.0", 1), units[i-1]
			}
			return strings.TrimSuffix(text, ".0") + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}
