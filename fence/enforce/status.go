package enforce

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/volume"
)

type metrics struct {
	blocks   *prometheus.GaugeVec
	enforced *prometheus.GaugeVec
	peers    *prometheus.GaugeVec
	ended    *prometheus.CounterVec
	drift    *prometheus.CounterVec
	failures *prometheus.CounterVec
	ending   *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		blocks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cleat_fence_blocks", Help: "Blocks of addresses on record, by phase: fencing, fenced, lifting, lifted.",
		}, []string{"phase"}),
		enforced: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cleat_fence_enforced", Help: "1 when the last look found everything that is on record in force at this enforcer.",
		}, []string{"enforcer"}),
		peers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cleat_fence_peer_up", Help: "1 when the peer answered the last time it was asked.",
		}, []string{"peer"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_fence_sessions_ended_total", Help: "Sessions of fenced clients that were ended.",
		}, []string{"enforcer"}),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_fence_drift_total", Help: "How often something else had changed what enforces the fences, and it was repaired.",
		}, []string{"enforcer"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_fence_check_failures_total", Help: "Looks at an enforcer after which its fences are not known to hold.",
		}, []string{"enforcer"}),
	}
	m.ending = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cleat_fence_sessions_ending", Help: "Sessions of fenced clients that have not ended: a storage server still has their sockets open, and the fence waits for it.",
	}, []string{"enforcer"})
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.blocks, m.enforced, m.peers, m.ended, m.drift, m.failures, m.ending} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of fences: %w", err)
		}
	}
	return m, nil
}

// observe brings the gauges up to date.
func (e *Enforcer) observe(fences []volume.Fence, ending []ledger.Ending) {
	count := map[volume.FencePhase]int{volume.Fencing: 0, volume.Fenced: 0, volume.Lifting: 0, volume.Lifted: 0}
	for _, f := range fences {
		count[f.Phase]++
	}
	for phase, n := range count {
		e.metrics.blocks.WithLabelValues(string(phase)).Set(float64(n))
	}
	for _, l := range e.locals {
		e.metrics.enforced.WithLabelValues(l.Name).Set(oneIf(l.holds.Load()))
		waiting := 0
		for _, one := range ending {
			if one.Enforcer == l.Name {
				waiting++
			}
		}
		e.metrics.ending.WithLabelValues(l.Name).Set(float64(waiting))
	}
	for _, p := range e.peers {
		e.metrics.peers.WithLabelValues(p.Name()).Set(oneIf(p.up.Load()))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Check fails when the last look found a fence that is not known to hold.
func (e *Enforcer) Check(context.Context) error {
	if last := e.checked.Load(); last != nil {
		return *last
	}
	return errs.Errorf(errs.Unavailable, "it has not been looked whether the fences hold")
}

// Status is what there is to know, for people and programs.
type Status struct {
	Enforcers []EnforcerStatus `json:"enforcers"`
	Fences    []volume.Fence   `json:"fences"`
	Ending    []ledger.Ending  `json:"ending"` // sessions that are being ended
	Problem   string           `json:"problem,omitempty"`
}

// EnforcerStatus is one enforcer: a fencer of this process or a peer.
type EnforcerStatus struct {
	Name  string `json:"name"`
	Peer  bool   `json:"peer"`
	Holds bool   `json:"holds"` // for a peer: it answered
}

// Ending lists the sessions of fenced clients that have not ended. Their fences
// are not answered with OK before that.
func (e *Enforcer) Ending(ctx context.Context) ([]volume.Session, error) {
	all, err := e.ledger.Ending(ctx)
	sessions := make([]volume.Session, len(all))
	for i, one := range all {
		sessions[i] = one.Session
	}
	return sessions, err
}

// Status reads the record, and tells how the last look went.
func (e *Enforcer) Status(ctx context.Context) (Status, error) {
	s := Status{Enforcers: []EnforcerStatus{}, Fences: []volume.Fence{}, Ending: []ledger.Ending{}}
	for _, l := range e.locals {
		s.Enforcers = append(s.Enforcers, EnforcerStatus{Name: l.Name, Holds: l.holds.Load()})
	}
	for _, p := range e.peers {
		s.Enforcers = append(s.Enforcers, EnforcerStatus{Name: p.Name(), Peer: true, Holds: p.up.Load()})
	}
	if err := e.Check(ctx); err != nil {
		s.Problem = err.Error()
	}
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return s, err
	}
	ending, err := e.ledger.Ending(ctx)
	s.Fences, s.Ending = append(s.Fences, fences...), append(s.Ending, ending...)
	return s, err
}
