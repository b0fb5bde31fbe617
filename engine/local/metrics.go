package local

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/volume"
)

type collector struct {
	engine                                      *Engine
	bytes, promised, volumes, snapshots, copies *prometheus.Desc
	copied, health                              *prometheus.Desc
}

// Collector returns the metrics of the pool. Bytes are omitted if the pool is
// not accessible.
func (e *Engine) Collector() prometheus.Collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cleat_pool_"+name, help, labels, prometheus.Labels{"pool": e.pool.uuid})
	}
	return &collector{
		engine:    e,
		bytes:     describe("bytes", "Bytes of the pool's file system: total, free, and kept in reserve.", "kind"),
		promised:  describe("promised_bytes", "Sum of the sizes of all volumes, and of the space reserved for snapshots of thick volumes."),
		volumes:   describe("volumes", "Volumes in the pool."),
		snapshots: describe("snapshots", "Snapshots in the pool."),
		copies:    describe("copies", "Copies that run or wait in the background."),
		copied:    describe("copy_bytes", "Bytes of each copy by the id of its destination volume or snapshot: done, and total.", "id", "kind"),
		health:    describe("health", "1 for each adverse condition of the pool itself.", "status", "reason"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.bytes, c.promised, c.volumes, c.snapshots, c.copies, c.copied, c.health} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	if s, err := c.engine.pool.space(); err == nil {
		gauge(c.bytes, s.total, "total")
		gauge(c.bytes, s.free, "free")
		gauge(c.bytes, s.reserve(), "reserve")
	}
	gauge(c.promised, c.engine.budget.promised())
	gauge(c.volumes, c.engine.volumes.Load())
	gauge(c.snapshots, c.engine.snapshots.Load())
	conditions, err := c.engine.StorageHealth(context.Background())
	if err != nil { // no condition would look like health
		conditions = append(conditions, volume.NewCondition(volume.Inaccessible, volume.ReasonStorageUnreachable, err.Error()))
	}
	for _, h := range conditions {
		gauge(c.health, 1, string(h.Severity), h.Reason)
	}
	running := c.engine.copies.progressOfAll()
	gauge(c.copies, int64(len(running)))
	for id, p := range running {
		gauge(c.copied, p.Done, id, "done")
		gauge(c.copied, p.Total, id, "total")
	}
}
