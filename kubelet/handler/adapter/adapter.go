// Package adapter runs a handler that was written for the kubelet's plugin
// manager under the host of package watch. It needs nothing of Kubernetes: the
// interface is the kubelet's, method by method.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/kubelet/watch"
)

// PluginHandler is what the kubelet asks of a handler
// (k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache, since 1.33).
type PluginHandler interface {
	ValidatePlugin(pluginName, endpoint string, versions []string) error
	// RegisterPlugin gets nil for the time-out, as from the kubelet.
	RegisterPlugin(pluginName, endpoint string, versions []string, pluginClientTimeout *time.Duration) error
	DeRegisterPlugin(pluginName, endpoint string)
}

// Handler is a watch.Handler that passes the calls on.
//
// The kubelet's calls take no context, so none can be cancelled. One that runs
// on when its context ends is reported: the call returns an error, Running
// lists it, and the log says when it began and when it ended after all. It
// keeps its goroutine, and its turn: the next call for the same plugin waits
// for it, since the kubelet never makes two at once. So there are at most as
// many of these goroutines as there are names.
type Handler struct {
	inner  PluginHandler
	logger *slog.Logger

	mu     sync.Mutex
	calls  map[name]*call
	closed bool
}

var _ watch.Handler = (*Handler)(nil)

type name struct{ kind, name string }

// Call is one that is running.
type Call struct {
	Type, Name, Endpoint string
	Method               string // ValidatePlugin, RegisterPlugin or DeRegisterPlugin
	Since                time.Time
}

func (c Call) String() string {
	return fmt.Sprintf("%s of %s %q (%s), which began %s ago", c.Method, c.Type, c.Name, c.Endpoint, time.Since(c.Since).Round(time.Millisecond))
}

type call struct {
	Call
	done chan struct{} // closed after err was set
	err  error
	cut  bool // its caller has gone; guarded by Handler.mu
}

// New passes calls on to a handler; a nil logger means no log.
func New(inner PluginHandler, logger *slog.Logger) *Handler {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Handler{inner: inner, logger: logger, calls: map[name]*call{}}
}

// Validate calls ValidatePlugin.
func (h *Handler) Validate(ctx context.Context, p watch.Plugin) error {
	return h.run(ctx, p, "ValidatePlugin", func() error {
		return h.inner.ValidatePlugin(p.Name, p.Endpoint, slices.Clone(p.Versions))
	})
}

// Register calls RegisterPlugin.
func (h *Handler) Register(ctx context.Context, p watch.Plugin) error {
	return h.run(ctx, p, "RegisterPlugin", func() error {
		return h.inner.RegisterPlugin(p.Name, p.Endpoint, slices.Clone(p.Versions), nil)
	})
}

// DeRegister calls DeRegisterPlugin, which cannot fail. An error says that it
// did not begin or not end in time, or panicked.
func (h *Handler) DeRegister(ctx context.Context, p watch.Plugin) error {
	return h.run(ctx, p, "DeRegisterPlugin", func() error {
		h.inner.DeRegisterPlugin(p.Name, p.Endpoint)
		return nil
	})
}

func (h *Handler) run(ctx context.Context, p watch.Plugin, method string, f func() error) error {
	c := &call{Call: Call{Type: p.Type, Name: p.Name, Endpoint: p.Endpoint, Method: method}, done: make(chan struct{})}
	if err := h.begin(ctx, c); err != nil {
		return err
	}
	go func() {
		err := fmt.Errorf("%s ended its goroutine", method) // by runtime.Goexit
		defer func() { h.end(c, err) }()
		err = guarded(method, f)
	}()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	default:
	}
	c.cut = true
	h.logger.Warn("a handler does not return in time and cannot be cancelled", "method", method, "type", c.Type, "name", c.Name, "endpoint", c.Endpoint, "since", c.Since)
	return fmt.Errorf("%w: the handler cannot be cancelled and still runs %s", context.Cause(ctx), c)
}

// begin waits until no other call for the name runs, and takes the turn.
func (h *Handler) begin(ctx context.Context, c *call) error {
	key := name{c.Type, c.Name}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h.mu.Lock()
		before := h.calls[key]
		switch {
		case h.closed:
			h.mu.Unlock()
			return errors.New("the handler is closed")
		case before == nil:
			c.Since = time.Now()
			h.calls[key] = c
			h.mu.Unlock()
			return nil
		}
		h.mu.Unlock()
		select {
		case <-before.done:
		case <-ctx.Done():
			return fmt.Errorf("%w: the handler still runs %s", context.Cause(ctx), before)
		}
	}
}

func (h *Handler) end(c *call, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.err = err
	delete(h.calls, name{c.Type, c.Name})
	close(c.done)
	if c.cut {
		h.logger.Info("a handler's call has ended after all", "method", c.Method, "type", c.Type, "name", c.Name, "endpoint", c.Endpoint, "duration", time.Since(c.Since), "error", err)
	}
}

func guarded(method string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s: panic: %v\n%s", method, v, debug.Stack())
		}
	}()
	return f()
}

// Running lists the calls that have not returned, by type and name.
func (h *Handler) Running() []Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	running := make([]Call, 0, len(h.calls))
	for _, c := range h.calls {
		running = append(running, c.Call)
	}
	slices.SortFunc(running, func(a, b Call) int {
		return strings.Compare(a.Type+"\x00"+a.Name, b.Type+"\x00"+b.Name)
	})
	return running
}

// Close lets no call begin any more and waits for those that run. The error
// names the ones that outlast ctx; their goroutines live on with them.
func (h *Handler) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	running := slices.Collect(maps.Values(h.calls))
	h.mu.Unlock()
	var errs []error
	for _, c := range running {
		select {
		case <-c.done:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("still runs: %s", c))
		}
	}
	return errors.Join(errs...)
}
