package spdk

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
)

type metrics struct {
	calls       *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	connections prometheus.Gauge
	connects    prometheus.Counter
	restarts    prometheus.Counter
	late        prometheus.Counter
}

// newMetrics accepts a nil registry.
func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_spdk_calls_total", Help: "Calls to the SPDK process by method and outcome: ok, refused (error response), unanswered, unavailable, unauthenticated (by an HTTP proxy), or bad (could not be encoded or decoded).",
		}, []string{"method", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cleat_spdk_call_seconds", Help: "Duration of calls to the SPDK process in seconds.",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 30},
		}, []string{"method"}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{Name: "cleat_spdk_connections", Help: "Open connections to the SPDK process."}),
		connects:    prometheus.NewCounter(prometheus.CounterOpts{Name: "cleat_spdk_connects_total", Help: "Connections established to the SPDK process."}),
		restarts:    prometheus.NewCounter(prometheus.CounterOpts{Name: "cleat_spdk_restarts_total", Help: "Times that a new SPDK process was found on the socket."}),
		late:        prometheus.NewCounter(prometheus.CounterOpts{Name: "cleat_spdk_late_answers_total", Help: "Responses that arrived after their call was abandoned."}),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.calls, m.seconds, m.connections, m.connects, m.restarts, m.late} {
		if err := registry.Register(c); err != nil {
			return nil, errs.Errorf(errs.Invalid, "metrics of the SPDK client: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) call(method string, took time.Duration, err error) {
	m.calls.WithLabelValues(method, outcome(err)).Inc()
	m.seconds.WithLabelValues(method).Observe(took.Seconds())
}

func outcome(err error) string {
	_, refused := errors.AsType[*Error](err)
	switch {
	case err == nil:
		return "ok"
	case refused:
		return "refused"
	case errors.Is(err, Unanswered):
		return "unanswered"
	case errs.KindOf(err) == errs.Unavailable:
		return "unavailable"
	case errs.KindOf(err) == errs.Unauthenticated:
		return "unauthenticated"
	default:
		return "bad"
	}
}
