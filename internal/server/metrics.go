package server

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	running prometheus.Gauge
	panics  prometheus.Counter
}

// newMetrics registers the figures, or takes those that another server of the
// process has registered. Methods are labels: their number is that of the
// registered services, since others never reach an interceptor.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_rpc_calls_total", Help: "Calls that ended, by method and gRPC code.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cleat_rpc_duration_seconds", Help: "How long calls took, by method.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"method"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleat_rpc_calls_running", Help: "Calls that run now.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleat_rpc_panics_total", Help: "Panics that were recovered; each is a bug, and the log has its stack.",
		}),
	}
	if r == nil {
		return m, nil
	}
	err := errors.Join(shared(r, &m.calls), shared(r, &m.seconds), shared(r, &m.running), shared(r, &m.panics))
	if err != nil {
		return nil, fmt.Errorf("register the metrics of calls: %w", err)
	}
	return m, nil
}

// shared registers what c points to; when it is there already, c points to
// that from now on.
func shared[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	err := r.Register(*c)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		existing, ok := there.ExistingCollector.(C)
		if !ok {
			return err
		}
		*c = existing
		return nil
	}
	return err
}
