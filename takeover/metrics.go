package takeover

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/takeover/plan"
)

type metrics struct {
	remediations *prometheus.GaugeVec
	leader       prometheus.Gauge
	failures     prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		remediations: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cleat_takeover_remediations",
			Help: "Remediations by state: pending (not fenced yet), blocked (an administrator has to act), fenced (its pods can start elsewhere), released. Only the leader reports them.",
		}, []string{"state"}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleat_takeover_leader", Help: "1 if this process holds the Lease and handles remediations.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleat_takeover_failures_total", Help: "Passes that failed and are repeated: a read, a write or a call of a backend.",
		}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.remediations, m.leader, m.failures} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register takeover metrics: %w", err)
		}
	}
	return m, nil
}

// follow ends the reports of a leader: what it knows ages.
func (m *metrics) follow() {
	m.leader.Set(0)
	m.remediations.Reset()
}

func (m *metrics) observe(all []*Remediation) {
	count := map[string]int{"pending": 0, "blocked": 0, "fenced": 0, "released": 0}
	for _, r := range all {
		count[State(r.Status)]++
	}
	for state, n := range count {
		m.remediations.WithLabelValues(state).Set(float64(n))
	}
}

// State is one word for a status: pending, blocked, fenced or released.
func State(s plan.Status) string {
	for _, c := range s.Conditions {
		if c.Type == plan.Blocked && c.Status == "True" {
			return "blocked"
		}
	}
	switch {
	case s.Release != nil:
		return "released"
	case s.Certificate != nil:
		return "fenced"
	}
	return "pending"
}
