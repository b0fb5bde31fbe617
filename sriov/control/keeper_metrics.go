package control

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type keeperMetrics struct {
	held       prometheus.Gauge
	losses     *prometheus.CounterVec
	reconnects prometheus.Counter
}

func newKeeperMetrics(r prometheus.Registerer) (*keeperMetrics, error) {
	m := &keeperMetrics{
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleat_sriov_gate_held", Help: "1 while the device plugin has accepted that this daemon answers for its devices.",
		}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_sriov_gate_losses_total", Help: "Times that the devices were lost unexpectedly, by the gRPC code that the plugin gave, or connection.",
		}, []string{"code"}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleat_sriov_gate_reconnects_total", Help: "Attempts to enable the devices, after the first.",
		}),
	}
	if r == nil {
		return m, nil
	}
	if err := errors.Join(r.Register(m.held), r.Register(m.losses), r.Register(m.reconnects)); err != nil {
		return nil, fmt.Errorf("register the metrics of the gate: %w", err)
	}
	return m, nil
}
