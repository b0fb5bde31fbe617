package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/kubelet/watch/discovery"
)

// ErrClosed is returned by calls on a host that was closed.
var ErrClosed = errors.New("the plugin host is closed")

// errGone ends a socket whose plugin must be deregistered: its file was removed
// or replaced, or the host closes and deregisters all plugins.
var errGone = errors.New("the socket is gone")

// Host finds plugins and registers them.
type Host struct {
	o       Options
	metrics *metrics
	hub     hub

	names op.Locks      // serialise the handler calls for a type and name
	slots chan struct{} // has an element for each attempt that has just begun

	serving context.Context // ends with Close; its cause is errGone or ErrClosed
	stop    context.CancelCauseFunc
	calls   context.Context // RPCs and handler calls; ends when Close stops waiting for them
	abort   context.CancelFunc
	work    sync.WaitGroup // all goroutines

	life    sync.Mutex
	state   state
	finder  *discovery.Finder
	closing sync.Once
	closed  error // the result of Close

	mu       sync.Mutex
	handlers map[string]Handler // by type; never changed or removed, so that who registered a plugin also deregisters it
	paths    map[string]*place
	orphans  map[instance]context.CancelFunc
	left     []string // plugins that Close could not deregister
}

type state int

const (
	fresh state = iota
	running
	closed
)

// place is a path. The next socket there waits until the current one is
// deregistered.
type place struct{ now, next *socket }

// New checks the options. Nothing runs before Start.
func New(o Options) (*Host, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("plugin host: %w", err)
	}
	h := &Host{
		o: o, slots: make(chan struct{}, o.Concurrency),
		handlers: map[string]Handler{}, paths: map[string]*place{}, orphans: map[instance]context.CancelFunc{},
	}
	if h.metrics, err = newMetrics(o.Metrics); err != nil {
		return nil, fmt.Errorf("plugin host: %w", err)
	}
	for kind, handler := range o.Handlers {
		h.handlers[kind] = handler
	}
	h.serving, h.stop = context.WithCancelCause(context.Background())
	h.calls, h.abort = context.WithCancel(context.Background())
	return h, nil
}

// Start creates the directory when it is missing, watches it and looks for the
// sockets that exist; ctx bounds only that. It fails when sockets would be
// missed.
func (h *Host) Start(ctx context.Context) error {
	h.life.Lock()
	defer h.life.Unlock()
	if h.state != fresh {
		return errors.New("plugin host: it was started before, or closed; make a new one")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	finder := discovery.New(discovery.Options{
		Dir: h.o.Dir, Rescan: h.o.Rescan, Logger: h.o.Logger, Report: h.discovered, Observe: h.metrics.discovery(),
	})
	if err := finder.Start(); err != nil {
		return fmt.Errorf("plugin host: %w", err)
	}
	h.finder, h.state = finder, running
	h.work.Go(func() {
		if err := finder.Run(h.serving); err != nil {
			h.o.Logger.Error("plugins are no longer discovered", "error", err)
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.o.Logger.Info("plugins are registered from here", "directory", h.o.Dir, "types", h.kinds(), "sockets", len(h.paths))
	return nil
}

// Handle adds the handler for a type of plugin. A type has one handler, which
// stays. Plugins that failed for lack of it are tried again at once.
func (h *Host) Handle(kind string, handler Handler) error {
	if err := checkHandler(kind, handler); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serving.Err() != nil {
		return ErrClosed
	}
	if h.handlers[kind] != nil {
		return fmt.Errorf("plugins of type %s have a handler already", kind)
	}
	h.handlers[kind] = handler
	for _, p := range h.paths {
		if p.now.status.Type == kind {
			p.now.wake()
		}
	}
	return nil
}

// Close ends discovery and attempts, waits for handler calls in flight, and
// with deregister set deregisters every plugin. When ctx ends first, these
// calls are cancelled, and the error names what was left. Calls after the first
// return the same.
func (h *Host) Close(ctx context.Context, deregister bool) error {
	h.closing.Do(func() {
		h.life.Lock()
		h.state = closed
		h.life.Unlock()
		cause := ErrClosed
		if deregister {
			cause = errGone
		}
		h.stop(cause)
		h.closed = h.await(ctx)
		h.abort()
		h.hub.close()
	})
	return h.closed
}

// grace is how long cancelled calls have to return.
const grace = time.Second

// await waits for all goroutines.
func (h *Host) await(ctx context.Context) (err error) {
	ended := make(chan struct{})
	go func() { h.work.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		err = fmt.Errorf("plugin host: calls of handlers were cut off: %w", context.Cause(ctx))
		h.abort()
		select {
		case <-ended:
		case <-time.After(grace):
			return fmt.Errorf("plugin host: calls of handlers go on though they were cancelled, for %q: %w", h.calling(), context.Cause(ctx))
		}
	}
	if len(h.left) > 0 {
		err = errors.Join(err, fmt.Errorf("plugin host: not deregistered: %q", h.left))
	}
	return err
}

// calling returns the plugins for which handler calls are in flight.
func (h *Host) calling() (who []string) {
	for _, s := range h.List() {
		switch s.Phase {
		case Validating, Registering, DeRegistering:
			who = append(who, s.Type+" "+s.Name)
		}
	}
	return who
}

// discovered updates which sockets should be registered.
func (h *Host) discovered(changes []discovery.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range changes {
		p := h.paths[c.Path]
		if p != nil {
			p.gone()
		}
		switch {
		case c.Gone || h.serving.Err() != nil:
		case p == nil:
			p = &place{}
			h.paths[c.Path] = p
			h.begin(p, newSocket(h, c.Path))
		default:
			p.next = newSocket(h, c.Path)
			p.now.wake()
		}
	}
}

// gone ends the socket that was last found at the path.
func (p *place) gone() {
	if p.next != nil {
		p.next.end(errGone)
		p.next = nil
		return
	}
	p.now.end(errGone)
	p.now.wake()
}

// begin starts the goroutine of a socket.
func (h *Host) begin(p *place, s *socket) {
	p.now, p.next = s, nil
	h.publish(s, Waiting)
	h.work.Go(s.run)
}

// finished forgets a socket, and begins with the next one at its path.
func (h *Host) finished(s *socket) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.end(errGone)
	h.publish(s, Gone)
	p := h.paths[s.path]
	if p.next == nil || h.serving.Err() != nil {
		delete(h.paths, s.path)
		return
	}
	h.begin(p, p.next)
}

// handler returns nil for a type that has none.
func (h *Host) handler(kind string) Handler {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.handlers[kind]
}

// deregister calls the handler in the turn of the plugin's name.
func (h *Host) deregister(ctx context.Context, p Plugin) *failure {
	unlock, err := h.names.Lock(ctx, p.key())
	if err == nil {
		defer unlock()
		err = ctx.Err()
	}
	if err != nil {
		return &failure{step: DeRegistering, text: err.Error()}
	}
	return h.call(p, DeRegistering)
}

// orphan goes on deregistering a plugin whose path already has another socket:
// a handler that fails for the old plugin must not keep the new one out of use.
// It ends when the same instance is registered again, since DeRegister would
// then remove the new registration.
func (h *Host) orphan(p Plugin, failures int) {
	superseded, cancel := context.WithCancel(h.calls)
	h.mu.Lock()
	h.orphans[p.instance()] = cancel
	h.mu.Unlock()
	h.work.Go(func() {
		defer cancel()
		for ; ; failures++ {
			select {
			case <-time.After(h.o.BackOff.pause(failures)):
			case <-h.serving.Done():
			case <-superseded.Done():
			}
			failed := h.deregister(superseded, p)
			switch {
			case failed == nil:
				h.supersede(p)
				return
			case superseded.Err() != nil && h.calls.Err() == nil:
				return
			case h.serving.Err() != nil:
				h.leave(p, *failed)
				return
			}
		}
	})
}

// supersede ends the orphan of an instance, if there is one.
func (h *Host) supersede(p Plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel := h.orphans[p.instance()]; cancel != nil {
		cancel()
		delete(h.orphans, p.instance())
	}
}

// leave records a plugin that Close could not deregister.
func (h *Host) leave(p Plugin, f failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = append(h.left, p.Type+" "+p.Name+": "+f.text)
}
