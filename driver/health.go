package driver

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/volume"
)

// ExportHealth adds the metric of the conditions of a storage on other machines: 1 for
// each, with the labels status and reason.
func (p *Process) ExportHealth(name, help string, labels prometheus.Labels, h volume.Health) error {
	return p.driver.Metrics.Register(healthCollector{prometheus.NewDesc(name, help, []string{"status", "reason"}, labels), h})
}

type healthCollector struct {
	desc   *prometheus.Desc
	health volume.Health
}

// collectTimeout keeps a storage that does not answer from blocking a scrape, which has
// 10 s by default. Engines report that the storage does not answer after 5 s.
const collectTimeout = 8 * time.Second

func (c healthCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

func (c healthCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	conditions, err := c.health.StorageHealth(ctx)
	if err != nil { // no condition would look like health
		conditions = append(conditions, volume.NewCondition(volume.Inaccessible, volume.ReasonStorageUnreachable, err.Error()))
	}
	for _, h := range conditions {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, 1, string(h.Severity), h.Reason)
	}
}
