package server

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Build says which program it is.
type Build struct{ Version, Commit string }

// NewRegistry makes a registry with the figures of the Go runtime and of the
// process, and with cleat_build_info.
func NewRegistry(b Build) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cleat_build_info",
		Help: "Always 1; the labels say which program it is.",
		ConstLabels: prometheus.Labels{
			"version": b.Version, "commit": b.Commit, "go": runtime.Version(),
		},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
