package node

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collectTimeout bounds a scrape, which then lacks the remaining volumes.
const collectTimeout = 5 * time.Second

type collector struct {
	manager            *Manager
	inUse, health, err *prometheus.Desc
}

// Collector has the number of volumes in use and their adverse conditions:
// kubelets do not call CSI 1.13's health RPCs yet.
func (m *Manager) Collector() prometheus.Collector {
	return &collector{
		manager: m,
		inUse:   prometheus.NewDesc("cleat_node_volumes", "Volumes staged or published on this node.", nil, nil),
		health: prometheus.NewDesc("cleat_volume_health", "1 for each adverse condition of a volume in use on this node.",
			[]string{"volume_id", "status", "reason"}, nil),
		err: prometheus.NewDesc("cleat_node_health_unknown", "Volumes in use whose health is unknown.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.inUse
	out <- c.health
	out <- c.err
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	ids, err := c.manager.Volumes(ctx)
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.inUse, err)
		return
	}
	out <- prometheus.MustNewConstMetric(c.inUse, prometheus.GaugeValue, float64(len(ids)))
	unknown := 0
	for _, id := range ids {
		conditions, err := c.manager.Health(ctx, id)
		if err != nil {
			unknown++
			continue
		}
		for _, h := range conditions {
			out <- prometheus.MustNewConstMetric(c.health, prometheus.GaugeValue, 1, string(id), string(h.Severity), h.Reason)
		}
	}
	out <- prometheus.MustNewConstMetric(c.err, prometheus.GaugeValue, float64(unknown))
}
