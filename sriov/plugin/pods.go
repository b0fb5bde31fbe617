package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// podsTimeout bounds a question to PodResources.
const podsTimeout = 2 * time.Second

// question asks PodResources about a resource for a withdrawal, or about all
// resources for the audit.
type question struct {
	resource *resource // nil: the audit
	epoch    uint64
}

// questions are asked together, one call at a time: on a node with many resources a
// withdrawal asks for each. An answer counts for questions from before the call.
type questions struct {
	waiting []question
	asking  bool
}

// answered is the event of an answer of PodResources.
type answered struct {
	questions []question
	podsAnswer
}

// podsAnswer is what the kubelet offers and who has which device.
type podsAnswer struct {
	known   bool
	offered map[string][]string
	holders []podresources.Holder
}

// confirm asks whether the kubelet still offers devices of a resource. Devices of a
// resource whose ListAndWatch was never called are another plugin's, and no
// withdrawal here would end them.
func (p *Plugin) confirm(r *resource, epoch uint64) {
	if p.cfg.Pods == nil || !r.listened {
		r.send(gate.Confirmed{Epoch: epoch})
		return
	}
	p.ask(question{r, epoch})
}

func (p *Plugin) ask(more ...question) {
	q := &p.questions
	q.waiting = append(q.waiting, more...)
	if q.asking || len(q.waiting) == 0 {
		return
	}
	asked := q.waiting
	q.waiting, q.asking = nil, true
	p.audits.before(p, asked)
	p.running.Go(func() { p.loop.Send(answered{asked, p.askPods()}) })
}

func (a answered) handle(p *Plugin, now time.Time) []action {
	p.questions.asking = false
	var all []action
	for _, q := range a.questions {
		if q.resource == nil {
			p.audit(a.podsAnswer)
			continue
		}
		c := gate.Confirmed{Epoch: q.epoch, Known: a.known, Offered: len(a.offered[q.resource.name])}
		for _, h := range a.holders {
			if h.Resource == q.resource.name {
				c.InUse = append(c.InUse, gate.Held(h))
			}
		}
		all = append(all, q.resource.step(now, c)...)
	}
	p.ask()
	return all
}

// askPods repeats the question until the timeout: the kubelet limits the rate of
// answers to all its clients together.
func (p *Plugin) askPods() podsAnswer {
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
		if errors.Is(err, podresources.ErrNobody) || errors.Is(err, podresources.ErrUnsupported) || pause(ctx, gate.ConfirmPause) != nil {
			return podsAnswer{}
		}
	}
}

// Memory is the record of allocations; *grants.Grants is the real one.
type Memory interface {
	Put(ctx context.Context, records []grants.Record) error
	Remove(ctx context.Context, records []grants.Record) error
	All() []grants.Record
}

// remember records the devices that a container is about to get.
func (p *Plugin) remember(ctx context.Context, resource string, members []inventory.Member) error {
	if p.cfg.Memory == nil {
		return nil
	}
	records := make([]grants.Record, 0, len(members))
	for _, m := range members {
		records = append(records, grants.Of(resource, m, time.Now()))
	}
	return p.cfg.Memory.Put(ctx, records)
}

// held returns the devices that pods have, by the kubelet and the plugin's own
// record. A record that cannot be removed does not fail the scan.
func (p *Plugin) held(ctx context.Context, s *inventory.Snapshot) []inventory.HeldDevice {
	last := p.askHolders(ctx)
	if p.cfg.Memory == nil {
		held, _ := grants.Merge(nil, last.holders, last.known, s, time.Now())
		return held
	}
	records := p.cfg.Memory.All()
	held, stale := grants.Merge(records, last.with(records), last.known, s, time.Now())
	err := p.cfg.Memory.Remove(ctx, stale)
	if err != nil {
		err = fmt.Errorf("forget devices that no pod has any more: %w", err)
	}
	if ctx.Err() == nil && p.problems.set("memory", err) && err != nil {
		p.logger.Error("what was given out cannot be kept on record; until it can, no device is given out", "error", err)
	}
	return held
}

// lastHolders is the kubelet's last answer about who has which device.
type lastHolders struct {
	known   bool // there was an answer
	stale   bool // the last question had none
	at      time.Time
	holders []podresources.Holder
}

// with adds allocations that are too recent for a stale answer.
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

// askHolders asks the kubelet who has which device. Without an answer the last one
// counts: a pod may still have what it had then.
func (p *Plugin) askHolders(ctx context.Context) lastHolders {
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
	case errors.Is(err, podresources.ErrNobody), errors.Is(err, podresources.ErrUnsupported):
		p.logger.Info("the kubelet does not say which pod has which device", "error", err)
	default:
		p.logger.Warn("the kubelet does not say which pod has which device", "error", err)
	}
	return p.holders
}
