package watch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// talk is the conversation of one attempt. Its actions come one after the
// other.
type talk struct {
	cancel context.CancelFunc
	client *client
	last   bool // whoever has the client closes it
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
		t.last = true
		h.work.Go(func() { h.notify(t, a) })
	case checkAlive:
		h.work.Go(func() { h.check(a) })
	case forgetAlive:
		h.lives.drop(a.token)
	}
}

func (h *Host) hangUp(token uint64) {
	t := h.talks[token]
	delete(h.talks, token)
	t.cancel()
	if t.client != nil && !t.last {
		h.work.Go(t.client.close)
	}
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
	dialling, cancel := context.WithTimeout(ctx, h.o.Timeouts.Dial)
	defer cancel()
	client, err := connect(dialling, path, h.o.Peer)
	if err != nil {
		f := &failure{step: Asking, text: err.Error()}
		switch {
		case isType[dialError](err):
			f.reason, f.refused = ofDial(err), retryable(err)
		case isType[peerError](err):
			f.reason = "this host is set to take plugins of certain processes only"
		default:
			f.reason, f.hung = ofSpeech(err, h.o.Timeouts.Dial), errors.Is(err, context.DeadlineExceeded)
		}
		return Plugin{}, f
	}
	t.client = client
	plugin, err := client.info(ctx, h.o.Timeouts.GetInfo)
	if err != nil {
		return Plugin{}, &failure{
			step: Asking, text: "GetInfo: " + err.Error(),
			reason: ofGetInfo(err, h.o.Timeouts.GetInfo), hung: status.Code(err) == codes.DeadlineExceeded,
		}
	}
	return plugin, nil
}

func isType[E error](err error) bool { _, is := errors.AsType[E](err); return is }

// notify tells a plugin how its registration went. The handler may have taken
// so long that the connection is gone: then there is another.
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
	client := t.client
	h.post(func() { h.tell(func() { h.machine.told(a.token, failed) }) })
	client.close()
}

func (h *Host) notifyNow(t *talk, a action) error {
	if !t.client.usable() {
		dialling, cancel := context.WithTimeout(h.base, h.o.Timeouts.Dial)
		defer cancel()
		another, err := connect(dialling, a.plugin.Socket, h.o.Peer)
		if err != nil {
			return fmt.Errorf("the connection ended, and there is no other: %w", err)
		}
		t.client.close()
		t.client = another
	}
	return t.client.notify(h.base, h.o.Timeouts.Notify, a.text)
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
			_ = idle.conn.Close()
		case !h.lives.hold(a.token, idle):
			found = unsure
		}
		h.tell(func() { h.machine.checked(a.token, found, why) })
	})
}
