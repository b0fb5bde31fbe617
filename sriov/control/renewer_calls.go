package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/sriov/gate"
)

const (
	// The plugin's own timeout is shorter. Without an answer, a new connection
	// is used.
	disableTimeout = 30 * time.Second
	// statusTimeout bounds GetStatus. Without an answer the devices are enabled
	// again, which takes them from another holder.
	statusTimeout = 15 * time.Second
)

func (r *Renewer) open(s *stream) {
	if r.opened++; r.opened > 1 {
		r.reconnects.Inc()
	}
	ctx, cancel := context.WithCancel(r.ctx)
	s.cancel = cancel
	r.work.Go(func() {
		defer cancel()
		why := r.stream(ctx, s)
		r.step(func() { r.machine.ended(s, why) })
	})
}

func (r *Renewer) heartbeat(s *stream, timeout time.Duration) {
	r.work.Go(func() {
		why := s.client.heartbeat(r.ctx, s.session, timeout)
		r.step(func() { r.machine.beaten(s, why) })
	})
}

func (r *Renewer) disable(session string) {
	r.work.Go(func() {
		done, why := r.withdraw(r.ctx, session)
		r.step(func() { r.machine.disabled(done, why) })
	})
}

func (r *Renewer) lost(code string) { r.losses.WithLabelValues(code).Inc() }

// stream returns why the stream ended.
func (r *Renewer) stream(ctx context.Context, s *stream) failure {
	client, err := Dial(ctx, r.config.Socket)
	if err != nil {
		return failureOf(err)
	}
	defer func() { _ = client.Close() }()
	s.client = client
	if len(s.claim.Closed) > 0 {
		if err := client.closesFunctions(ctx); err != nil {
			return failureOf(err)
		}
	}
	attempt, response := rpcdial.Listen(ctx)
	calls, err := client.service.EnableDevices(attempt, requestOf(s.claim))
	for err == nil {
		var m *controlv1.DevicePluginStatus
		if m, err = calls.Recv(); err == nil {
			if len(m.GetClosedFunctions()) < len(s.claim.Closed) { // another process than that of GetVersion
				return failureOf(errNotClosing(r.config.Socket, extensionClosed-1))
			}
			r.step(func() { r.machine.received(s, m.GetSession(), statusOf(m)) })
		}
	}
	if errors.Is(err, io.EOF) {
		return failure{answered: true, code: codes.OK, reason: "another client withdrew the devices with DisableDevices"}
	}
	why := failureOf(fmt.Errorf("EnableDevices at %s: %w", r.config.Socket, outcome(ctx, response, err)))
	if why.answered && why.code == codes.Aborted {
		why.superseded = client.heldByOther(ctx)
	}
	return why
}

// closesFunctions returns an error unless the plugin supports closed functions: it
// would offer them otherwise.
func (c *Client) closesFunctions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	v, err := c.Version(ctx)
	if end, answered := errors.AsType[*gate.End](err); answered && end.Code == codes.Unimplemented {
		err = nil // version 0
	}
	if err == nil && v.Extensions < extensionClosed {
		err = errNotClosing(c.socket, v.Extensions)
	}
	return err
}

func errNotClosing(socket string, extensions int) error {
	return &gate.End{Code: codes.Unimplemented, Reason: fmt.Sprintf("the plugin at %s cannot close single functions (version %d of the extensions, want %d)",
		socket, extensions, extensionClosed)}
}

// heldByOther distinguishes a takeover from a changed plugin configuration, after
// ABORTED. A plugin without GetStatus does not support the latter.
func (c *Client) heldByOther(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := c.Status(ctx)
	if end, answered := errors.AsType[*gate.End](err); answered {
		return end.Code == codes.Unimplemented
	}
	return err == nil && (s.Holding == gate.Live || s.Holding == gate.Lost)
}

func (c *Client) heartbeat(ctx context.Context, session string, timeout time.Duration) *failure {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := invoke(ctx, c.service.Heartbeat, &controlv1.HeartbeatRequest{Session: session}); err != nil {
		why := failureOf(err)
		return &why
	}
	return nil
}

func (r *Renewer) withdraw(ctx context.Context, session string) (gate.Withdrawal, *failure) {
	ctx, cancel := context.WithTimeout(ctx, disableTimeout)
	defer cancel()
	client, err := Dial(ctx, r.config.Socket)
	if err == nil {
		defer func() { _ = client.Close() }()
		var done gate.Withdrawal
		if done, err = client.Disable(ctx, session); err == nil {
			return done, nil
		}
	}
	why := failureOf(err)
	return gate.Withdrawal{}, &why
}

type failure struct {
	answered   bool
	code       codes.Code
	notServed  bool // ErrNotServed
	permanent  bool // socket not usable
	superseded bool // Aborted: another daemon holds the devices
	reason     string
	err        error
}

func (f failure) label() string {
	if f.answered {
		return f.code.String()
	}
	return "connection"
}

func failureOf(err error) failure {
	f := failure{reason: err.Error(), err: err, notServed: errors.Is(err, ErrNotServed), permanent: errors.Is(err, fs.ErrPermission)}
	if end, answered := errors.AsType[*gate.End](err); answered {
		f.answered, f.code, f.reason = true, end.Code, end.Reason
	}
	return f
}

func requestOf(c gate.Claim) *controlv1.EnableDevicesRequest {
	r := &controlv1.EnableDevicesRequest{
		NodeStateGeneration: c.Generation, NodeName: text(c.Node), NodeStateUid: text(c.UID), ConfigHash: text(c.Hash),
		ClosedFunctions: closedMessages(c.Closed),
	}
	if c.Lease != 0 {
		r.LeaseDuration = durationpb.New(c.Lease)
	}
	if c.Hold != 0 {
		r.HoldTime = durationpb.New(c.Hold)
	}
	return r
}
