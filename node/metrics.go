package node

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collectTimeout bounds a scrape, which then lacks the remaining volumes.
const collectTimeout = 5 * time.Second

type collector struct {
	manager                     *Manager
	inUse, health, storage, err *prometheus.Desc
}

// Collector has the number of volumes in use, their adverse conditions, and what
// this node knows of the storage: kubelets call CSI 1.13's health RPCs only with
// an alpha feature of Kubernetes 1.37.
func (m *Manager) Collector() prometheus.Collector {
	return &collector{
		manager: m,
		inUse:   prometheus.NewDesc("cleat_node_volumes", "Volumes staged or published on this node.", nil, nil),
		health: prometheus.NewDesc("cleat_volume_health", "1 for each adverse condition of a volume in use on this node.",
			[]string{"volume_id", "status", "reason"}, nil),
		storage: prometheus.NewDesc("cleat_node_storage_health", "1 for each adverse condition of the storage that this node knows.",
			[]string{"status", "reason"}, nil),
		err: prometheus.NewDesc("cleat_node_health_unknown", "Volumes in use whose health is unknown, and 1 if the storage's is.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.inUse
	out <- c.health
	out <- c.storage
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
	storage, err := c.manager.storageHere(ctx)
	if err != nil {
		unknown++
	}
	for _, h := range storage {
		out <- prometheus.MustNewConstMetric(c.storage, prometheus.GaugeValue, 1, string(h.Severity), h.Reason)
	}
	out <- prometheus.MustNewConstMetric(c.err, prometheus.GaugeValue, float64(unknown))
}
