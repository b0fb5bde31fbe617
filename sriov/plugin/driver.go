package plugin

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/gate"
)

// driver does the gate's work, on goroutines that return the result to the gate.
type driver struct{ *Plugin }

// Scan implements gate.Driver.
func (d driver) Scan(seq uint64) {
	d.scans.seq = seq
	d.startScan()
}

// Register implements gate.Driver.
func (d driver) Register(resource string) {
	e := d.endpoints[resource]
	if e == nil {
		e = newEndpoint(d.Plugin, resource)
		d.endpoints[resource] = e
	}
	e.attempt++
	attempt := e.attempt
	e.work.Go(func() { e.register(attempt) })
}

// Confirm implements gate.Driver.
func (d driver) Confirm(resource string, query uint64, devices []string) {
	d.queryPods(podsQuery{resource, query, devices})
}

// Stop implements gate.Driver.
func (d driver) Stop(resource string) {
	e := d.endpoints[resource]
	delete(d.endpoints, resource)
	if e != nil {
		e.stopped = true
	}
	d.running.Go(func() {
		if e != nil {
			e.forget()
			e.end()
		}
		d.step(func(now time.Time) { d.gate.Released(now, resource) })
	})
}

// step runs an event of the gate.
func (p *Plugin) step(event func(now time.Time)) {
	p.monitor.Do(func(now time.Time) {
		event(now)
		p.publish()
	})
}

// next is the next deadline.
func (p *Plugin) next() time.Time {
	first := p.gate.Next()
	for _, at := range []time.Time{p.scans.due, p.audits.due} {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

func (p *Plugin) tick(now time.Time) {
	passed := func(at *time.Time) bool {
		if at.IsZero() || now.Before(*at) {
			return false
		}
		*at = time.Time{}
		return true
	}
	p.gate.Tick(now)
	if passed(&p.scans.due) {
		p.rescan(now)
	}
	if passed(&p.audits.due) {
		p.queryPods(podsQuery{})
	}
	p.publish()
}

func (p *Plugin) publish() {
	s := p.gate.Status()
	last := p.status.Swap(s)
	if last.State != s.State || last.Holding != s.Holding || last.Generation != s.Generation || last.Error != s.Error {
		p.logger.Info("plugin state changed", "state", s.State, "control", s.Holding, "generation", s.Generation,
			"resources", s.Pools, "devices", s.Devices, "err", s.Error)
	}
}

func (p *Plugin) logEnd(session string, end *gate.End) {
	level := p.logger.Info
	if end.Code != codes.OK {
		level = p.logger.Warn
	}
	level("control stream ended", "session", session, "code", end.Code.String(), "reason", end.Reason)
}
