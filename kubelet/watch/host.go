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

// ErrClosed: the host was closed.
var ErrClosed = errors.New("the plugin host is closed")

// errGone ends a socket whose plugin must be deregistered: its file went, or
// Close deregisters all.
var errGone = errors.New("the socket is gone")

// Host discovers and registers plugins. It is safe for concurrent use.
type Host struct {
	o       Options
	metrics *metrics
	hub     hub

	names     op.Locks // handler calls by type and name
	slots     slots    // attempts within Options.Concurrency
	greetings slots    // connections that wait for the first data; see greetTime

	serving context.Context // until Close; cause errGone or ErrClosed
	stop    context.CancelCauseFunc
	calls   context.Context // of RPCs and handler calls
	abort   context.CancelFunc
	work    sync.WaitGroup

	life    sync.Mutex
	state   state
	finder  *discovery.Finder
	closing sync.Once
	closed  error // of Close

	mu              sync.Mutex
	handlers        map[string]Handler // by type; permanent, so that the same handler deregisters a plugin
	paths           map[string]*place
	orphans         map[instance]context.CancelFunc
	refusals        map[string]refusal // by path
	notDeregistered []string           // by Close
}

type state int

const (
	fresh state = iota
	running
	closed
)

// place is a socket path, where the next socket waits until the current one is
// deregistered.
type place struct{ now, next *socket }

// New returns a Host. Call Start to run it.
func New(o Options) (*Host, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("plugin host: %w", err)
	}
	h := &Host{
		o: o, slots: slots{free: o.Concurrency}, greetings: slots{free: greetings * o.Concurrency},
		handlers: map[string]Handler{}, paths: map[string]*place{}, orphans: map[instance]context.CancelFunc{}, refusals: map[string]refusal{},
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

// Start creates the directory if missing, watches it and finds existing
// sockets; ctx bounds only that. It fails if sockets would be missed.
func (h *Host) Start(ctx context.Context) error {
	h.life.Lock()
	defer h.life.Unlock()
	if h.state != fresh {
		return errors.New("plugin host: it was already started or closed; create a new one")
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
			h.o.Logger.Error("plugin discovery stopped", "err", err)
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.o.Logger.Info("plugin host started", "path", h.o.Dir, "types", h.kinds(), "sockets", len(h.paths))
	return nil
}

// Handle adds the permanent handler for a type of plugin. Plugins that lacked
// it are retried at once.
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

// Close ends attempts, waits for in-flight handler calls, and optionally
// deregisters every plugin. If ctx ends first, calls are cancelled, and the
// error lists what is left. Later calls return the same error.
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

// grace is for cancelled calls to return.
const grace = time.Second

func (h *Host) await(ctx context.Context) (err error) {
	ended := make(chan struct{})
	go func() { h.work.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		err = fmt.Errorf("plugin host: handler calls were cancelled: %w", context.Cause(ctx))
		h.abort()
		select {
		case <-ended:
		case <-time.After(grace):
			return fmt.Errorf("plugin host: handler calls did not return after cancellation, for %q: %w", h.calling(), context.Cause(ctx))
		}
	}
	if len(h.notDeregistered) > 0 {
		err = errors.Join(err, fmt.Errorf("plugin host: not deregistered: %q", h.notDeregistered))
	}
	return err
}

func (h *Host) calling() (plugins []string) {
	for _, s := range h.List() {
		switch s.Phase {
		case Validating, Registering, DeRegistering:
			plugins = append(plugins, s.Type+" "+s.Name)
		}
	}
	return plugins
}

// discovered updates the desired sockets.
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

func (p *place) gone() {
	if p.next != nil {
		p.next.end(errGone)
		p.next = nil
		return
	}
	p.now.end(errGone)
	p.now.wake()
}

func (h *Host) begin(p *place, s *socket) {
	p.now, p.next = s, nil
	h.publish(s, Waiting)
	h.work.Go(s.run)
}

// finished starts the next socket at the path.
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

func (h *Host) handler(kind string) Handler {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.handlers[kind]
}

// deregister is serialised by the plugin's name.
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

// orphan retries to deregister a plugin whose path has another socket, so that
// the failure does not block the new plugin. It ends when the same instance is
// registered again: DeRegister would remove that.
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
				h.recordLeft(p, *failed)
				return
			}
		}
	})
}

// supersede stops orphan's retries for an instance.
func (h *Host) supersede(p Plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel := h.orphans[p.instance()]; cancel != nil {
		cancel()
		delete(h.orphans, p.instance())
	}
}

func (h *Host) recordLeft(p Plugin, f failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notDeregistered = append(h.notDeregistered, p.Type+" "+p.Name+": "+f.text)
}
