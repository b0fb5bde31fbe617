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

type connection struct {
	cancel context.CancelFunc
	client *Client // before the first status
}

func (a openStream) run(ctx context.Context, r *Renewer) {
	if a.stream > 1 {
		r.reconnects.Inc()
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &connection{cancel: cancel}
	r.streams[a.stream] = c
	r.work.Go(func() {
		defer cancel()
		r.loop.Send(streamEnded{a.stream, r.stream(ctx, c, a)})
	})
}

func (a closeStream) run(_ context.Context, r *Renewer) {
	if c := r.streams[a.stream]; c != nil {
		c.cancel()
	}
}

func (a heartbeat) run(ctx context.Context, r *Renewer) {
	if c := r.streams[a.stream]; c != nil {
		r.work.Go(func() { r.loop.Send(heartbeatDone{a.stream, c.client.heartbeat(ctx, a)}) })
	}
}

func (a disable) run(ctx context.Context, r *Renewer) {
	r.work.Go(func() { r.loop.Send(r.disable(ctx, a.session)) })
}

func (a answer) run(context.Context, *Renewer) { a.waiter <- a }

func (a countLoss) run(_ context.Context, r *Renewer) { r.losses.WithLabelValues(a.code).Inc() }

// stream returns why the stream ended.
func (r *Renewer) stream(ctx context.Context, c *connection, open openStream) failure {
	client, err := Dial(ctx, r.config.Socket)
	if err != nil {
		return failureOf(err)
	}
	defer func() { _ = client.Close() }()
	c.client = client
	if len(open.claim.Closed) > 0 {
		if err := client.closesFunctions(ctx); err != nil {
			return failureOf(err)
		}
	}
	attempt, response := rpcdial.Listen(ctx)
	stream, err := client.service.EnableDevices(attempt, requestOf(open.claim))
	for err == nil {
		var m *controlv1.DevicePluginStatus
		if m, err = stream.Recv(); err == nil {
			if len(m.GetClosedFunctions()) < len(open.claim.Closed) { // another process than that of GetVersion
				return failureOf(errNotClosing(r.config.Socket, extensionClosed-1))
			}
			r.loop.Send(statusReceived{open.stream, m.GetSession(), statusOf(m)})
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

func (c *Client) heartbeat(ctx context.Context, h heartbeat) *failure {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	if _, err := invoke(ctx, c.service.Heartbeat, &controlv1.HeartbeatRequest{Session: h.session}); err != nil {
		why := failureOf(err)
		return &why
	}
	return nil
}

func (r *Renewer) disable(ctx context.Context, session string) disableDone {
	ctx, cancel := context.WithTimeout(ctx, disableTimeout)
	defer cancel()
	client, err := Dial(ctx, r.config.Socket)
	if err == nil {
		defer func() { _ = client.Close() }()
		var done gate.Withdrawal
		if done, err = client.Disable(ctx, session); err == nil {
			return disableDone{result: done}
		}
	}
	why := failureOf(err)
	return disableDone{cause: &why}
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
