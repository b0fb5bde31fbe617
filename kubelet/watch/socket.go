package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
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

	// A registered plugin's lost connection is re-established with delays from
	// firstCheck, in which an exiting plugin removes its file. A connection
	// that lasted for steady resets the delay.
	firstCheck, lastCheck = 100 * time.Millisecond, 30 * time.Second
	steady                = 10 * time.Second

	// deadCheck is the interval for checking an endpoint that is not served.
	deadCheck = 500 * time.Millisecond
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

// stay waits until the file or the host goes, or fails when no process has
// served the socket or the endpoint for the grace time.
func (s *socket) stay() *failure {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	expired := make(chan *failure, 1)
	if endpoint := s.status.Endpoint; endpoint != s.path && filepath.IsAbs(endpoint) {
		s.work.Go(func() {
			defer cancel()
			expired <- s.watchEndpoint(ctx, endpoint)
		})
	} else {
		expired <- nil
	}
	conn := s.conn
	s.conn = nil
	err := s.hold(ctx, s.path, s.o.Peer, conn)
	cancel()
	f := <-expired
	switch {
	case f != nil:
		s.endpointLost = true
	case err != nil: // final: a refused file cannot be listened on again
		if f = s.dead(err, deadReason, nil, s.ctx); f == nil {
			return nil
		}
	default:
		return nil
	}
	s.release()
	return f
}

// watchEndpoint is for a plugin whose registrar is another process. It fails
// when no process has served the endpoint for the grace time.
func (s *socket) watchEndpoint(ctx context.Context, endpoint string) *failure {
	for {
		err := s.hold(ctx, endpoint, nil, nil)
		if err == nil {
			return nil
		}
		back := func() bool { return !isUnserved(probe(ctx, endpoint)) }
		if f := s.dead(err, fmt.Sprintf(endpointReason, endpoint), back, ctx); f != nil || ctx.Err() != nil {
			return f
		}
		s.update(Registered, func(st *Status) {
			st.Dead, st.Step, st.Error, st.Reason, st.NextTry = false, "", "", "", time.Time{}
		})
	}
}

// hold keeps a connection to path, which shows the end of its process. It
// returns an error when no process serves path, and nil when ctx ends.
func (s *socket) hold(ctx context.Context, path string, peer func(Peer) error, conn *grpc.ClientConn) error {
	for pause := (backoff.Backoff{First: firstCheck, Most: lastCheck}); ; {
		if conn != nil {
			since := time.Now()
			lost := conn.WaitForStateChange(ctx, connectivity.Ready)
			_ = conn.Close()
			if !lost {
				return nil
			}
			if time.Since(since) >= steady {
				pause.Reset()
			}
		}
		if pause.Wait(ctx) != nil {
			return nil
		}
		dialing, cancel := context.WithTimeout(ctx, s.o.Timeouts.Dial)
		var err error
		conn, err = connect(dialing, path, peer)
		cancel()
		// The removal of the socket itself is an event of the directory.
		if isUnserved(err) && ctx.Err() == nil && (path != s.path || errors.Is(err, unix.ECONNREFUSED)) {
			return err
		}
		// Others are inconclusive: permission, file descriptors, timeout.
	}
}

// dead waits for the grace time to end, unless ctx ends or the plugin is back.
func (s *socket) dead(err error, reason string, back func() bool, ctx context.Context) *failure {
	f := &failure{step: Registered, text: err.Error(), reason: reason}
	var expired, check <-chan time.Time
	s.update(Registered, func(st *Status) {
		st.Dead, st.Step, st.Error, st.Reason = true, f.step, f.text, f.reason
		if s.o.Grace > 0 {
			st.NextTry = time.Now().Add(s.o.Grace)
			expired = time.After(s.o.Grace)
		}
	})
	if back != nil {
		ticker := time.NewTicker(deadCheck)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-expired:
			return f
		case <-check:
			if back() {
				return nil
			}
		}
	}
}

// release retries until the plugin is deregistered. It stops when the host
// closes, and hands over to orphan when a socket waits for the path.
func (s *socket) release() {
	s.closeConn()
	for s.held {
		select { // only later changes interrupt the pause
		case <-s.changed:
		default:
		}
		s.update(DeRegistering, func(st *Status) { st.NextTry, st.Dead = time.Time{}, false })
		p := s.status.Plugin
		failed := s.deregister(s.calls, p)
		if s.held = failed != nil; !s.held {
			return
		}
		pause := s.fail(*failed)
		switch {
		case s.serving.Err() != nil:
			s.recordLeft(p, *failed)
			s.held = false
		case s.replaced():
			s.orphan(p, s.failures)
			s.held = false
		default:
			select {
			case <-time.After(pause):
			case <-s.changed:
			case <-s.serving.Done():
			}
		}
	}
}

func (s *socket) replaced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paths[s.path].next != nil
}

func (s *socket) fail(f failure) (pause time.Duration) {
	s.failures++
	pause = s.o.BackOff.pause(s.failures)
	s.update(Failed, func(st *Status) {
		st.Step, st.Error, st.Reason = f.step, f.text, f.reason
		st.NextTry = time.Now().Add(pause)
	})
	return pause
}

// pause ends early with the file, or with a missing handler's arrival.
func (s *socket) pause(f failure, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for !f.noHandler || s.handler(s.status.Type) == nil {
		select {
		case <-timer.C:
			return
		case <-s.ctx.Done():
			return
		case <-s.changed:
		}
	}
}

func (b BackOff) pause(failures int) time.Duration {
	pause := b.First
	for range failures - 1 {
		if pause > b.Most/2 {
			pause = b.Most
			break
		}
		pause *= 2
	}
	return pause - time.Duration(rand.Float64()*b.Jitter*float64(pause))
}
