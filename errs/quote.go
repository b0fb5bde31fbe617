package errs

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const maxQuoted = 128

// Quote returns s in double quotes, with control characters escaped. It
// truncates s after maxQuoted bytes, and then appends the length.
func Quote(s string) string {
	if len(s) <= maxQuoted {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:boundary(s, maxQuoted)], len(s))
}

// Clip returns s as valid UTF-8 of at most limit bytes; a truncated string ends with "…".
func Clip(s string, limit int) string {
	const ellipsis = "…"
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	return s[:boundary(s, limit-len(ellipsis))] + ellipsis
}

func boundary(s string, end int) int {
	end = max(end, 0)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return end
}
