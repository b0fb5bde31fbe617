// Package generic handles plugins of any type: it keeps their instances, lets
// the newest one of each name serve, with the older ones behind it, and tells
// the program of every change. It speaks with no plugin.
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

// Options are those of New; the zero value serves.
type Options struct {
	// Probe is asked before an instance is taken, and by Reach; its error is
	// told to the plugin. Nil takes what registers, and lets Reach use Connect.
	Probe func(ctx context.Context, p watch.Plugin) error
	// OnChange is called with the new state of a name, in order for one name
	// and at the same time for several. An instance is offered only after it
	// returned nil: an error refuses the instance, and OnChange is called with
	// the state as it was. An instance that goes is withdrawn before, and the
	// call comes again until it returns nil. A panic counts as an error.
	// OnChange may read from the handler, but not register or deregister.
	OnChange func(ctx context.Context, n Name) error
}

// Handler is a watch.Handler. One may serve any number of types.
type Handler struct {
	options Options
	turn    op.Locks // a change of a name and OnChange for it, as one

	mu    sync.Mutex
	names map[key]*record
	feed  instance.Feed[key]
}

var _ watch.Handler = (*Handler)(nil)

type key struct{ kind, name string }

type set = instance.Set[watch.Plugin]

type record struct {
	instances set
	owed      bool // OnChange has not taken this state yet
}

// New makes a handler. It has nothing to close.
func New(o Options) *Handler { return &Handler{options: o, names: map[key]*record{}} }

// Connect is a Probe: somebody must listen on the endpoint.
func Connect(ctx context.Context, p watch.Plugin) error { return instance.Connect(ctx, p.Endpoint) }

// Validate refuses names that nobody could use and endpoints that nobody could
// dial.
func (h *Handler) Validate(_ context.Context, p watch.Plugin) error {
	switch {
	case p.Type == "":
		return errors.New("the plugin tells no type; it is what decides who uses it")
	case p.Name == "":
		return errors.New("the plugin tells no name; it is what its users ask for")
	case strings.ContainsFunc(p.Type+p.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("type %q and name %q must consist of printable characters", p.Type, p.Name)
	}
	return instance.CheckEndpoint(p.Endpoint)
}

// Register makes an instance the one that serves. A repeat changes nothing.
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
	before, owed := h.look(k)
	after := before.With(p.Endpoint, p.Socket, clone(p))
	if !owed && same(before, after) {
		h.put(k, after, false)
		return nil
	}
	if err := h.tell(ctx, k, after); err != nil {
		h.put(k, before, h.tell(ctx, k, before) != nil)
		return fmt.Errorf("the host could not take %s %q into use: %w", p.Type, p.Name, err)
	}
	h.put(k, after, false)
	return nil
}

// DeRegister takes an instance away; the next older one serves.
func (h *Handler) DeRegister(ctx context.Context, p watch.Plugin) error {
	k, unlock, err := h.lock(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	before, owed := h.look(k)
	after, _, _ := before.Without(p.Endpoint, p.Socket)
	if !owed && same(before, after) { // another socket still announces the endpoint
		h.put(k, after, false)
		return nil
	}
	h.put(k, after, true)
	if err := h.tell(ctx, k, after); err != nil {
		return fmt.Errorf("the host could not take %s %q out of use: %w", p.Type, p.Name, err)
	}
	h.put(k, after, false)
	return nil
}

func (h *Handler) lock(ctx context.Context, p watch.Plugin) (key, func(), error) {
	unlock, err := h.turn.Lock(ctx, p.Type+"\x00"+p.Name)
	if err != nil {
		return key{}, nil, fmt.Errorf("another change of %s %q is still under way: %w", p.Type, p.Name, err)
	}
	return key{p.Type, p.Name}, unlock, nil
}

func (h *Handler) look(k key) (instances set, owed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.names[k]; r != nil {
		return r.instances, r.owed
	}
	return nil, false
}

func (h *Handler) put(k key, instances set, owed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var before set
	if r := h.names[k]; r != nil {
		before = r.instances
	}
	if len(instances) == 0 && !owed {
		delete(h.names, k)
	} else {
		h.names[k] = &record{instances, owed}
	}
	if !same(before, instances) {
		h.feed.Touch(k)
	}
}

func (h *Handler) tell(ctx context.Context, k key, instances set) (err error) {
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

// clone keeps the caller and the handler from writing to the same list.
func clone(p watch.Plugin) watch.Plugin {
	p.Versions = slices.Clone(p.Versions)
	return p
}

// same tells whether nothing has changed that anybody can see.
func same(a, b set) bool {
	return slices.EqualFunc(a.Endpoints(), b.Endpoints(), func(p, q watch.Plugin) bool {
		return p.Type == q.Type && p.Name == q.Name && p.Endpoint == q.Endpoint && p.Socket == q.Socket && slices.Equal(p.Versions, q.Versions)
	})
}
