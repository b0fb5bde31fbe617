package mkfstest

import (
	"strconv"
	"strings"
	"testing"
)

func effective(t testing.TB, status string) uint64 {
	t.Helper()
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return mask
		}
	}
	t.Fatal("/proc/self/status has no line CapEff")
	return 0
}
