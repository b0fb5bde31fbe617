package plugintest

import (
	"context"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

// Stream is a control.Plugin.Enable call.
type Stream struct {
	cancel   context.CancelFunc
	statuses chan gate.Status
	ended    chan struct{}
	err      error
}

// Enable returns when the claim is accepted or refused.
func Enable(ctx context.Context, p control.Plugin, session string, c gate.Claim) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{cancel: cancel, statuses: make(chan gate.Status, 1), ended: make(chan struct{})}
	accepted := make(chan struct{}, 1)
	go func() {
		defer close(s.ended)
		s.err = p.Enable(ctx, session, c, func(now gate.Status) error {
			select {
			case <-s.statuses:
			default:
			}
			s.statuses <- now
			select {
			case accepted <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	select {
	case <-accepted:
	case <-s.ended:
	}
	return s
}

// Next returns the newest unread status, or the call's error.
func (s *Stream) Next(ctx context.Context) (gate.Status, error) {
	select {
	case now := <-s.statuses:
		return now, nil
	case <-s.ended:
		return gate.Status{}, s.err
	case <-ctx.Done():
		return gate.Status{}, context.Cause(ctx)
	}
}

// Close ends the call and waits.
func (s *Stream) Close() {
	s.cancel()
	<-s.ended
}
