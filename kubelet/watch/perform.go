package watch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/grpcline"
)

// talk is the conversation of one attempt. Its actions come one after the
// other.
type talk struct {
	cancel context.CancelFunc
	line   *grpcline.Line
}

// perform starts an action. Its result comes back through the inbox.
func (h *Host) perform(a action) {
	switch a.do {
	case ask:
		ctx, cancel := context.WithCancel(h.base)
		t := &talk{cancel: cancel}
		h.talks[a.token] = t
		h.work.Go(func() { h.ask(ctx, t, a) })
	case cancel:
		h.talks[a.token].cancel()
	case hangUp:
		h.hangUp(a.token)
	case validate:
		h.call(a, h.o.Timeouts.Validate, h.handlers[a.plugin.Type].Validate, Validating, h.machine.validated)
	case register:
		h.call(a, h.o.Timeouts.Register, h.handlers[a.plugin.Type].Register, Registering, h.machine.registered)
	case deRegister:
		h.call(a, h.o.Timeouts.DeRegister, h.handlers[a.plugin.Type].DeRegister, DeRegistering, h.machine.deregistered)
	case tell:
		t := h.talks[a.token]
		h.work.Go(func() { h.notify(t, a) })
	case keep:
		h.keep(a.token)
	case checkAlive:
		h.work.Go(func() { h.check(a) })
	case forgetAlive:
		h.lives.drop(a.token)
	}
}

// take ends a talk.
func (h *Host) take(token uint64) *grpcline.Line {
	t := h.talks[token]
	delete(h.talks, token)
	t.cancel()
	return t.line
}

func (h *Host) hangUp(token uint64) {
	if line := h.take(token); line != nil {
		_ = line.Close()
	}
}

// keep holds on to the connection of an attempt that went well. If that does
// not work, the plugin may be dead by now.
func (h *Host) keep(token uint64) {
	idle, err := h.take(token).Rest()
	if err == nil && h.lives.hold(token, idle) {
		return
	}
	h.work.Go(func() { h.post(func() { h.tell(func() { h.machine.hungUp(token) }) }) })
}

// ask connects to a plugin and asks who it is.
func (h *Host) ask(ctx context.Context, t *talk, a action) {
	begun := time.Now()
	plugin, failed := h.askNow(ctx, t, a.plugin.Socket)
	if failed == nil || !failed.refused { // which takes no time, and comes often
		h.metrics.step(Asking, begun)
	}
	h.post(func() { h.tell(func() { h.machine.asked(a.token, plugin, failed) }) })
}

func (h *Host) askNow(ctx context.Context, t *talk, path string) (Plugin, *failure) {
	var plugin Plugin
	err := h.connect(ctx, t, path)
	if err == nil {
		plugin, err = getInfo(ctx, t.line, h.o.Timeouts.GetInfo)
	}
	if err == nil {
		return plugin, nil
	}
	f := &failure{step: Asking, text: err.Error()}
	switch {
	case isType[dialError](err):
		f.reason, f.refused = ofDial(err), retryable(err)
	case isType[peerError](err):
		f.reason = "this host is set to take plugins of certain processes only"
	case errors.Is(err, grpcline.ErrSilent), errors.Is(err, grpcline.ErrForeign):
		f.reason, f.hung = ofSpeech(err, h.o.Timeouts.Dial), errors.Is(err, grpcline.ErrSilent)
	default:
		f.text = "GetInfo: " + f.text
		f.reason, f.hung = ofGetInfo(err, h.o.Timeouts.GetInfo), status.Code(err) == codes.DeadlineExceeded
	}
	return Plugin{}, f
}

func isType[E error](err error) bool { _, is := errors.AsType[E](err); return is }

// connect begins a conversation; the plugin has the rest of the time to begin
// to speak HTTP/2.
func (h *Host) connect(ctx context.Context, t *talk, path string) error {
	dialling, cancel := context.WithTimeout(ctx, h.o.Timeouts.Dial)
	defer cancel()
	raw, err := dial(dialling, path, h.o.Peer)
	if err == nil {
		t.line = grpcline.New(raw, h.o.Timeouts.Dial)
	}
	return err
}

// notify tells a plugin how its registration went.
func (h *Host) notify(t *talk, a action) {
	begun := time.Now()
	var failed *failure
	if err := h.notifyNow(t, a); err != nil {
		failed = &failure{
			step: Notifying, text: "NotifyRegistrationStatus: " + err.Error(),
			reason: ofNotify(err, h.o.Timeouts.Notify), hung: status.Code(err) == codes.DeadlineExceeded,
		}
	}
	h.metrics.step(Notifying, begun)
	h.post(func() { h.tell(func() { h.machine.told(a.token, failed) }) })
}

// notifyNow takes another connection when the handler took so long that the
// plugin has ended this one.
func (h *Host) notifyNow(t *talk, a action) error {
	if !t.line.Usable() {
		_ = t.line.Close()
		if err := h.connect(h.base, t, a.plugin.Socket); err != nil {
			return fmt.Errorf("the connection ended, and there is no other: %w", err)
		}
	}
	return notify(h.base, t.line, h.o.Timeouts.Notify, a.text)
}

// errPanic is in the error of a call that panicked.
var errPanic = errors.New("panic")

// call has the handler do its part.
func (h *Host) call(a action, bound time.Duration, do func(context.Context, Plugin) error, step Phase, result func(uint64, *failure)) {
	h.work.Go(func() {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(h.base, bound)
		defer cancel()
		var failed *failure
		if err := h.guarded(ctx, a.plugin, do); err != nil {
			failed = &failure{
				step: step, text: err.Error(), reason: ofHandler(step, err, a.plugin, bound),
				cut: ctx.Err() != nil || errors.Is(err, errPanic),
			}
		}
		h.metrics.step(step, begun)
		h.post(func() { h.tell(func() { result(a.token, failed) }) })
	})
}

// guarded makes a panic an error.
func (h *Host) guarded(ctx context.Context, p Plugin, do func(context.Context, Plugin) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", errPanic, v)
			h.metrics.panics.Inc()
			h.o.Logger.Error("a handler panicked", "type", p.Type, "name", p.Name, "socket", p.Socket, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	return do(ctx, p)
}

// check looks whether a plugin lives, and holds on to it.
func (h *Host) check(a action) {
	idle, found, why := lookIn(h.base, a.plugin.Socket)
	h.post(func() {
		switch s := h.machine.sockets[a.token]; {
		case idle == nil:
		case s == nil || !s.inUse() || h.machine.closing:
			_ = idle.Close()
		case !h.lives.hold(a.token, idle):
			found = unsure
		}
		h.tell(func() { h.machine.checked(a.token, found, why) })
	})
}
