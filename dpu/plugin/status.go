package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/internal/op"
)

func (p *Plugin) register(r prometheus.Registerer) error {
	p.stale = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "cleat_dpu_stale_answers_total", Help: "GetDevice calls answered with the last known state because SNAP was slow.",
	})
	if r == nil {
		return nil
	}
	return errors.Join(r.Register(p.stale), r.Register(collector{p}))
}

// collector counts records at each scrape.
type collector struct{ plugin *Plugin }

var (
	devicesMetric  = prometheus.NewDesc("cleat_dpu_devices", "Recorded devices by phase (making, made, removing).", []string{"phase"}, nil)
	objectsMetric  = prometheus.NewDesc("cleat_dpu_objects", "Recorded SNAP and host objects: NVMe controllers, bdevs, keys, mounts and file system devices.", nil, nil)
	leftoverMetric = prometheus.NewDesc("cleat_dpu_leftovers", "Devices and objects that still have to be removed.", nil, nil)
)

func (c collector) Describe(to chan<- *prometheus.Desc) {
	to <- devicesMetric
	to <- objectsMetric
	to <- leftoverMetric
}

func (c collector) Collect(to chan<- prometheus.Metric) {
	p := c.plugin
	unused := len(p.table.Unused())
	p.mu.Lock()
	leftovers := len(p.left) + unused
	p.mu.Unlock()
	devices, objects := p.table.Count()
	for phase, n := range devices {
		to <- prometheus.MustNewConstMetric(devicesMetric, prometheus.GaugeValue, float64(n), string(phase))
	}
	to <- prometheus.MustNewConstMetric(objectsMetric, prometheus.GaugeValue, float64(objects))
	to <- prometheus.MustNewConstMetric(leftoverMetric, prometheus.GaugeValue, float64(leftovers))
}

// Status of a Plugin for /status.
type Status struct {
	SNAP      SNAPStatus          `json:"snap"`
	Offer     *Offer              `json:"offer,omitempty"`
	Devices   map[table.Phase]int `json:"devices"`
	Objects   int                 `json:"objects"`
	Leftovers map[string]string   `json:"leftovers,omitempty"` // reason by volume or object
	Running   []op.Running        `json:"running,omitempty"`
}

// SNAPStatus is the state of the SNAP process.
type SNAPStatus struct {
	Socket     string `json:"socket"`
	Version    string `json:"version,omitempty"`
	Generation uint64 `json:"generation"` // SNAP processes seen since the start
	Error      string `json:"error,omitempty"`
}

// Status returns the state of the plugin and the version of SNAP.
func (p *Plugin) Status(ctx context.Context) (Status, error) {
	asking, cancel := context.WithTimeout(ctx, p.config.LookWithin)
	defer cancel()
	s := Status{Leftovers: map[string]string{}, Running: p.ops.Running()}
	s.Devices, s.Objects = p.table.Count()
	version, err := p.rpc.Version(asking)
	s.SNAP = SNAPStatus{Socket: p.rpc.Socket(), Version: version.String(), Generation: p.rpc.Generation()}
	if err != nil {
		s.SNAP.Error = err.Error()
	}
	unused := p.table.Unused()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range unused {
		s.Leftovers[o.ID.String()] = "an unanswered call can still create it"
		if why := p.stuck[o.ID]; why != nil {
			s.Leftovers[o.ID.String()] = why.Error()
		}
	}
	s.Offer = p.offer
	for v, why := range p.left {
		s.Leftovers["volume "+v] = why.Error()
	}
	return s, ctx.Err()
}

// Check returns an error while the plugin is not ready, for /readyz.
func (p *Plugin) Check(ctx context.Context) error {
	ready, err := p.Ready(ctx)
	if err == nil && !ready {
		err = fmt.Errorf("SNAP at %s does not respond, or is not initialised", p.rpc.Socket())
	}
	return err
}
