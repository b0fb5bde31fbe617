package testkit

import (
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// Metric returns the value of a metric in a registry: the number of samples of
// a histogram, the sum of several series, 0 without a series. Labels, as
// "result=ok", select series.
func Metric(t testing.TB, r interface {
	Gather() ([]*dto.MetricFamily, error)
}, name string, labels ...string) (sum float64) {
	t.Helper()
	for _, family := range Value(r.Gather())(t) {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if hasLabels(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func hasLabels(m *dto.Metric, labels []string) bool {
	return !slices.ContainsFunc(labels, func(label string) bool {
		return !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName()+"="+l.GetValue() == label })
	})
}
