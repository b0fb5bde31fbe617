package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"reflect"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/sriov/gate"
)

// lookBound is how long a plugin may take to tell who holds the devices. Without
// its word they are asked for again, and taken from who has them now.
const lookBound = 15 * time.Second

// act does what the machine decided. What may wait runs on its own.
func (k *Keeper) act(ctx context.Context, a keepAction) {
	switch a := a.(type) {
	case open:
		if k.opened {
			k.metrics.reconnects.Inc()
		}
		k.opened = true
		ctx, cancel := context.WithCancel(ctx)
		k.cancel[a.stream] = cancel
		k.work.Go(func() {
			defer cancel()
			k.post(streamEnded{a.stream, k.stream(ctx, a.stream, a.claim)})
		})
	case drop:
		if cancel := k.cancel[a.stream]; cancel != nil { // else it has just ended by itself
			cancel()
			delete(k.cancel, a.stream)
		}
	case beat:
		k.work.Go(func() { k.post(beaten{a.stream, k.beat(ctx, a)}) })
	case withdraw:
		k.work.Go(func() {
			result, why := k.withdraw(ctx, a.session)
			k.post(withdrawn{result, why})
		})
	case answer:
		k.mu.Lock()
		waiting := k.asks[a.ask]
		delete(k.asks, a.ask)
		k.mu.Unlock()
		if waiting != nil {
			waiting <- a
		}
	case lost:
		k.metrics.losses.WithLabelValues(a.by).Inc()
	case tell:
		k.tell(a.status)
	}
}

func (k *Keeper) tell(s KeeperStatus) {
	held := 0.0
	if s.Held != nil {
		held = 1
	}
	k.mu.Lock()
	before := k.status
	k.metrics.held.Set(held) // who has seen the status finds it counted
	k.status = s
	k.mu.Unlock()
	if s.State != before.State || s.Reason != before.Reason {
		k.log(s)
	}
	for _, c := range []*KeeperStatus{&before, &s} { // a heartbeat is no change
		c.Heard, c.Plugin.LeaseEnds = time.Time{}, time.Time{}
	}
	if !reflect.DeepEqual(before, s) {
		signal(k.changed)
	}
}

func (k *Keeper) log(s KeeperStatus) {
	level := slog.LevelInfo
	if s.Reason != "" {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("state", string(s.State)), slog.String("socket", k.config.Socket)}
	if s.Wanted != nil {
		attrs = append(attrs, slog.Int64("generation", s.Wanted.Generation), slog.String("uid", s.Wanted.UID), slog.String("config_hash", s.Wanted.Hash))
	}
	if s.Reason != "" {
		attrs = append(attrs, slog.String("reason", s.Reason))
	}
	k.config.Logger.LogAttrs(context.Background(), level, "control of the device plugin", attrs...)
}

// stream holds one EnableDevices until it ends.
func (k *Keeper) stream(ctx context.Context, id uint64, claim Claim) failure {
	client, err := Dial(ctx, k.config.Socket)
	if err != nil {
		return failureOf(err)
	}
	k.mu.Lock()
	k.clients[id] = client
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.clients, id)
		k.mu.Unlock()
		_ = client.Close() // nothing is under way on it
	}()
	attempt, heard := rpcdial.Listen(ctx)
	stream, err := client.service.EnableDevices(attempt, requestOf(claim))
	for err == nil {
		var m *controlv1.DevicePluginStatus
		if m, err = stream.Recv(); err == nil {
			k.post(statusHeard{id, m.GetSession(), statusOf(m)})
		}
	}
	if errors.Is(err, io.EOF) {
		return failure{said: true, code: codes.OK, reason: "somebody had the devices taken back with DisableDevices"}
	}
	why := failureOf(fmt.Errorf("EnableDevices at %s: %w", k.config.Socket, outcome(ctx, heard, err)))
	if why.said && why.code == codes.Aborted {
		why.other = client.heldByOther(ctx)
	}
	return why
}

// heldByOther tells, after ABORTED, whether another daemon took over; else it was
// the plugin's configuration that changed. A plugin that cannot be asked has only
// the first reason.
func (c *Client) heldByOther(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	s, err := c.Status(ctx)
	if end, said := errors.AsType[*End](err); said {
		return end.Code == codes.Unimplemented
	}
	return err == nil && (s.Holding == gate.Live || s.Holding == gate.Lost)
}

func (k *Keeper) beat(ctx context.Context, b beat) *failure {
	k.mu.Lock()
	client := k.clients[b.stream]
	k.mu.Unlock()
	if client == nil {
		return &failure{reason: "the stream has ended"}
	}
	ctx, cancel := context.WithTimeout(ctx, b.within)
	defer cancel()
	if _, err := ask(ctx, client.service.Heartbeat, &controlv1.HeartbeatRequest{Session: b.session}); err != nil {
		why := failureOf(err)
		return &why
	}
	return nil
}

func (k *Keeper) withdraw(ctx context.Context, session string) (Withdrawal, *failure) {
	ctx, cancel := context.WithTimeout(ctx, withdrawBound)
	defer cancel()
	client, err := Dial(ctx, k.config.Socket)
	if err == nil {
		defer func() { _ = client.Close() }()
		var done Withdrawal
		if done, err = client.Disable(ctx, session); err == nil {
			return done, nil
		}
	}
	why := failureOf(err)
	return Withdrawal{}, &why
}

func failureOf(err error) failure {
	f := failure{reason: err.Error(), err: err, nobody: errors.Is(err, ErrNobody), fixed: errors.Is(err, fs.ErrPermission)}
	if end, said := errors.AsType[*End](err); said {
		f.said, f.code, f.reason = true, end.Code, end.Reason
	}
	return f
}

func requestOf(c Claim) *controlv1.EnableDevicesRequest {
	r := &controlv1.EnableDevicesRequest{
		NodeStateGeneration: c.Generation, NodeName: text(c.Node), NodeStateUid: text(c.UID), ConfigHash: text(c.Hash),
	}
	if c.Lease != 0 {
		r.LeaseDuration = durationpb.New(c.Lease)
	}
	if c.Hold != 0 {
		r.HoldTime = durationpb.New(c.Hold)
	}
	return r
}
