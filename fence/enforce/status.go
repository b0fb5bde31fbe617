package enforce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/volume"
)

type metrics struct {
	blocks   *prometheus.GaugeVec
	peers    *prometheus.GaugeVec
	ended    *prometheus.CounterVec
	drift    *prometheus.CounterVec
	failures *prometheus.CounterVec
	ending   *prometheus.GaugeVec
	servers  *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer, e *Enforcer) (*metrics, error) {
	m := &metrics{
		blocks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cleat_fence_blocks", Help: "Recorded fences by phase: fencing, fenced, lifting, lifted.",
		}, []string{"phase"}),
		peers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cleat_fence_peer_up", Help: "1 if the peer answered the last call.",
		}, []string{"peer"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_fence_sessions_ended_total", Help: "Sessions of fenced clients that the enforcer ended.",
		}, []string{"enforcer"}),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_fence_drift_total", Help: "Repairs of an enforcer whose fences another program had changed.",
		}, []string{"enforcer"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_fence_check_failures_total", Help: "Failed checks of an enforcer, after which its fences are not known to be in force.",
		}, []string{"enforcer"}),
	}
	m.ending = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cleat_fence_sessions_ending", Help: "Sessions of fenced clients that have not ended yet, because a storage server still has their sockets open.",
	}, []string{"enforcer"})
	m.servers = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cleat_fence_servers", Help: "Storage servers that listen on the fenced ports; with 0 a fence protects nothing.",
	}, []string{"enforcer"})
	if r == nil {
		return m, nil
	}
	all := []prometheus.Collector{m.blocks, m.peers, m.ended, m.drift, m.failures, m.ending, m.servers}
	for _, l := range e.locals {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "cleat_fence_enforced", Help: "1 if all recorded fences were in force at this enforcer in the last check, unless that was long ago.",
			ConstLabels: prometheus.Labels{"enforcer": l.Name},
		}, func() float64 { return boolGauge(e.holds(l)) }))
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register fence metrics: %w", err)
		}
	}
	return m, nil
}

// observeRecords is not called without them: no fence is another answer.
func (e *Enforcer) observeRecords(fences []volume.Fence, ending []ledger.Ending) {
	count := map[volume.FencePhase]int{volume.Fencing: 0, volume.Fenced: 0, volume.Lifting: 0, volume.Lifted: 0}
	for _, f := range fences {
		count[f.Phase]++
	}
	for phase, n := range count {
		e.metrics.blocks.WithLabelValues(string(phase)).Set(float64(n))
	}
	for _, l := range e.locals {
		waiting := 0
		for _, one := range ending {
			if one.Enforcer == l.Name {
				waiting++
			}
		}
		e.metrics.ending.WithLabelValues(l.Name).Set(float64(waiting))
	}
}

func (e *Enforcer) observe() {
	for _, l := range e.locals {
		if servers := l.servers.Load(); servers != nil {
			e.metrics.servers.WithLabelValues(l.Name).Set(float64(len(servers.Servers)))
		}
	}
	for _, p := range e.peers {
		e.metrics.peers.WithLabelValues(p.Name()).Set(boolGauge(p.up.Load()))
	}
}

func boolGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Check returns the errors of the last checks. A check that does not return, as of a
// fencer that hangs in the kernel, leaves the fences unknown.
func (e *Enforcer) Check(context.Context) error {
	last, peers := e.checked.Load(), e.peersChecked.Load()
	switch {
	case last == nil, peers == nil && len(e.peers) > 0:
		return errs.Errorf(errs.Unavailable, "the fences have not been checked yet")
	case !e.isRecent(last):
		return errs.Errorf(errs.Unavailable, "whether the fences are in force is not known: the last check that returned was %s ago", time.Since(last.at).Round(time.Second))
	case peers == nil:
		return last.err
	}
	return errors.Join(last.err, peers.err)
}

// isRecent allows two checks, each as long as its timeouts.
func (e *Enforcer) isRecent(v *verdict) bool {
	b := e.config.Bounds
	return time.Since(v.at) < 2*(e.config.Interval+b.Block+b.Verify+b.End)
}

// holds reports whether the fences are known to be in force at a local fencer.
func (e *Enforcer) holds(l *local) bool {
	last := e.checked.Load()
	return last != nil && e.isRecent(last) && l.inForce.Load()
}

// Status is an Enforcer's state.
type Status struct {
	Enforcers []EnforcerStatus `json:"enforcers"`
	Fences    []volume.Fence   `json:"fences"`
	// Ending are being ended, or were left by a forced unfence.
	Ending []ledger.Ending `json:"ending"`
	// Unseen are clients that must be restarted before they are unfenced.
	Unseen  []string `json:"unseen,omitempty"`
	Problem string   `json:"problem,omitempty"`
}

// EnforcerStatus is the state of a local fencer or a peer.
type EnforcerStatus struct {
	Name  string `json:"name"`
	Peer  bool   `json:"peer"`
	Holds bool   `json:"holds"` // fences are in force; a peer: answered the last call
	// Servers listen on the fenced ports; only of a packet filter.
	Servers []volume.Listener `json:"servers,omitempty"`
}

// Ending lists sessions of fenced clients that have not ended, for which Fence
// and Unfence calls wait.
func (e *Enforcer) Ending(ctx context.Context) ([]volume.Session, error) {
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return nil, err
	}
	all, err := e.ledger.Ending(ctx)
	if err != nil {
		return nil, err
	}
	all, err = awaited(all, fences)
	sessions := make([]volume.Session, len(all))
	for i, one := range all {
		sessions[i] = one.Session
	}
	return sessions, err
}

// RecordedClients returns the clients that were recorded when they were granted
// volumes. A process that grants none has none.
func (e *Enforcer) RecordedClients(ctx context.Context) ([]volume.RecordedClient, error) {
	r, err := e.ledger.Records(ctx)
	return r.Clients, err
}

// Recorded returns the blocks of an owner in every phase. They are not read back.
func (e *Enforcer) Recorded(ctx context.Context, owner volume.FenceOwner) (blocks []netip.Prefix, err error) {
	fences, err := e.ledger.Fences(ctx)
	for _, f := range fences {
		if f.Owner.Digest == owner.Digest && f.Phase != volume.Lifted {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks, err
}

// awaited returns the sessions that a fence waits for. A forced unfence leaves
// records of others, which the next fence of the client needs.
func awaited(all []ledger.Ending, fences []volume.Fence) ([]ledger.Ending, error) {
	var blocks []netip.Prefix
	for _, f := range fences {
		if f.Denies() {
			blocks = append(blocks, f.Block)
		}
	}
	set, err := cidr.Set(blocks)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(one ledger.Ending) bool {
		return !set.Contains(one.Session.Client.Addr().Unmap().WithZone(""))
	}), nil
}

// Status returns the recorded fences and the last check's result.
func (e *Enforcer) Status(ctx context.Context) (Status, error) {
	s := Status{Enforcers: []EnforcerStatus{}, Fences: []volume.Fence{}, Ending: []ledger.Ending{}}
	for _, l := range e.locals {
		status := EnforcerStatus{Name: l.Name, Holds: e.holds(l)}
		if servers := l.servers.Load(); servers != nil {
			status.Servers = servers.Servers
		}
		s.Enforcers = append(s.Enforcers, status)
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
	if s.Unseen, err = e.Unseen(ctx); err != nil {
		return s, err
	}
	ending, err := e.ledger.Ending(ctx)
	s.Fences, s.Ending = append(s.Fences, fences...), append(s.Ending, ending...)
	return s, err
}
