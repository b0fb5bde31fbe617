package plugin

import (
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
)

const maxAuditPause = 30 * time.Second

// audits compares PodResources with the lists sent. After another plugin
// registered for the resource and ended, the kubelet keeps this plugin's
// connection but ignores its stream, and the resource stays at zero. A stream
// without effect in two audits is ended, to register again. From Kubernetes 1.37
// on, the resource stays at the other plugin's devices instead: see checkCall.
type audits struct {
	due     time.Time
	status  *gate.Status            // at the query
	streams map[string]*gate.Stream // by resource, at the query
	ignored map[string]*gate.Stream // without effect at the last audit
	foreign map[string]*gate.Stream // at the last audit, of resources with only another plugin's devices
}

func (p *Plugin) startAudit(now time.Time) {
	if p.cfg.Pods != nil {
		p.audits.due = now.Add(min(p.cfg.Interval, maxAuditPause))
	}
}

func (a *audits) before(p *Plugin, asked []podsQuery) {
	if !slices.ContainsFunc(asked, func(q podsQuery) bool { return q.resource == "" }) {
		return
	}
	a.status, a.streams = p.gate.Status(), map[string]*gate.Stream{}
	for name, e := range p.endpoints {
		a.streams[name] = e.stream
	}
}

func (p *Plugin) audit(now time.Time, pods podsAnswer) {
	p.startAudit(now)
	a := &p.audits
	last := a.ignored
	a.ignored = map[string]*gate.Stream{}
	if !pods.known {
		return
	}
	status := p.gate.Status()
	audited := func(name string) bool {
		return a.streams[name] != nil && offeredThroughout(a.status.Resources[name], status.Resources[name])
	}
	for name := range a.foreign { // withdrawn or removed
		if !audited(name) {
			p.problems.set("kubelet and "+name, nil)
			delete(a.foreign, name)
		}
	}
	for name, r := range status.Resources {
		if !audited(name) {
			continue
		}
		err := p.checkForeign(name, pods.offered[name])
		if err != nil {
			a.foreign[name] = a.streams[name]
		} else {
			delete(a.foreign, name)
		}
		if p.problems.set("kubelet and "+name, err) && err != nil {
			p.logger.Error("kubelet offers devices of another plugin", "resource", name, "err", err)
		}
		switch s := a.streams[name]; {
		case len(pods.offered[name]) > 0:
		case last[name] != s:
			a.ignored[name] = s
		default:
			p.logger.Warn("kubelet ignores the devices of a resource, registering again", "resource", name, "devices", r.Offered)
			p.endpoints[name].ignored = s
		}
	}
}

func offeredThroughout(before, after gate.Report) bool {
	offered := func(r gate.Report) bool { return r.Phase == gate.Offered && r.Streaming && r.Offered > 0 }
	return offered(before) && offered(after) && before.Openings == after.Openings
}

// checkCall ends the stream if the kubelet has only another plugin's devices, and
// calls this plugin to allocate them: the other one has ended. Before such a call
// nothing shows it, and kubelets before 1.37 end the connection of the newer plugin
// with this one's. It is called in a step.
func (e *endpoint) checkCall() {
	if s := e.plugin.audits.foreign[e.name]; s != nil && s == e.stream && s != e.ignored {
		e.logger.Warn("kubelet allocates devices of another plugin that has ended, registering again")
		e.ignored = s
	}
}

// checkForeign fails if all the kubelet's devices of a resource are another
// plugin's.
func (p *Plugin) checkForeign(name string, offered []string) error {
	f := p.found.Load()
	if len(offered) == 0 || f == nil || f.offers[name] == nil {
		return nil
	}
	if slices.ContainsFunc(offered, func(id string) bool { _, ours := f.offers[name].members[id]; return ours }) {
		return nil
	}
	return fmt.Errorf("the kubelet offers unknown devices of resource %s (%s, ...): another device plugin has registered for it", name, slices.Min(offered))
}
