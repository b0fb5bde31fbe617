package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Memory is the record of what was given out; *grants.Grants is the real one.
type Memory interface {
	Put(ctx context.Context, records []grants.Record) error
	Remove(ctx context.Context, records []grants.Record) error
	All() []grants.Record
}

// remember puts on record what a container is about to be given.
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

// held is who has what, by the kubelet's word and the plugin's own record. That
// a record cannot be taken back is no reason not to look at the machine.
func (p *Plugin) held(ctx context.Context, s *inventory.Snapshot) []inventory.HeldDevice {
	said := p.holders(ctx)
	if p.cfg.Memory == nil {
		held, _ := grants.Merge(nil, said.holders, said.known, s, time.Now())
		return held
	}
	records := p.cfg.Memory.All()
	held, stale := grants.Merge(records, said.with(records), said.known, s, time.Now())
	err := p.cfg.Memory.Remove(ctx, stale)
	if err != nil {
		err = fmt.Errorf("forget devices that no pod has any more: %w", err)
	}
	if ctx.Err() == nil && p.wrong.set("memory", err) && err != nil {
		p.cfg.Logger.Error("what was given out cannot be kept on record; until it can, no device is given out", "error", err)
	}
	return held
}

// word is the kubelet's last word about who has which device.
type word struct {
	known   bool // it has ever said something
	late    bool // it does not answer now
	at      time.Time
	holders []podresources.Holder
}

// with adds what was given out too late for a word that is not renewed: nobody
// knows better than the record then.
func (w word) with(records []grants.Record) []podresources.Holder {
	if !w.late {
		return w.holders
	}
	all := slices.Clone(w.holders)
	for _, r := range records {
		if r.At.After(w.at.Add(-grants.Grace)) {
			all = append(all, podresources.Holder{Resource: r.Resource, ID: r.ID})
		}
	}
	return all
}

// holders asks the kubelet. While it does not answer, its last word counts: what
// a pod had then it may still have.
func (p *Plugin) holders(ctx context.Context) word {
	if p.cfg.Pods == nil {
		return word{}
	}
	bounded, cancel := context.WithTimeout(ctx, censusBound)
	defer cancel()
	at := time.Now()
	holders, err := p.cfg.Pods.Held(bounded)
	news := ctx.Err() == nil && p.odd.set("pods", err)
	if err == nil {
		p.lastWord = word{known: true, at: at, holders: holders}
		return p.lastWord
	}
	p.lastWord.late = true
	switch {
	case !news:
	case errors.Is(err, podresources.ErrNobody), errors.Is(err, podresources.ErrUnsupported):
		p.cfg.Logger.Info("the kubelet does not say which pod has which device", "error", err)
	default:
		p.cfg.Logger.Warn("the kubelet does not say which pod has which device", "error", err)
	}
	return p.lastWord
}
