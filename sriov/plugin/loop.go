package plugin

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

type event interface {
	handle(p *Plugin, now time.Time) []action
}

// Other events are *finding, *loaded and answered.
type (
	gateEvent struct {
		gate.Event
		at    time.Time // zero: now
		inbox inbox     // of a gate.Enable
	}
	resourceEvent struct {
		gate.ResourceEvent
		resource *resource
	}
	// It has released its socket and registration.
	resourceStopped struct {
		resource *resource
		report   gate.Report
	}
	kubeletStarted struct{}
	rescan         struct{}
	auditDue       struct{}
)

type action struct {
	resource *resource // nil: the gate's
	gate.Action
}

// inbox holds an action for a call or stream; a newer one replaces it.
type inbox chan gate.Action

func newInbox() inbox { return make(inbox, 1) }

// put is called by the event loop only.
func (i inbox) put(a gate.Action) {
	select {
	case <-i:
	default:
	}
	i <- a
}

// The caller of call must call end.
func (p *Plugin) call() (id uint64, in inbox, end func()) {
	id, in = p.ids.Add(1), newInbox()
	p.calls.Store(id, in)
	return id, in, func() { p.calls.Delete(id) }
}

func (p *Plugin) next(ctx context.Context, in inbox) (gate.Action, error) {
	select {
	case a := <-in:
		return a, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.loop.Done():
	}
	select {
	case a := <-in:
		return a, nil
	default:
		return nil, errStopped
	}
}

var errStopped = &control.End{Code: codes.Unavailable, Reason: "the plugin is shutting down"}

func (e gateEvent) handle(p *Plugin, now time.Time) []action {
	switch of := e.Event.(type) {
	case gate.Enable:
		p.sessions[of.Session] = e.inbox
	case gate.StreamClosed:
		delete(p.sessions, of.Session)
	}
	if !e.at.IsZero() {
		now = e.at
	}
	return p.stepGate(now, e.Event)
}

func (e resourceEvent) handle(_ *Plugin, now time.Time) []action {
	r := e.resource
	switch of := e.ResourceEvent.(type) {
	case gate.StreamUp:
		r.stream, r.hadStream = of.Stream, true
	case gate.StreamDown:
		if r.stream == of.Stream {
			r.stream = 0
		}
	}
	return r.plugin.stepResource(now, r, e.ResourceEvent)
}

func (e resourceStopped) handle(p *Plugin, now time.Time) []action {
	delete(p.resources, e.resource.name)
	return p.stepGate(now, gate.Reported{Resource: e.resource.name, Report: e.report})
}

func (l *loaded) handle(p *Plugin, now time.Time) []action {
	p.loaded.Store(l)
	p.Rescan()
	return p.stepGate(now, gate.Configured{Hash: l.hash, Resources: l.names()})
}

func (auditDue) handle(p *Plugin, _ time.Time) []action {
	p.queryPods(podsQuery{})
	return nil
}

func (kubeletStarted) handle(p *Plugin, now time.Time) []action {
	p.logger.Info("kubelet restarted")
	var all []action
	for _, r := range p.resources {
		all = append(all, p.stepResource(now, r, gate.KubeletStarted{})...)
	}
	return all
}

// stepGate steps the gate, the resources to which it forwards, and the gate again
// with their reports.
func (p *Plugin) stepGate(now time.Time, events ...gate.Event) []action {
	var all []action
	for ; len(events) > 0; events = events[1:] {
		for _, a := range p.gate.Step(now, events[0]) {
			if to, is := a.(gate.Forward); !is {
				all = append(all, action{nil, a})
			} else if r := p.resource(to.Resource); r != nil {
				actions, reports := r.step(now, to.Event)
				all, events = append(all, actions...), append(events, reports...)
			}
		}
	}
	return all
}

func (p *Plugin) stepResource(now time.Time, r *resource, e gate.ResourceEvent) []action {
	actions, reports := r.step(now, e)
	return append(actions, p.stepGate(now, reports...)...)
}

// A stopped resource's report waits until its socket and registration are gone:
// the gate might add it again.
func (r *resource) step(now time.Time, e gate.ResourceEvent) (all []action, reports []gate.Event) {
	for _, a := range r.machine.Step(now, e) {
		if n, is := a.(gate.Notify); is && n.Report.Phase != gate.Stopped {
			reports = append(reports, gate.Reported{Resource: r.name, Report: n.Report})
		} else {
			all = append(all, action{r, a})
		}
	}
	return all, reports
}

func (p *Plugin) do(of action) {
	r := of.resource
	switch a := of.Action.(type) {
	case gate.Set:
		if r == nil {
			p.loop.Set("gate "+string(a.Timer), a.At, gateEvent{Event: gate.Expired{Timer: a.Timer}})
		} else {
			p.loop.Set(r.name+" "+string(a.Timer), a.At, resourceEvent{gate.Expired{Timer: a.Timer}, r})
		}
	case gate.EndStream:
		p.end(a)
	case gate.Publish:
		p.publish(a)
	case gate.HeartbeatReply:
		p.answer(a.Call, a)
	case gate.DisableReply:
		p.answer(a.Call, a)
	case gate.Scan:
		p.scanNow(a.Seq)
	case gate.Exit:
		p.loop.Stop()
	case gate.Admit:
		p.answer(a.Call, a)
	case gate.Approve:
		p.answer(a.Call, a)
	case gate.Refuse:
		p.answer(a.Call, a)
	case gate.Send:
		p.answer(a.Stream, a)
	case gate.Notify: // Stopped
		p.running.Go(func() {
			r.stop()
			p.loop.Send(resourceStopped{r, a.Report})
		})
	case gate.Confirm:
		p.confirm(r, a)
	case gate.Serve:
		r.work.Go(func() { r.send(gate.Served{Err: r.endpoint.ensure(r.ctx)}) })
	case gate.Register:
		attempt := r.attempts.Add(1)
		r.work.Go(func() { r.register(attempt) })
	case gate.Stop:
		r.end()
	}
}

func (p *Plugin) answer(call uint64, a gate.Action) {
	if in, waits := p.calls.Load(call); waits {
		in.(inbox).put(a)
	}
}

func (p *Plugin) end(a gate.EndStream) {
	in := p.sessions[a.Session]
	if in == nil {
		return
	}
	delete(p.sessions, a.Session)
	level := p.logger.Info
	if a.Code != codes.OK {
		level = p.logger.Warn
	}
	level("control stream ended", "session", a.Session, "code", a.Code.String(), "reason", a.Reason)
	in.put(a)
}

func (p *Plugin) publish(a gate.Publish) {
	s, last := a.Status, p.status.Load()
	p.status.Store(&s)
	for _, in := range p.sessions {
		in.put(a)
	}
	if last.State != s.State || last.Holding != s.Holding || last.Generation != s.Generation || last.Error != s.Error {
		p.logger.Info("plugin state changed", "state", s.State, "control", s.Holding, "generation", s.Generation,
			"resources", s.Pools, "devices", s.Devices, "err", s.Error)
	}
}

func (p *Plugin) resource(name string) *resource {
	if r := p.resources[name]; r != nil {
		return r
	}
	r, err := newResource(p, name)
	if err != nil {
		p.logger.Error("cannot serve resource", "resource", name, "err", err)
		p.problems.set("resource "+name, err)
		return nil
	}
	p.resources[name] = r
	return r
}
