package daemon

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/sriov/plan"
)

type metrics struct {
	status       func() Status
	steps        *prometheus.HistogramVec
	observations prometheus.Histogram
	withdrawals  prometheus.Histogram
}

const namespace = "cleat_sriov_daemon_"

func newMetrics(r prometheus.Registerer, status func() Status) (*metrics, error) {
	duration := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)} // 1 ms to 65 s
	}
	m := &metrics{
		status:       status,
		steps:        prometheus.NewHistogramVec(duration(namespace+"step_duration_seconds", "Duration of steps in seconds, by type of step and result."), []string{"step", "result"}),
		observations: prometheus.NewHistogram(duration(namespace+"look_duration_seconds", "Duration of observations of the node in seconds.")),
		withdrawals:  prometheus.NewHistogram(duration(namespace+"withdrawal_duration_seconds", "Duration of withdrawals by the plugin in seconds.")),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m, m.steps, m.observations, m.withdrawals} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) applied(s plan.Step, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	kind := fmt.Sprintf("%T", s)
	m.steps.WithLabelValues(kind[strings.LastIndex(kind, ".")+1:], result).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.status()
	gauge := func(name, help string, value float64, phase ...string) {
		desc := prometheus.NewDesc(namespace+name, help, []string{"phase"}[:len(phase)], nil)
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, phase...)
	}
	for _, p := range Phases() {
		gauge("phase", "1 for the current phase of the daemon.", boolGauge(p == s.Phase), string(p))
	}
	gauge("phase_since_seconds", "Start time of the current phase in seconds since the Unix epoch.", float64(s.Since.UnixMilli())/1000)
	gauge("generation", "Generation of the newest valid node state.", float64(s.Generation))
	gauge("steps_left", "Number of steps of the last plan.", float64(len(s.Steps)))
	gauge("problems", "Number of problems that no step can resolve.", float64(len(s.Problems)))
	gauge("blocking_functions", "Number of functions that must be changed and that pods hold.", float64(len(s.Held)))
	gauge("closed_functions", "Number of PFs and VFs that are not offered while others are.", float64(len(s.Closed)))
	conditions := prometheus.NewDesc(namespace+"condition_count", "Drifts and failed repairs of a PF that was not in the desired state for ten minutes since.", []string{"function"}, nil)
	for _, c := range s.Conditions {
		ch <- prometheus.MustNewConstMetric(conditions, prometheus.GaugeValue, float64(c.Count), c.Function)
	}
	gauge("unacknowledged", "1 if the plugin could not acknowledge the last withdrawal.", boolGauge(s.Unacknowledged != ""))
}

func boolGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
