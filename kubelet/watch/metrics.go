package watch

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/kubelet/watch/discovery"
)

// Series are bounded: all types without a handler count as one.
type metrics struct {
	plugins         *prometheus.GaugeVec
	dead            prometheus.Gauge
	attempts        *prometheus.CounterVec
	deregistrations *prometheus.CounterVec
	steps           *prometheus.HistogramVec
	registered      prometheus.Histogram
	panics          prometheus.Counter
	scans           *prometheus.CounterVec
	overflows       prometheus.Counter
	unseen          prometheus.Gauge

	counted map[string]counted // by socket; guarded by Host.mu
}

// counted is how the gauges count a socket.
type counted struct {
	kind, phase string
	dead        bool
}

const unknownType = "unknown"

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		plugins: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cleat_plugin_host_plugins", Help: "Sockets of plugins now, by type of plugin and phase.",
		}, []string{"type", "phase"}),
		dead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleat_plugin_host_dead_plugins", Help: "Registered plugins whose socket no process listens on any more.",
		}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_plugin_host_attempts_total", Help: "Attempts to register that ended, by type and result: registered, or the step that failed.",
		}, []string{"type", "result"}),
		deregistrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_plugin_host_deregistrations_total", Help: "Calls of DeRegister that ended, by type and result: ok or failed.",
		}, []string{"type", "result"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cleat_plugin_host_step_duration_seconds", Help: "How long the steps of attempts took.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"step"}),
		registered: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cleat_plugin_host_registration_duration_seconds", Help: "From finding a socket until its plugin is registered.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleat_plugin_host_handler_panics_total", Help: "Panics of handlers. Each is a bug; the log contains the stack.",
		}),
		scans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_plugin_host_rescans_total", Help: "Comparisons of the whole directory, by cause: periodic or overflow.",
		}, []string{"cause"}),
		overflows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleat_plugin_host_overflows_total", Help: "Times that the kernel dropped events; each was followed by a rescan.",
		}),
		unseen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleat_plugin_host_unseen_directories", Help: "Directories that currently cannot be watched or read.",
		}),
		counted: map[string]counted{},
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.plugins, m.dead, m.attempts, m.deregistrations, m.steps, m.registered, m.panics, m.scans, m.overflows, m.unseen,
	} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) status(s Status, handled bool) {
	now := counted{kind: unknownType, phase: string(s.Phase), dead: s.Dead}
	if handled {
		now.kind = s.Type
	}
	before, known := m.counted[s.Socket]
	if known && before == now {
		return
	}
	if known {
		m.plugins.WithLabelValues(before.kind, before.phase).Dec()
		if before.dead {
			m.dead.Dec()
		}
	}
	if s.Phase == Gone {
		delete(m.counted, s.Socket)
		return
	}
	m.counted[s.Socket] = now
	m.plugins.WithLabelValues(now.kind, now.phase).Inc()
	if now.dead {
		m.dead.Inc()
	}
}

// took is the time since the socket was found.
func (m *metrics) succeeded(kind string, took time.Duration) {
	m.registered.Observe(took.Seconds())
	m.attempts.WithLabelValues(kind, string(Registered)).Inc()
}

func (m *metrics) failed(kind string, f failure) {
	result := string(f.step)
	if f.step == Registered {
		result = "died"
	}
	m.attempts.WithLabelValues(kind, result).Inc()
}

func (m *metrics) deregistered(kind string, err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.deregistrations.WithLabelValues(kind, result).Inc()
}

func (m *metrics) step(step Phase, begun time.Time) {
	m.steps.WithLabelValues(string(step)).Observe(time.Since(begun).Seconds())
}

func (m *metrics) discovery() discovery.Observer {
	return discovery.Observer{
		Scanned:    func(cause string) { m.scans.WithLabelValues(cause).Inc() },
		Overflowed: m.overflows.Inc,
		Unseen:     func(n int) { m.unseen.Set(float64(n)) },
	}
}
