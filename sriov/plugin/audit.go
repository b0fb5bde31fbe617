package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
)

// auditMost is the longest time between two audits.
const auditMost = 30 * time.Second

// audit compares now and then what the kubelet offers with what it was told. A
// kubelet knows plugins by the name of their resource only: where another one
// registers for it and ends, ours stays connected, nobody hears it, and the
// resource stays at zero. So a stream that brought nothing about at two audits
// ends, which has the resource registered anew.
func (p *Plugin) audit(ctx context.Context) {
	unheard := map[string]*stream{} // by resource, at the audit before
	told := map[string]bool{}       // resources of which something is wrong
	for {
		if pause(ctx, min(p.cfg.Interval, auditMost)) != nil {
			return
		}
		before := p.Status()
		streams := p.deps.listening.all()
		n := p.deps.census.now(ctx)
		if !n.known {
			clear(unheard)
			continue
		}
		after := p.Status()
		last := unheard
		unheard = map[string]*stream{}
		for name := range told { // that may be withdrawn, or be no more
			if s := streams[name]; s == nil || !stands(before.Resources[name], after.Resources[name]) {
				p.wrong.set("kubelet and "+name, nil)
				delete(told, name)
			}
		}
		for name, r := range after.Resources {
			s := streams[name]
			if s == nil || !stands(before.Resources[name], r) {
				continue
			}
			err := p.strangers(name, n.offered[name])
			if told[name] = err != nil; p.wrong.set("kubelet and "+name, err) && err != nil {
				p.cfg.Logger.Error("the kubelet does not have the devices of a resource from here", "resource", name, "error", err)
			}
			switch {
			case len(n.offered[name]) > 0:
			case last[name] != s:
				unheard[name] = s
			default:
				p.cfg.Logger.Warn("the kubelet offers nothing of a resource though it was told of devices; it is registered anew", "resource", name, "devices", r.Offered)
				s.drop()
			}
		}
	}
}

// stands reports whether a resource had devices on offer all the time between
// two reports.
func stands(before, after gate.Report) bool {
	on := func(r gate.Report) bool { return r.Phase == gate.Offered && r.Streaming && r.Offered > 0 }
	return on(before) && on(after) && before.Epoch == after.Epoch
}

// strangers is an error when none of what the kubelet offers of a resource is
// ours.
func (p *Plugin) strangers(name string, offered []string) error {
	f := p.found.Load()
	if len(offered) == 0 || f == nil || f.offers[name] == nil {
		return nil
	}
	if slices.ContainsFunc(offered, func(id string) bool { _, ours := f.offers[name].members[id]; return ours }) {
		return nil
	}
	return fmt.Errorf("the kubelet offers other devices as %s (%s, ...): another device plugin has registered for it", name, slices.Min(offered))
}
