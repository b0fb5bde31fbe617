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

// Gauges are read at collection.
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
			Help: "Allocate calls by resource and result (ok, refused, failed)."}, []string{"resource", "result"}),
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cleat_sriov_registrations_total",
			Help: "Registration attempts with the kubelet by resource and result (ok, failed)."}, []string{"resource", "result"}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cleat_sriov_config_reads_total",
			Help: "Configuration reads by result (ok, failed)."}, []string{"result"}),
		warnings: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "cleat_sriov_config_warnings",
			Help: "Probable mistakes in the configuration, by kind, key and nearest known key."}, []string{"kind", "key", "nearest"}),
		scans: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cleat_sriov_scan_seconds",
			Help: "Duration of device scans in seconds, by result (ok, failed).", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"result"}),

		devices:    desc("devices", "Existing devices by resource.", "resource"),
		offered:    desc("devices_offered", "Healthy devices offered to the kubelet, by resource.", "resource"),
		allocating: desc("allocating", "Allocate calls in flight, by resource.", "resource"),
		listening:  desc("kubelet_listening", "1 if the kubelet has an open ListAndWatch stream for the resource.", "resource"),
		phase:      desc("resource_phase", "1 for the current phase of the resource.", "resource", "phase"),
		state:      desc("state", "1 for the current state of the plugin, as reported by the control interface.", "state"),
		control:    desc("control", "1 for the current holder state: none (not controlled), waiting (no holder), held, holding (holder lost, hold time running).", "control"),
		generation: desc("serving_generation", "Node state generation of the holder of the devices; 0 without a holder."),
		free:       desc("devices_free", "Devices that match no selector."),
		leftOut:    desc("devices_left_out", "Devices excluded from all resources because the host uses them."),
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

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.devices, m.offered, m.allocating, m.listening, m.phase, m.state, m.control, m.generation, m.free, m.leftOut} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
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
	for _, h := range []gate.HolderState{gate.NotControlled, gate.Waiting, gate.Live, gate.Lost} {
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

// maxKeys bounds label values from the configuration.
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

// problems are those outside the gate's state.
type problems struct {
	mu  sync.Mutex
	all map[string]error
}

// set reports whether a subject's problem changed, so that callers log it once.
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
