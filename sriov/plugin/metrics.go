package plugin

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/gate"
)

// metrics are the metrics of a plugin. Gauges are read when they are collected.
type metrics struct {
	plugin *Plugin

	allocations   *prometheus.CounterVec
	registrations *prometheus.CounterVec
	reads         *prometheus.CounterVec
	warnings      *prometheus.GaugeVec
	scans         *prometheus.HistogramVec

	devices, offered, allocating, listening, phase *prometheus.Desc
	state, control, generation, free, leftOut      *prometheus.Desc
}

func newMetrics(registry prometheus.Registerer, p *Plugin) (*metrics, error) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cleat_sriov_"+name, help, labels, nil)
	}
	m := &metrics{
		plugin: p,
		allocations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cleat_sriov_allocations_total",
			Help: "Calls of Allocate by resource and result (ok, refused, failed)."}, []string{"resource", "result"}),
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cleat_sriov_registrations_total",
			Help: "Registrations with the kubelet by resource and result (ok, failed)."}, []string{"resource", "result"}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cleat_sriov_config_reads_total",
			Help: "Reads of the configuration by result (ok, failed)."}, []string{"result"}),
		warnings: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "cleat_sriov_config_warnings",
			Help: "Places in the configuration that may not mean what they seem to, by kind, key and the key that was probably meant."}, []string{"kind", "key", "nearest"}),
		scans: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cleat_sriov_scan_seconds",
			Help: "Time to find and assign the devices of this machine, by result (ok, failed).", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"result"}),

		devices:    desc("devices", "Devices that are there, by resource.", "resource"),
		offered:    desc("devices_offered", "Devices that pods may get, by resource.", "resource"),
		allocating: desc("allocating", "Calls of Allocate that run, by resource.", "resource"),
		listening:  desc("kubelet_listening", "Whether the kubelet listens to a resource.", "resource"),
		phase:      desc("resource_phase", "1 for the phase that a resource is in.", "resource", "phase"),
		state:      desc("state", "1 for the state that the plugin is in, as the control interface names it.", "state"),
		control:    desc("control", "1 for who answers for the devices: none (nobody needs to), waiting, held, holding.", "control"),
		generation: desc("serving_generation", "Generation of the node state of who answers for the devices; 0: nobody does."),
		free:       desc("devices_free", "Devices that no selector takes."),
		leftOut:    desc("devices_left_out", "Devices that no resource may have, as the host needs them."),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.allocations, m.registrations, m.reads, m.warnings, m.scans, m} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Describe is part of prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.devices, m.offered, m.allocating, m.listening, m.phase, m.state, m.control, m.generation, m.free, m.leftOut} {
		c <- d
	}
}

// Collect is part of prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	is := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	s := m.plugin.Status()
	for name, r := range s.Resources {
		gauge(m.devices, float64(r.Devices), name)
		gauge(m.offered, float64(r.Offered), name)
		gauge(m.allocating, float64(r.Allocating), name)
		gauge(m.listening, is(r.Streaming), name)
		for _, phase := range []gate.Phase{gate.Idle, gate.Offered, gate.Withdrawing, gate.Withdrawn, gate.Stopped} {
			gauge(m.phase, is(r.Phase == phase), name, string(phase))
		}
	}
	for _, state := range []gate.State{gate.Initializing, gate.Serving, gate.Failed, gate.Stopping} {
		gauge(m.state, is(s.State == state), string(state))
	}
	for _, h := range []gate.Holding{gate.NotControlled, gate.Waiting, gate.Live, gate.Lost} {
		gauge(m.control, is(s.Holding == h), string(h))
	}
	gauge(m.generation, float64(s.Generation))
	if f := m.plugin.found.Load(); f != nil {
		gauge(m.free, float64(len(f.assignment.Free)))
		gauge(m.leftOut, float64(len(f.assignment.LeftOut)))
	}
}

func (m *metrics) allocated(resource string, err error) {
	result := okOrFailed(err)
	if _, hasStatus := status.FromError(err); err != nil && hasStatus {
		result = "refused"
	}
	m.allocations.WithLabelValues(resource, result).Inc()
}

// maxKeys bounds the labels that a configuration can make.
const maxKeys = 100

func (m *metrics) warned(warnings []strictjson.Problem) {
	m.warnings.Reset()
	for i, w := range warnings {
		key, nearest := w.Key, w.Nearest
		if i >= maxKeys || len(key) > 64 {
			key, nearest = "", ""
		}
		m.warnings.WithLabelValues(string(w.Kind), strings.ToValidUTF8(key, "?"), nearest).Inc()
	}
}

func okOrFailed(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// problems are current errors that are in no state of the gate.
type problems struct {
	mu  sync.Mutex
	all map[string]error
}

// set sets or clears the problem with a subject. It reports whether that changed, so
// that it is logged once.
func (p *problems) set(subject string, err error) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[string]error{}
	}
	last, had := p.all[subject]
	if err == nil {
		delete(p.all, subject)
		return had
	}
	p.all[subject] = err
	return !had || last.Error() != err.Error()
}

func (p *problems) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []error
	for _, subject := range slices.Sorted(maps.Keys(p.all)) {
		all = append(all, p.all[subject])
	}
	return errors.Join(all...)
}
