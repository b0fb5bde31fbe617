package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cleatproject/cleat/kubelet/watch/discovery"
)

// ErrClosed is returned by calls on a host that was closed.
var ErrClosed = errors.New("the plugin host is closed")

// Host finds plugins and registers them.
type Host struct {
	o       Options
	machine *machine // the owner's, like all that follows
	// handlers are never changed or taken away, so that who registered a plugin
	// also deregisters it.
	handlers map[string]Handler
	talks    map[uint64]*talk
	lives    *lives

	metrics *metrics
	hub     hub
	finder  *discovery.Finder
	inbox   chan func() // to the owner
	base    context.Context
	abort   context.CancelFunc // of all that runs
	watched context.CancelFunc // no more events from outside
	outside sync.WaitGroup     // who brings them
	work    sync.WaitGroup     // actions
	ended   chan struct{}      // when the owner has

	mu      sync.Mutex
	state   state
	closing sync.Once
	closed  error // by Close
}

type state int

const (
	fresh state = iota
	running
	closed
)

// New checks the options. Nothing runs before Start.
func New(o Options) (*Host, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("plugin host: %w", err)
	}
	h := &Host{
		o: o, handlers: map[string]Handler{}, talks: map[uint64]*talk{},
		inbox: make(chan func(), 1024), ended: make(chan struct{}),
	}
	if h.metrics, err = newMetrics(o.Metrics); err != nil {
		return nil, fmt.Errorf("plugin host: %w", err)
	}
	h.machine = newMachine(rules{
		Dial: o.Timeouts.Dial, Grace: o.Grace, BackOff: o.BackOff, Concurrency: o.Concurrency, random: rand.Float64,
	})
	for kind, handler := range o.Handlers {
		h.handlers[kind] = handler
		h.machine.handle(kind)
	}
	h.base, h.abort = context.WithCancel(context.Background())
	return h, nil
}

// Start makes the directory when it is missing, watches it and looks for the
// sockets that are there; ctx bounds only that. What keeps sockets from being
// seen is returned: there is no host that runs and is blind.
func (h *Host) Start(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != fresh {
		return errors.New("plugin host: it was started before, or closed; make a new one")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var there []discovery.Change // before the owner runs
	report := func(changes []discovery.Change) { there = append(there, changes...) }
	h.finder = discovery.New(discovery.Options{
		Dir: h.o.Dir, Rescan: h.o.Rescan, Logger: h.o.Logger,
		Report:  func(changes []discovery.Change) { report(changes) },
		Observe: h.metrics.discovery(),
	})
	if err := h.finder.Start(); err != nil {
		return fmt.Errorf("plugin host: %w", err)
	}
	report = func(changes []discovery.Change) { h.post(func() { h.discovered(changes) }) }
	var err error
	if h.lives, err = newLives(); err != nil {
		return fmt.Errorf("plugin host: %w", errors.Join(err, h.finder.Close()))
	}
	h.state = running
	go h.own()
	h.post(func() { h.discovered(there) })
	var outside context.Context
	outside, h.watched = context.WithCancel(h.base)
	h.outside.Go(func() {
		if err := h.finder.Run(outside); err != nil {
			h.o.Logger.Error("plugins are no longer discovered", "error", err)
		}
	})
	h.outside.Go(func() { h.listen(outside) })
	h.o.Logger.Info("plugins are registered from here", "directory", h.o.Dir, "types", h.machine.kinds(), "sockets", len(there))
	return nil
}

// Handle adds the handler for a type of plugin; a type has one handler, for
// ever. Plugins that waited for it are tried at once.
func (h *Host) Handle(kind string, handler Handler) error {
	if err := checkHandler(kind, handler); err != nil {
		return err
	}
	var err error
	if !h.do(func() {
		if h.handlers[kind] != nil {
			err = fmt.Errorf("plugins of type %s have a handler already", kind)
			return
		}
		h.handlers[kind] = handler
		h.tell(func() { h.machine.handle(kind) })
	}) {
		return ErrClosed
	}
	return err
}

// Close ends discovery and attempts, waits for the calls of handlers that run,
// and with deregister set takes every plugin out of use. When ctx ends first,
// running calls are cancelled, and the error says what was left. Calls after
// the first return the same.
func (h *Host) Close(ctx context.Context, deregister bool) error {
	h.closing.Do(func() {
		h.mu.Lock()
		before := h.state
		h.state = closed
		h.mu.Unlock()
		if before == running {
			h.watched()
			h.outside.Wait()
			h.post(func() { h.tell(func() { h.machine.stop(deregister) }) })
			h.closed = h.await(ctx)
		} else {
			close(h.ended)
		}
		h.abort()
		h.hub.close()
	})
	return h.closed
}

// grace is how long calls that were cancelled may take to return.
const grace = time.Second

// await waits for the owner and for every action to end.
func (h *Host) await(ctx context.Context) (err error) {
	select {
	case <-h.ended:
	case <-ctx.Done():
		err = fmt.Errorf("plugin host: calls of handlers were cut off: %w", context.Cause(ctx))
		h.abort()
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-h.ended:
		case <-timer.C:
			return fmt.Errorf("plugin host: calls of handlers go on though they were cancelled, for %q: %w", h.calling(), context.Cause(ctx))
		}
	}
	h.work.Wait()
	if left := h.machine.left; len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("plugin host: not deregistered: %q", left))
	}
	return err
}

// calling names the plugins for which calls of handlers run.
func (h *Host) calling() (who []string) {
	h.do(func() {
		for _, s := range h.machine.sockets {
			switch s.doing {
			case validating, registering, takingBack, deregistering:
				who = append(who, s.status.Type+" "+s.status.Name)
			}
		}
	})
	return who
}

// own is the one goroutine that has the state in its hands. It waits for
// nothing but its inbox and the clock.
func (h *Host) own() {
	defer close(h.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case f := <-h.inbox:
			f()
		case <-timer.C:
			h.tell(h.machine.tick)
		}
		if h.machine.closing && h.machine.idle() {
			if err := h.lives.close(); err != nil {
				h.o.Logger.Warn("the set of idle connections is left", "error", err)
			}
			return
		}
		if at, any := h.machine.alarmAt(); any {
			timer.Reset(time.Until(at))
		}
	}
}

// post hands something to the owner.
func (h *Host) post(f func()) {
	select {
	case h.inbox <- f:
	case <-h.ended:
	}
}

// do runs f as the owner, and waits for it. It returns false when the host is
// closed; what was known then may still be read.
func (h *Host) do(f func()) bool {
	h.mu.Lock()
	if h.state == fresh {
		defer h.mu.Unlock()
		f()
		return true
	}
	h.mu.Unlock()
	done := make(chan struct{})
	h.post(func() { f(); close(done) })
	select {
	case <-done:
		return true
	case <-h.ended:
		return false
	}
}

// tell tells the machine something and does what follows.
func (h *Host) tell(f func()) {
	out := h.machine.do(time.Now(), f)
	for _, o := range out.outcomes {
		h.metrics.outcome(o)
	}
	for _, c := range out.changes {
		h.publish(c)
	}
	for _, a := range out.actions {
		h.perform(a)
	}
}

func (h *Host) discovered(changes []discovery.Change) {
	for _, c := range changes {
		h.tell(func() {
			if c.Gone {
				h.machine.gone(c.Path)
			} else {
				h.machine.found(c.Path)
			}
		})
	}
}

// listen learns of plugins that end their idle connection.
func (h *Host) listen(ctx context.Context) {
	var tokens []uint64
	for {
		var err error
		if tokens, err = h.lives.set.Wait(ctx, tokens[:0]); err != nil {
			return
		}
		done := make(chan struct{})
		h.post(func() {
			defer close(done)
			for _, token := range tokens {
				if h.lives.stirred(token) {
					h.tell(func() { h.machine.hungUp(token) })
				}
			}
		})
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}
