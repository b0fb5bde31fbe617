package testkit

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Times are durations of calls of cleat, and of what does the same without it.
type Times struct{ OfCleat, OfBare []time.Duration }

// Cleat measures a call of cleat.
func (t *Times) Cleat(call func()) { t.OfCleat = append(t.OfCleat, timed(call)) }

// Bare measures the same without cleat.
func (t *Times) Bare(call func()) { t.OfBare = append(t.OfBare, timed(call)) }

func timed(call func()) time.Duration {
	began := time.Now()
	call()
	return time.Since(began)
}

// Report prints medians and their ratio instead of the time of both together.
func (t *Times) Report(b *testing.B) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(Median(t.OfCleat), "ms-p50")
	if len(t.OfBare) > 0 {
		b.ReportMetric(Median(t.OfBare), "ms-p50-bare")
		b.ReportMetric(Median(t.OfCleat)/Median(t.OfBare), "ratio")
	}
}

// Median returns the median in milliseconds.
func Median(all []time.Duration) float64 {
	all = slices.Sorted(slices.Values(all))
	return float64(all[len(all)/2].Microseconds()) / 1000
}

// Resident returns the resident memory of a process in MiB, with the pages that
// it shares with the page cache.
func Resident(t testing.TB, pid int) float64 {
	t.Helper()
	status := Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	_, after, _ := strings.Cut(string(status), "\nVmRSS:")
	var kib float64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatalf("no VmRSS in\n%s", status)
	}
	return kib / 1024
}
