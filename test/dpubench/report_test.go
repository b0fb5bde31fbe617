package dpubench

import (
	"slices"
	"testing"
	"time"
)

// timing is the durations of calls.
type timing struct {
	took      []time.Duration
	elapsed   time.Duration // of all calls, by all callers
	processor time.Duration // used by the plugin for all calls; 0: not measured
}

// add adds further calls.
func (t *timing) add(more timing) {
	t.took = append(t.took, more.took...)
	t.elapsed += more.elapsed
	t.processor += more.processor
}

// timed makes n calls, spread over callers.
func timed[C any](b *testing.B, callers []C, n int, call func(c C, i int) error) timing {
	b.Helper()
	began := time.Now()
	took := each(b, callers, n, call)
	return timing{took: took, elapsed: time.Since(began)}
}

// at returns the quantile of the durations.
func (t timing) at(share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(t.took))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

type metrics map[string]float64

func (t timing) metrics() metrics {
	return metrics{"p50-ms": ms(t.at(0.5)), "p99-ms": ms(t.at(0.99)), "calls/s": float64(len(t.took)) / t.elapsed.Seconds()}
}

// compare reports the plugin's calls beside SNAP's time for the same requests.
func compare(b *testing.B, plugin, snap timing) {
	b.Helper()
	all := plugin.metrics()
	all["snap-p50-ms"] = ms(snap.at(0.5))
	all["own-p50-ms"] = ms(plugin.at(0.5) - snap.at(0.5))
	if plugin.processor > 0 {
		all["cpu-ms"] = ms(plugin.processor) / float64(len(plugin.took))
	}
	all["ratio"] = float64(plugin.at(0.5)) / float64(max(snap.at(0.5), 1))
	report(b, all)
}

// report prints metrics instead of the meaningless total time.
func report(b *testing.B, all metrics) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	for unit, value := range all {
		b.ReportMetric(value, unit)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
