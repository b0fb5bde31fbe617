package nvme

import (
	"github.com/prometheus/client_golang/prometheus"

	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/volume/access"
)

// stateMissing is the state of a path without a controller.
const stateMissing = "missing"

type collector struct {
	attacher *Attacher
	paths    *prometheus.Desc
}

// Collector has the number of paths of attached volumes. Conditions of volumes
// are metrics of the Manager.
func (a *Attacher) Collector() prometheus.Collector {
	return &collector{a, prometheus.NewDesc("cleat_nvme_paths",
		"Paths of attached NVMe volumes by state: that of the kernel's controller, or missing.", []string{"state"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) { out <- c.paths }

// Collect implements prometheus.Collector. It reads files and sysfs, which do
// not wait for a target.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	counts, err := c.attacher.countPaths()
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.paths, err)
		return
	}
	for state, n := range counts {
		out <- prometheus.MustNewConstMetric(c.paths, prometheus.GaugeValue, float64(n), state)
	}
}

func (a *Attacher) countPaths() (map[string]int, error) {
	all, err := a.records.all()
	if err != nil {
		return nil, err
	}
	controllers, err := a.kernel.Controllers()
	if err != nil {
		return nil, err
	}
	multipath, err := a.kernel.IsMultipath()
	if err != nil {
		return nil, err
	}
	return countPaths(all, controllers, multipath)
}

// countPaths counts a path that several volumes use once. The states live and
// missing are always counted. Without the kernel's multipath, one path of a
// volume is used, and the others are not missing.
func countPaths(all []record, controllers []kernel.Controller, multipath bool) (map[string]int, error) {
	state := map[path]string{}
	subsystems := map[path]bool{}
	for _, c := range controllers {
		state[path{c.NQN, c.HostNQN, c.Address}] = c.State
		subsystems[path{nqn: c.NQN, hostNQN: c.HostNQN}] = true
	}
	counts, counted := map[string]int{kernel.StateLive: 0, stateMissing: 0}, map[path]bool{}
	for _, r := range all {
		if r.Device.IsZero() {
			continue // not attached yet
		}
		l, err := access.Decode(r.Locator)
		if err != nil {
			return nil, err
		}
		for _, address := range l.(access.NVMe).Paths {
			p := path{r.NQN, r.HostNQN, address}
			s, connected := state[p]
			unused := !connected && !multipath && subsystems[path{nqn: r.NQN, hostNQN: r.HostNQN}]
			if counted[p] || unused {
				continue
			}
			counted[p] = true
			if !connected {
				s = stateMissing
			}
			counts[s]++
		}
	}
	return counts, nil
}
