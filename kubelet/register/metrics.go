package register

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns the metrics, labelled by type and name: a process can have
// several registrations.
func (r *Registrar) Collector() prometheus.Collector {
	labels := prometheus.Labels{"type": r.plugin.Type, "name": r.plugin.Name}
	return &collector{
		Registrar: r,
		state:     prometheus.NewDesc("cleat_registration_state", "1 for the state that the registration is in, 0 for the others.", []string{"state"}, labels),
		questions: prometheus.NewDesc("cleat_registration_questions_total", "Calls of GetInfo by a host.", nil, labels),
		refusals:  prometheus.NewDesc("cleat_registration_refusals_total", "Times that a host reported that it did not register the plugin.", nil, labels),
		losses:    prometheus.NewDesc("cleat_registration_sockets_lost_total", "Times that another process removed or replaced the registration socket.", nil, labels),
		asked:     prometheus.NewDesc("cleat_registration_last_question_seconds", "Seconds since a host last called GetInfo on the current socket, or since the socket was created if no host has.", nil, labels),
	}
}

type collector struct {
	*Registrar
	state, questions, refusals, losses, asked *prometheus.Desc
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.questions, c.refusals, c.losses, c.asked} {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.Status()
	for _, state := range states() {
		value := 0.0
		if state == s.State {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, value, string(state))
	}
	count := func(d *prometheus.Desc, n int) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	count(c.questions, s.Questions)
	count(c.refusals, s.Refusals)
	count(c.losses, s.Losses)
	last := s.Placed
	if !s.Asked.IsZero() {
		last = s.Asked
	}
	if !last.IsZero() {
		out <- prometheus.MustNewConstMetric(c.asked, prometheus.GaugeValue, time.Since(last).Seconds())
	}
}
