// Package generic handles plugins of any type, without calling them. The newest
// instance of a name serves, older ones are fallbacks, and changes are
// reported.
package generic

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// Options configure a Handler; all are optional.
type Options struct {
	// Probe checks an instance before registration and in Reach; the plugin
	// gets its error. Nil accepts all, and Reach uses Connect.
	Probe func(ctx context.Context, p watch.Plugin) error
	// OnChange gets the new state of a name, serially per name. A new instance
	// is visible after OnChange returned nil. An error (or panic) refuses it,
	// and OnChange is called with the previous state. A deregistered instance
	// is already invisible, and OnChange is retried until it returns nil.
	// OnChange can read from the handler, but not register or deregister.
	OnChange func(ctx context.Context, n Name) error
}

// Handler implements watch.Handler for any types. It is safe for concurrent
// use.
type Handler struct {
	options Options
	locks   op.Locks // a change and its OnChange

	mu    sync.Mutex
	names map[key]*record
	feed  instance.Feed[key]
}

var _ watch.Handler = (*Handler)(nil)

type key struct{ kind, name string }

type set = instance.Set[watch.Plugin]

type record struct {
	instances set
	pending   bool // not yet accepted by OnChange
}

// New returns a Handler, which need not be closed.
func New(o Options) *Handler { return &Handler{options: o, names: map[key]*record{}} }

// Connect is a Probe: a process listens on the endpoint.
func Connect(ctx context.Context, p watch.Plugin) error { return instance.Connect(ctx, p.Endpoint) }

// Validate refuses empty or unprintable types and names, and endpoints other
// than plain absolute paths.
func (h *Handler) Validate(_ context.Context, p watch.Plugin) error {
	switch {
	case p.Type == "":
		return errors.New("the plugin has no type; the type selects its handler")
	case p.Name == "":
		return errors.New("the plugin has no name; clients look plugins up by name")
	case strings.ContainsFunc(p.Type+p.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("type %q and name %q must consist of printable characters", p.Type, p.Name)
	}
	return instance.CheckEndpoint(p.Endpoint)
}

// Register makes an instance the serving one. It is idempotent.
func (h *Handler) Register(ctx context.Context, p watch.Plugin) error {
	if err := h.Validate(ctx, p); err != nil {
		return err
	}
	if h.options.Probe != nil {
		if err := h.options.Probe(ctx, p); err != nil {
			return fmt.Errorf("the instance does not serve: %w", err)
		}
	}
	k, unlock, err := h.lock(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	before, pending := h.get(k)
	after := before.With(p.Endpoint, p.Socket, clone(p))
	if !pending && equal(before, after) {
		h.put(k, after, false)
		return nil
	}
	if err := h.notify(ctx, k, after); err != nil {
		h.put(k, before, h.notify(ctx, k, before) != nil)
		return fmt.Errorf("the host refused %s %q: %w", p.Type, p.Name, err)
	}
	h.put(k, after, false)
	return nil
}

// DeRegister removes an instance; the next older one serves.
func (h *Handler) DeRegister(ctx context.Context, p watch.Plugin) error {
	k, unlock, err := h.lock(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	before, pending := h.get(k)
	after, _, _ := before.Without(p.Endpoint, p.Socket)
	if !pending && equal(before, after) { // also announced by another socket
		h.put(k, after, false)
		return nil
	}
	h.put(k, after, true)
	if err := h.notify(ctx, k, after); err != nil {
		return fmt.Errorf("the host failed to withdraw %s %q: %w", p.Type, p.Name, err)
	}
	h.put(k, after, false)
	return nil
}

func (h *Handler) lock(ctx context.Context, p watch.Plugin) (key, func(), error) {
	unlock, err := h.locks.Lock(ctx, p.Type+"\x00"+p.Name)
	if err != nil {
		return key{}, nil, fmt.Errorf("another change of %s %q is in progress: %w", p.Type, p.Name, err)
	}
	return key{p.Type, p.Name}, unlock, nil
}

func (h *Handler) get(k key) (instances set, pending bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.names[k]; r != nil {
		return r.instances, r.pending
	}
	return nil, false
}

func (h *Handler) put(k key, instances set, pending bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var before set
	if r := h.names[k]; r != nil {
		before = r.instances
	}
	if len(instances) == 0 && !pending {
		delete(h.names, k)
	} else {
		h.names[k] = &record{instances, pending}
	}
	if !equal(before, instances) {
		h.feed.Touch(k)
	}
}

func (h *Handler) notify(ctx context.Context, k key, instances set) (err error) {
	if h.options.OnChange == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("OnChange: panic: %v\n%s", v, debug.Stack())
		}
	}()
	return h.options.OnChange(ctx, k.with(instances))
}

// clone copies a slice that would be shared.
func clone(p watch.Plugin) watch.Plugin {
	p.Versions = slices.Clone(p.Versions)
	return p
}

// equal to users of the handler.
func equal(a, b set) bool {
	return slices.EqualFunc(a.Endpoints(), b.Endpoints(), func(p, q watch.Plugin) bool {
		return p.Type == q.Type && p.Name == q.Name && p.Endpoint == q.Endpoint && p.Socket == q.Socket && slices.Equal(p.Versions, q.Versions)
	})
}
