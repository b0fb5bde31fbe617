package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/test/testkit"
)

// series returns the metrics of a host as "name{labels} value", without zeros;
// histograms have their number of observations.
func series(t *testing.T, r *prometheus.Registry) (all []string) {
	t.Helper()
	families := testkit.Value(r.Gather())(t)
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), "cleat_plugin_host_")
		for _, m := range f.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if value != 0 {
				all = append(all, strings.TrimSpace(fmt.Sprint(name, " ", strings.Join(labels, " "))+fmt.Sprint(" ", value)))
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	r := newRig(t, func(o *Options) {
		o.Metrics, o.BackOff.First = registry, time.Minute
	})
	r.validate = func(_ context.Context, p Plugin) error {
		switch p.Name {
		case "bad":
			return errors.New("no")
		case "panics":
			panic("no")
		}
		return nil
	}
	r.start()
	newPlugin(t, r.path("good"), "T", "n", nil)
	leaves := newPlugin(t, r.path("leaves"), "T", "m", nil)
	newPlugin(t, r.path("bad"), "T", "bad", nil)
	newPlugin(t, r.path("panics"), "T", "panics", nil)
	for _, kind := range []string{"U", "V", "W"} { // unknown types share one series
		newPlugin(t, r.path(kind), kind, "n", nil)
	}
	foreign(t, r.path("foreign"))
	r.phase("good", Registered)
	r.phase("leaves", Registered)
	for _, name := range []string{"bad", "panics", "U", "V", "W", "foreign"} {
		r.phase(name, Failed)
	}
	testkit.Must(t, os.Remove(leaves.path))
	r.phase("leaves", Gone)
	want := []string{
		"attempts_total asking unknown 1", "attempts_total registered T 2", "attempts_total validating T 2",
		"attempts_total validating unknown 3",
		"deregistrations_total ok T 1",
		"handler_panics_total  1",
		"plugins failed T 2", "plugins failed unknown 4", "plugins registered T 1",
		"registration_duration_seconds  2",
		"step_duration_seconds asking 8", "step_duration_seconds deregistering 1", "step_duration_seconds notifying 7",
		"step_duration_seconds registering 2", "step_duration_seconds validating 4",
	}
	testkit.Diff(t, "series(t, registry)", want, series(t, registry))
	if _, err := New(Options{Dir: r.dir, Metrics: registry}); err == nil {
		t.Error("two hosts share the figures")
	}
}

func TestDeadIsCounted(t *testing.T) {
	m := testkit.Value(newMetrics(prometheus.NewRegistry()))(t)
	registry := prometheus.NewRegistry()
	testkit.Must(t, registry.Register(m.dead), registry.Register(m.plugins))
	s := Status{Plugin: Plugin{Type: "T", Socket: "a"}, Phase: Registered, Dead: true}
	m.status(s, true)
	m.status(s, true)
	want := []string{"dead_plugins  1", "plugins registered T 1"}
	testkit.Diff(t, "series(t, registry)", want, series(t, registry))
	s.Phase = Gone
	m.status(s, true)
	if got := series(t, registry); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}
