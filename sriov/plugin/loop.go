package plugin

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

// Events of the loop.
type (
	// event is an event of a state machine.
	event struct {
		at       time.Time // zero: when it is handled
		resource *resource // nil: of the gate
		event    gate.Event
		inbox    inbox  // gets the answers, for the begin of a call or a stream
		drop     func() // ends the stream, for gate.StreamUp
	}
	// gone is the end of a stopped resource, with its last report.
	gone struct {
		resource *resource
		report   gate.Report
	}
	kubeletStarted struct{}
	rescan         struct{}
	auditDue       struct{}
	// Others are *finding, answered and *loaded.
)

// action is an action of a state machine.
type action struct {
	resource *resource // nil: of the gate
	gate.Action
}

// inbox is where a call or a stream waits for the actions that concern it. It holds
// one; a newer one replaces it.
type inbox chan gate.Action

func newInbox() inbox { return make(inbox, 1) }

// put is called by the loop only.
func (i inbox) put(a gate.Action) {
	select {
	case <-i:
	default:
	}
	i <- a
}

// next waits for an action.
func (p *Plugin) next(ctx context.Context, in inbox) (gate.Action, error) {
	select {
	case a := <-in:
		return a, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.loop.Done():
	}
	select {
	case a := <-in: // the last one
		return a, nil
	default:
		return nil, errStopped
	}
}

var errStopped = &control.End{Code: codes.Unavailable, Reason: "the plugin stops"}

// step handles an event of the loop.
func (p *Plugin) step(now time.Time, e any) []action {
	switch e := e.(type) {
	case event:
		p.track(e)
		if e.at.IsZero() {
			e.at = now
		}
		if e.resource != nil {
			return e.resource.step(e.at, e.event)
		}
		return p.stepGate(e.at, e.event)
	case gone:
		delete(p.resources, e.resource.name)
		return p.stepGate(now, gate.Reported{Resource: e.resource.name, Report: e.report})
	case *finding:
		return p.scanDone(now, e)
	case *loaded:
		p.loaded.Store(e)
		p.Rescan()
		return p.stepGate(now, gate.Configured{Hash: e.hash, Resources: e.names()})
	case answered:
		return p.podsAnswered(now, e)
	case rescan:
		p.rescan(now)
	case auditDue:
		p.ask(question{})
	case kubeletStarted:
		p.logger.Info("kubelet restarted")
		var all []action
		for _, r := range p.resources {
			all = append(all, r.step(now, gate.KubeletStarted{})...)
		}
		return all
	}
	return nil
}

// track remembers who waits for answers.
func (p *Plugin) track(e event) {
	switch of := e.event.(type) {
	case gate.Enable:
		p.sessions[of.Session] = e.inbox
	case gate.Closed:
		delete(p.sessions, of.Session)
	case gate.Heartbeat:
		p.calls[of.Call] = e.inbox
	case gate.Disable:
		p.calls[of.Call] = e.inbox
	case gate.DisableGone:
		delete(p.calls, of.Call)
	case gate.AllocateBegin:
		p.calls[of.Call] = e.inbox
	case gate.AllocateEnd:
		delete(p.calls, of.Call)
	case gate.StreamUp:
		p.calls[of.Stream] = e.inbox
		e.resource.stream = &stream{of.Stream, e.drop}
		e.resource.listened = true
	case gate.StreamDown:
		delete(p.calls, of.Stream)
		if s := e.resource.stream; s != nil && s.id == of.Stream {
			e.resource.stream = nil
		}
	}
}

// stepGate steps the gate, and the resources that it sends events to.
func (p *Plugin) stepGate(now time.Time, e gate.Event) []action {
	var all []action
	for _, a := range p.gate.Step(now, e) {
		if to, is := a.(gate.To); !is {
			all = append(all, action{nil, a})
		} else if r := p.resource(to.Resource); r != nil {
			all = append(all, r.step(now, to.Event)...)
		}
	}
	return all
}

func (r *resource) step(now time.Time, e gate.Event) []action {
	var all []action
	for _, a := range r.machine.Step(now, e) {
		all = append(all, action{r, a})
	}
	return all
}

// do does an action of a state machine.
func (p *Plugin) do(of action) {
	switch a := of.Action.(type) {
	case gate.Set:
		name := "gate"
		if of.resource != nil {
			name = of.resource.name
		}
		p.loop.Set(name+" "+string(a.Timer), a.At, event{resource: of.resource, event: gate.Expired{Timer: a.Timer}})
	case gate.End:
		p.end(a)
	case gate.Publish:
		p.publish(a)
	case gate.Beat:
		p.answer(a.Call, a)
		delete(p.calls, a.Call)
	case gate.Disabled:
		p.answer(a.Call, a)
		delete(p.calls, a.Call)
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
	case gate.Notify:
		p.notify(of.resource, a.Report)
	case gate.Confirm:
		p.confirm(of.resource, a.Epoch)
	default:
		of.resource.do(a)
	}
}

func (p *Plugin) answer(call uint64, a gate.Action) {
	if in := p.calls[call]; in != nil {
		in.put(a)
	}
}

// notify sends the gate the report of a resource. That of a stopped one waits until
// its socket and registration are gone, since the gate may add the resource again.
func (p *Plugin) notify(r *resource, report gate.Report) {
	if report.Phase != gate.Stopped {
		p.loop.Send(event{event: gate.Reported{Resource: r.name, Report: report}})
		return
	}
	p.running.Go(func() {
		r.stop()
		p.loop.Send(gone{r, report})
	})
}

func (p *Plugin) end(a gate.End) {
	in := p.sessions[a.Session]
	if in == nil {
		return
	}
	delete(p.sessions, a.Session)
	level := p.logger.Info
	if a.Code != codes.OK {
		level = p.logger.Warn
	}
	level("a control stream ends", "session", a.Session, "code", a.Code.String(), "reason", a.Reason)
	in.put(a)
}

// publish sends the status to every stream, and logs what changed.
func (p *Plugin) publish(a gate.Publish) {
	s, last := a.Status, p.status.Load()
	p.status.Store(&s)
	for _, in := range p.sessions {
		in.put(a)
	}
	if last.State != s.State || last.Holding != s.Holding || last.Generation != s.Generation || last.Error != s.Error {
		p.logger.Info("the state of the plugin changed", "state", s.State, "control", s.Holding, "generation", s.Generation,
			"resources", s.Pools, "devices", s.Devices, "error", s.Error)
	}
}

// resource returns the resource of a name, and makes it if needed.
func (p *Plugin) resource(name string) *resource {
	if r := p.resources[name]; r != nil {
		return r
	}
	r, err := newResource(p, name)
	if err != nil {
		p.logger.Error("a resource cannot be served", "resource", name, "error", err)
		p.problems.set("resource "+name, err)
		return nil
	}
	p.resources[name] = r
	return r
}
