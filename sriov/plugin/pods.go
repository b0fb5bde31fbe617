package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

const podsTimeout = 2 * time.Second

type podsQuery struct {
	resource string // empty: for the audit
	query    uint64
	devices  []string
}

// podsQueries batches PodResources queries, one call at a time: a withdrawal
// queries for each resource. An answer counts only for earlier queries.
type podsQueries struct {
	waiting []podsQuery
	asking  bool
}

type podsAnswer struct {
	err     error // not answered
	known   bool  // or not served
	offered map[string][]string
	holders []podresources.Holder
}

func (p *Plugin) queryPods(more ...podsQuery) {
	q := &p.podsQueries
	q.waiting = append(q.waiting, more...)
	if q.asking || len(q.waiting) == 0 {
		return
	}
	asked := q.waiting
	q.waiting, q.asking = nil, true
	p.audits.before(p, asked)
	p.running.Go(func() {
		a := p.fetchPods()
		p.step(func(now time.Time) {
			p.podsQueries.asking = false
			for _, q := range asked {
				p.podsAnswered(now, q, a)
			}
			p.queryPods()
		})
	})
}

func (p *Plugin) podsAnswered(now time.Time, q podsQuery, a podsAnswer) {
	if q.resource == "" {
		p.audit(now, a)
		return
	}
	answer := gate.Answer{Err: a.err, Known: a.known}
	for _, id := range a.offered[q.resource] {
		if q.devices == nil || slices.Contains(q.devices, id) {
			answer.Offered++
		}
	}
	for _, h := range a.holders {
		if h.Resource == q.resource {
			answer.InUse = append(answer.InUse, gate.Held(h))
		}
	}
	p.gate.Confirmed(now, q.resource, q.query, answer)
}

// fetchPods retries: the kubelet has one rate limit for all clients.
func (p *Plugin) fetchPods() podsAnswer {
	if p.cfg.Pods == nil {
		return podsAnswer{}
	}
	ctx, cancel := context.WithTimeout(p.ctx, podsTimeout)
	defer cancel()
	for {
		offered, err := p.cfg.Pods.Offered(ctx)
		if err == nil {
			var holders []podresources.Holder
			if holders, err = p.cfg.Pods.Held(ctx); err == nil {
				return podsAnswer{known: true, offered: offered, holders: holders}
			}
		}
		if errors.Is(err, podresources.ErrNotServed) || errors.Is(err, podresources.ErrUnsupported) {
			return podsAnswer{}
		}
		if backoff.Sleep(ctx, gate.ConfirmInterval) != nil {
			return podsAnswer{err: err}
		}
	}
}

// Memory is the durable record; *grants.Grants implements it.
type Memory interface {
	Put(ctx context.Context, records []grants.Record) error
	Remove(ctx context.Context, records []grants.Record) error
	All() []grants.Record
}

func (p *Plugin) recordAllocation(ctx context.Context, resource string, members []inventory.Member) error {
	if p.cfg.Memory == nil {
		return nil
	}
	records := make([]grants.Record, 0, len(members))
	for _, m := range members {
		records = append(records, grants.Of(resource, m, time.Now()))
	}
	return p.cfg.Memory.Put(ctx, records)
}

// held combines PodResources and the plugin's records. A stale record that
// cannot be removed does not fail the scan.
func (p *Plugin) held(ctx context.Context, s *inventory.Snapshot) []inventory.HeldDevice {
	last := p.fetchHolders(ctx)
	if p.cfg.Memory == nil {
		held, _ := grants.Merge(nil, last.holders, last.known, s, time.Now())
		return held
	}
	records := p.cfg.Memory.All()
	held, stale := grants.Merge(records, last.with(records), last.known, s, time.Now())
	err := p.cfg.Memory.Remove(ctx, stale)
	if err != nil {
		err = fmt.Errorf("remove records of released devices: %w", err)
	}
	if ctx.Err() == nil && p.problems.set("memory", err) && err != nil {
		p.logger.Error("cannot update allocation records, Allocate fails until this is resolved", "err", err)
	}
	return held
}

// lastHolders is the last successful answer.
type lastHolders struct {
	known   bool
	stale   bool // the last query failed
	at      time.Time
	holders []podresources.Holder
}

// with adds allocations newer than a stale answer.
func (l lastHolders) with(records []grants.Record) []podresources.Holder {
	if !l.stale {
		return l.holders
	}
	all := slices.Clone(l.holders)
	for _, r := range records {
		if r.At.After(l.at.Add(-grants.Grace)) {
			all = append(all, podresources.Holder{Resource: r.Resource, ID: r.ID})
		}
	}
	return all
}

// After a failure the last answer counts: a pod might still have its devices.
func (p *Plugin) fetchHolders(ctx context.Context) lastHolders {
	if p.cfg.Pods == nil {
		return lastHolders{}
	}
	bounded, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	at := time.Now()
	holders, err := p.cfg.Pods.Held(bounded)
	changed := ctx.Err() == nil && p.notices.set("pods", err)
	if err == nil {
		p.holders = lastHolders{known: true, at: at, holders: holders}
		return p.holders
	}
	p.holders.stale = true
	switch {
	case !changed:
	case errors.Is(err, podresources.ErrNotServed), errors.Is(err, podresources.ErrUnsupported):
		p.logger.Info("PodResources not available, pods that hold devices are unknown", "err", err)
	default:
		p.logger.Warn("PodResources query failed, using last known holders", "err", err)
	}
	return p.holders
}
