package plugin

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

// What the control socket calls: control.Plugin.
var _ control.Plugin = (*Plugin)(nil)

// session is a stream of EnableDevices.
type session struct {
	plugin   *Plugin
	id       string
	closed   sync.Once
	accepted bool // owned by the goroutine that owns the gate

	mu     sync.Mutex
	news   *gate.Status // that Next has not returned
	over   *control.End
	notice chan struct{}
}

func (s *session) publish(status gate.Status) {
	s.mu.Lock()
	s.news = &status
	s.mu.Unlock()
	ring(s.notice)
}

func (s *session) finish(code codes.Code, reason string) {
	s.mu.Lock()
	s.over = &control.End{Code: code, Reason: reason}
	s.mu.Unlock()
	ring(s.notice)
}

// Next returns the newest status that it has not returned yet.
func (s *session) Next(ctx context.Context) (gate.Status, error) {
	for {
		if status, over := s.take(); over != nil {
			return gate.Status{}, over
		} else if status != nil {
			return *status, nil
		}
		select {
		case <-s.notice:
		case <-ctx.Done():
			return gate.Status{}, context.Cause(ctx)
		case <-s.plugin.ended:
			return gate.Status{}, stopped()
		}
	}
}

func (s *session) take() (*gate.Status, *control.End) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return nil, s.over
	}
	news := s.news
	s.news = nil
	return news, nil
}

// Close tells the gate that the stream has ended.
func (s *session) Close() {
	s.closed.Do(func() { s.plugin.put(order{event: gate.Closed{Session: s.id}}) })
}

func stopped() *control.End {
	return &control.End{Code: codes.Unavailable, Reason: "the plugin stops"}
}

// Enable gives the devices to a claim. One that means another configuration than
// the plugin has may be ahead of what was read, so that is read again first.
func (p *Plugin) Enable(_ context.Context, c gate.Claim) (control.Stream, error) {
	if c.Hash != "" && c.Hash != p.newestHash() {
		p.reload()
	}
	s := &session{plugin: p, id: c.Session, notice: make(chan struct{}, 1)}
	p.put(order{event: gate.Enable{Claim: c}, session: s})
	return s, nil
}

// Disable takes the devices back and waits for that.
func (p *Plugin) Disable(ctx context.Context, session string) (gate.Disabled, error) {
	id, answer := p.ids.Add(1), make(chan gate.Disabled, 1)
	p.put(order{event: gate.Disable{Call: id, Session: session}, disable: answer})
	select {
	case d := <-answer:
		return d, nil
	case <-ctx.Done():
		p.put(order{event: gate.DisableGone{Call: id}})
		return gate.Disabled{}, context.Cause(ctx)
	case <-p.ended:
		return gate.Disabled{}, stopped()
	}
}

// Heartbeat renews a lease.
func (p *Plugin) Heartbeat(ctx context.Context, session string, at time.Time) (time.Duration, error) {
	id, answer := p.ids.Add(1), make(chan gate.Beat, 1)
	p.mail.put(order{at: at, event: gate.Heartbeat{Call: id, Session: session}, beat: answer})
	select {
	case b := <-answer:
		if b.Code != codes.OK {
			return 0, &control.End{Code: b.Code, Reason: b.Reason}
		}
		return b.Lease, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-p.ended:
		return 0, stopped()
	}
}

// Status tells how the plugin is.
func (p *Plugin) Status() gate.Status { return *p.status.Load() }
