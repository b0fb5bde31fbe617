package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/backoff"
)

// The kubelet's texts for plugins.
const (
	notifyPrefix     = "RegisterPlugin error -- "
	notifyNoHandler  = "no handler registered for plugin type: %s at socket %s"
	notifyValidation = "plugin validation failed with err: "
	notifyRegister   = "plugin registration failed with err: "
)

const (
	// A new socket that refuses connections is dialled again with these delays:
	// plugins call bind before listen, which inotify does not report. After
	// reportRefusal the status shows the refusal.
	shortest, longest = 200 * time.Microsecond, 250 * time.Millisecond
	reportRefusal     = 100 * time.Millisecond

	// An attempt holds a slot at most this long after the server's first data, so
	// that plugins that do not answer GetInfo do not delay others.
	slotTime = 20 * time.Millisecond

	// greetings times as many sockets are connected to at a time, each until its
	// first data, at most for greetTime: a thousand plugins that handshake at once
	// would exceed their timeouts, and silent ones must not delay others.
	greetings = 4
	greetTime = 5 * time.Millisecond
)

// socket is a socket file. Its goroutine registers the plugin, retries, and
// deregisters it when the file goes.
type socket struct {
	*Host
	path    string
	ctx     context.Context // desired state: until the file or the host goes
	end     context.CancelCauseFunc
	changed chan struct{} // file gone or replaced, or a handler added
	status  Status        // written by the goroutine with Host.mu held

	// Of the goroutine.
	conn     *grpc.ClientConn
	held     bool   // the handler might have the plugin
	failures int    // in a row
	restart  bool   // the first attempt since it was registered
	reported string // last failure since

	endpointLost bool // deregistered because the endpoint was not served
}

// failure is of an attempt or DeRegister.
type failure struct {
	step         Phase
	text, reason string
	interrupted  bool // canceled or panicked: effect unknown
	noHandler    bool
}

type instance struct{ kind, name, endpoint, socket string }

func (p Plugin) instance() instance { return instance{p.Type, p.Name, p.Endpoint, p.Socket} }

// key serialises handler calls.
func (p Plugin) key() string { return p.Type + "\x00" + p.Name }

// newSocket needs Host.mu.
func newSocket(h *Host, path string) *socket {
	s := &socket{Host: h, path: path, changed: make(chan struct{}, 1)}
	s.ctx, s.end = context.WithCancelCause(h.serving)
	s.status.Socket, s.status.Found = path, time.Now()
	s.inherit()
	return s
}

func (s *socket) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *socket) run() {
	for s.ctx.Err() == nil {
		failed := s.attempt()
		s.closeConn()
		if failed == nil {
			continue
		}
		s.metrics.failed(s.label(), *failed)
		s.pause(*failed, s.fail(*failed))
		if s.ctx.Err() == nil {
			s.release() // from an interrupted Register
		}
	}
	if context.Cause(s.ctx) == errGone {
		s.release()
		s.finished(s)
	}
}

// attempt returns a failure to retry, or nil when the file or the host goes.
func (s *socket) attempt() *failure {
	p, failed := s.query()
	if failed != nil || s.ctx.Err() != nil {
		return failed
	}
	if failed := s.checkEndpoint(p); failed != nil {
		return failed
	}
	refusal, failed := s.register(p)
	switch {
	case failed != nil:
		s.refused(p, *failed)
		_ = s.notify(notifyPrefix + refusal) // best effort
		return failed
	case !s.held:
		return nil
	}
	if failed := s.notify(""); failed != nil {
		s.release()
		return failed
	}
	if context.Cause(s.ctx) == errGone {
		return nil
	}
	s.failures, s.reported, s.restart = 0, "", true
	s.accepted(s.path)
	s.metrics.succeeded(s.label(), time.Since(s.status.Found))
	s.update(Registered, func(st *Status) { st.Step, st.Error, st.Reason = "", "", "" })
	return s.stay()
}

// checkEndpoint keeps a plugin deregistered whose endpoint is still not served.
// Handlers need not check that.
func (s *socket) checkEndpoint(p Plugin) *failure {
	if !s.endpointLost {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeouts.Dial)
	defer cancel()
	if err := probe(ctx, p.Endpoint); isUnserved(err) {
		return &failure{step: Validating, text: err.Error(), reason: fmt.Sprintf(endpointReason, p.Endpoint)}
	}
	s.endpointLost = false
	return nil
}

func (s *socket) query() (Plugin, *failure) {
	s.update(Asking, func(st *Status) {
		if s.restart {
			s.restart, st.Attempts = false, 0
		}
		st.Attempts++
		st.NextTry = time.Time{}
	})
	begun := time.Now()
	var p Plugin
	raw, err := s.greet()
	if err == nil {
		p, err = s.getInfo(raw)
	}
	if !isRefused(err) {
		s.metrics.step(Asking, begun)
	}
	switch {
	case s.ctx.Err() != nil:
		return p, nil
	case err != nil:
		f := getInfoFailure(err, s.o.Timeouts)
		if isUnserved(err) {
			f.reason = s.explainUnserved(s.path, f.reason)
		}
		return p, &f
	}
	p.Socket = s.path
	if p.Endpoint == "" {
		p.Endpoint = p.Socket
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Plugin = p // published with the next phase
	return p, nil
}

// getInfo needs a slot, unlike the wait for the server's first data.
func (s *socket) getInfo(raw net.Conn) (p Plugin, err error) {
	if err := s.slots.acquire(s.ctx, s.failures > 0); err != nil {
		return p, errors.Join(err, raw.Close())
	}
	slot := time.AfterFunc(slotTime, s.slots.release)
	defer func() {
		if slot.Stop() {
			s.slots.release()
		}
	}()
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeouts.Dial)
	defer cancel()
	if s.conn, err = handshake(ctx, raw); err != nil {
		return p, err
	}
	return getInfo(s.ctx, s.conn, s.o.Timeouts.GetInfo)
}

// greet retries while a new socket refuses.
func (s *socket) greet() (raw net.Conn, err error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeouts.Dial)
	defer cancel()
	var refused error
	for pause := (backoff.Backoff{First: shortest, Most: longest}); ; {
		raw, err = s.greetOnce(ctx)
		switch {
		case isRefused(err) && s.failures == 0:
			refused = err
		case refused != nil && isType[dialError](err) && time.Since(begun) >= s.o.Timeouts.Dial:
			return nil, refused // more specific than the deadline
		default:
			return raw, err
		}
		if time.Since(begun) >= reportRefusal && s.status.Error != err.Error() {
			reason := s.explainUnserved(s.path, dialReason(err))
			s.update(Asking, func(st *Status) { st.Step, st.Error, st.Reason = Asking, err.Error(), reason })
		}
		if pause.Wait(ctx) != nil {
			return nil, err
		}
	}
}

func (s *socket) greetOnce(ctx context.Context) (net.Conn, error) {
	if err := s.greetings.acquire(s.ctx, s.failures > 0); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(s.greetings.release)
	defer release()
	defer time.AfterFunc(greetTime, release).Stop()
	return greet(ctx, s.path, s.o.Peer)
}

func (s *socket) closeConn() {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}

// register is serialised by the plugin's name. refusal is for the plugin;
// s.held says whether the handler has it.
func (s *socket) register(p Plugin) (refusal string, failed *failure) {
	if s.handler(p.Type) == nil {
		text := fmt.Sprintf(notifyNoHandler, p.Type, p.Socket)
		return text, &failure{step: Validating, text: text, reason: noHandlerReason(p.Type, s.types()), noHandler: true}
	}
	unlock, free := s.names.TryLock(p.key())
	if !free {
		s.update(Waiting, nil)
		var err error
		if unlock, err = s.names.Lock(s.ctx, p.key()); err != nil {
			return "", nil
		}
	}
	defer unlock()
	s.update(Validating, nil)
	failed = s.call(p, Validating)
	switch {
	case s.ctx.Err() != nil:
		return "", nil
	case failed != nil:
		return notifyValidation + failed.text, failed
	}
	s.supersede(p)
	s.held = true
	s.update(Registering, nil)
	if failed = s.call(p, Registering); failed == nil {
		return "", nil
	}
	s.held = false
	if failed.interrupted {
		s.update(DeRegistering, nil)
		s.held = s.call(p, DeRegistering) != nil
	}
	return notifyRegister + failed.text, failed
}

// notify reports the result; an empty text is success. During a long handler
// call the server can close the idle connection; notify then uses a new one.
func (s *socket) notify(text string) *failure {
	s.update(Notifying, nil)
	begun := time.Now()
	err := notify(s.calls, s.conn, s.o.Timeouts.Notify, text)
	if status.Code(err) == codes.Unavailable {
		s.closeConn()
		ctx, cancel := context.WithTimeout(s.calls, s.o.Timeouts.Dial)
		defer cancel()
		if s.conn, err = connect(ctx, s.path, s.o.Peer); err == nil {
			err = notify(s.calls, s.conn, s.o.Timeouts.Notify, text)
		} else {
			err = fmt.Errorf("the connection was closed, and reconnecting failed: %w", err)
		}
	}
	s.metrics.step(Notifying, begun)
	if err == nil {
		return nil
	}
	return &failure{step: Notifying, text: "NotifyRegistrationStatus: " + err.Error(), reason: notifyReason(err, s.o.Timeouts.Notify)}
}
