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

	phase, generation, problems, held, left, unacknowledged, since *prometheus.Desc
}

const namespace = "cleat_sriov_daemon_"

func newMetrics(r prometheus.Registerer, status func() Status) (*metrics, error) {
	buckets := prometheus.ExponentialBuckets(0.001, 4, 9) // 1 ms to 65 s
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+name, help, labels, nil)
	}
	m := &metrics{
		status: status,
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: namespace + "step_duration_seconds", Help: "How long steps on functions took.", Buckets: buckets}, []string{"step", "result"}),
		observations: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: namespace + "look_duration_seconds", Help: "How long observations of the node took.", Buckets: buckets}),
		withdrawals: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: namespace + "withdrawal_duration_seconds", Help: "How long the plugin took to withdraw its devices.", Buckets: buckets}),
		phase:          gauge("phase", "1 for the phase that the daemon is in.", "phase"),
		since:          gauge("phase_since_seconds", "When the phase began, in seconds since 1970."),
		generation:     gauge("generation", "Generation of the newest valid node state."),
		left:           gauge("steps_left", "Steps of the last plan."),
		problems:       gauge("problems", "Problems that no step can solve."),
		held:           gauge("blocking_functions", "Functions that pods hold and that have to change."),
		unacknowledged: gauge("unacknowledged", "1 when the plugin could not acknowledge the last withdrawal."),
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
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.phase, m.since, m.generation, m.left, m.problems, m.held, m.unacknowledged} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.status()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, p := range Phases() {
		gauge(m.phase, truth(p == s.Phase), string(p))
	}
	gauge(m.since, float64(s.Since.UnixMilli())/1000)
	gauge(m.generation, float64(s.Generation))
	gauge(m.left, float64(len(s.Steps)))
	gauge(m.problems, float64(len(s.Problems)))
	gauge(m.held, float64(len(s.Held)))
	gauge(m.unacknowledged, truth(s.Unacknowledged != ""))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
