package plugin

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/gate"
)

// order is what the goroutine that owns the gate is told. One of its fields
// besides at is set, or event with who waits for it.
type order struct {
	at    time.Time
	event gate.ControlEvent

	session *session           // with Enable
	beat    chan gate.Beat     // with Heartbeat
	disable chan gate.Disabled // with Disable

	told    *told // what a resource reports
	gone    *told // the last report of a resource of which nothing is left
	scanned *scanned
	config  *loaded // to be taken over
	kubelet bool    // it started anew
}

// told is a report with its resource.
type told struct {
	from   *resource
	report gate.Report
}

func (p *Plugin) put(o order) {
	o.at = time.Now()
	p.mail.put(o)
}

// run owns the gate until everything is taken back, or ctx ends.
func (p *Plugin) run(ctx context.Context) error {
	defer close(p.ended)
	defer p.alarms.timer.Stop()
	defer p.endResources()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.exited:
			return nil
		case <-p.mail.bell:
			for _, o := range p.mail.take() {
				p.hear(ctx, o)
			}
		case <-p.alarms.timer.C:
			now := time.Now()
			for _, name := range p.alarms.due(now) {
				p.step(ctx, now, gate.Expired{Timer: name})
			}
		}
	}
}

func (p *Plugin) endResources() {
	var all sync.WaitGroup
	for _, r := range p.resources {
		all.Go(r.stop)
	}
	all.Wait()
}

func (p *Plugin) hear(ctx context.Context, o order) {
	switch {
	case o.told != nil:
		p.hearResource(ctx, o.at, *o.told)
	case o.gone != nil:
		delete(p.resources, o.gone.from.name)
		p.step(ctx, o.at, gate.Told{Resource: o.gone.from.name, Report: o.gone.report})
	case o.scanned != nil:
		p.hearScan(ctx, o.at, o.scanned)
	case o.config != nil:
		p.takeOver(ctx, o.at, o.config)
	case o.kubelet:
		p.cfg.Logger.Info("the kubelet started anew")
		for _, r := range p.resources {
			r.tell(gate.KubeletStarted{})
		}
	default:
		p.await(o)
		p.step(ctx, o.at, o.event)
	}
}

// await remembers who waits for what becomes of an event.
func (p *Plugin) await(o order) {
	switch e := o.event.(type) {
	case gate.Enable:
		p.sessions[e.Claim.Session] = o.session
	case gate.Closed:
		delete(p.sessions, e.Session)
	case gate.Heartbeat:
		p.beats[e.Call] = o.beat
	case gate.Disable:
		p.disables[e.Call] = o.disable
	case gate.DisableGone:
		delete(p.disables, e.Call)
	}
}

func (p *Plugin) hearResource(ctx context.Context, at time.Time, t told) {
	if t.report.Phase == gate.Stopped {
		// A successor of its name must not meet what is left of it: a socket, or
		// a registration that is about to be taken back.
		p.running.Go(func() {
			t.from.stop()
			p.put(order{gone: &t})
		})
		return
	}
	p.step(ctx, at, gate.Told{Resource: t.from.name, Report: t.report})
}

// hearScan gives every resource what was found, before the gate hears of it. A
// scan by a configuration that is no more says nothing; another is under way.
func (p *Plugin) hearScan(ctx context.Context, at time.Time, s *scanned) {
	if s.finding != nil && s.finding.loaded != p.loaded.Load() {
		return
	}
	if s.finding != nil {
		p.found.Store(s.finding)
		for name, o := range s.finding.offers {
			if r := p.resource(ctx, name); r != nil {
				r.renew(o)
			}
		}
	}
	p.step(ctx, at, gate.Scanned{Seq: s.seq, Err: s.err})
}

func (p *Plugin) takeOver(ctx context.Context, at time.Time, l *loaded) {
	p.loaded.Store(l)
	p.step(ctx, at, gate.Configured{Hash: l.hash, Resources: l.names()})
	p.Rescan()
}

func (p *Plugin) step(ctx context.Context, at time.Time, e gate.ControlEvent) {
	for _, a := range p.machine.Step(at, e) {
		p.do(ctx, a)
	}
	status := p.machine.Status()
	p.status.Store(&status)
	for _, s := range p.fresh {
		s.publish(status)
	}
	p.fresh = nil
}

func (p *Plugin) do(ctx context.Context, a gate.ControlAction) {
	switch a := a.(type) {
	case gate.Accept:
		if s := p.sessions[a.Session]; s != nil {
			s.accepted = true
			p.fresh = append(p.fresh, s)
		}
	case gate.End:
		p.end(a)
	case gate.Beat:
		if c := p.beats[a.Call]; c != nil {
			delete(p.beats, a.Call)
			c <- a
		}
	case gate.Disabled:
		if c := p.disables[a.Call]; c != nil {
			delete(p.disables, a.Call)
			c <- a
		}
	case gate.Scan:
		p.wanted.Store(a.Seq)
		ring(p.asked)
	case gate.To:
		if r := p.resource(ctx, a.Resource); r != nil {
			r.tell(a.Event)
		}
	case gate.Publish:
		p.publish(a.Status)
	case gate.Set:
		p.alarms.set(a.Timer, a.At)
	case gate.Exit:
		close(p.exited)
	}
}

func (p *Plugin) end(a gate.End) {
	s := p.sessions[a.Session]
	if s == nil {
		return
	}
	delete(p.sessions, a.Session)
	level := p.cfg.Logger.Info
	if a.Code != codes.OK {
		level = p.cfg.Logger.Warn
	}
	level("a control stream ends", "session", a.Session, "code", a.Code.String(), "reason", a.Reason)
	s.finish(a.Code, a.Reason)
}

// publish tells every holder how the plugin is, and people what changed.
func (p *Plugin) publish(s gate.Status) {
	for _, session := range p.sessions {
		if session != nil && session.accepted {
			session.publish(s)
		}
	}
	last := p.status.Load()
	if last.State != s.State || last.Holding != s.Holding || last.Generation != s.Generation || last.Error != s.Error {
		p.cfg.Logger.Info("the state of the plugin changed", "state", s.State, "control", s.Holding, "generation", s.Generation,
			"resources", s.Pools, "devices", s.Devices, "error", s.Error)
	}
}

// resource is the one of a name, made when it is not there.
func (p *Plugin) resource(ctx context.Context, name string) *resource {
	if r := p.resources[name]; r != nil {
		return r
	}
	var r *resource
	ready := make(chan struct{})
	r, err := newResource(ctx, name, p.deps, func(report gate.Report) {
		<-ready
		p.put(order{told: &told{from: r, report: report}})
	})
	close(ready)
	if err != nil {
		p.cfg.Logger.Error("a resource cannot be served", "resource", name, "error", err)
		p.wrong.set("resource "+name, err)
		return nil
	}
	p.resources[name] = r
	return r
}
