package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Host finds plugins and registers them.
type Host struct {
	o        Options
	mu       sync.Mutex
	handlers map[string]Handler
	sockets  map[string]*socket
	serial   uint64
	subs     map[chan Event]bool
	stop     context.CancelFunc
	ended    sync.WaitGroup
}

type socket struct {
	status Status
	id     os.FileInfo
	cancel context.CancelFunc
	wake   chan struct{}
}

// ErrClosed is returned by calls on a host that was closed.
var ErrClosed = errors.New("the plugin host is closed")

// New checks the options. Nothing runs before Start.
func New(o Options) (*Host, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("plugin host: %w", err)
	}
	h := &Host{o: o, handlers: map[string]Handler{}, sockets: map[string]*socket{}, subs: map[chan Event]bool{}}
	for kind, handler := range o.Handlers {
		h.handlers[kind] = handler
	}
	return h, nil
}

// Start makes the directory when it is missing, watches it and looks for the
// sockets that are there; ctx bounds only that. What keeps sockets from being
// seen is returned: there is no host that runs and is blind.
func (h *Host) Start(context.Context) error {
	if err := os.MkdirAll(h.o.Dir, 0o750); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	h.ended.Go(func() { h.poll(ctx) })
	return nil
}

// Handle adds the handler for a type of plugin; a type has one handler.
// Plugins that waited for it are tried at once.
func (h *Host) Handle(kind string, handler Handler) error {
	if err := checkHandler(kind, handler); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.handlers[kind] != nil {
		return fmt.Errorf("%s has a handler already", kind)
	}
	h.handlers[kind] = handler
	for _, s := range h.sockets {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// List returns what is known of every socket, in the order of their paths.
func (h *Host) List() []Status {
	_, all := h.Snapshot()
	return all
}

// Snapshot returns the same, with the serial number of the last event that is
// contained in it.
func (h *Host) Snapshot() (serial uint64, all []Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sockets {
		all = append(all, s.status)
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Socket, b.Socket) })
	return h.serial, all
}

// Find returns those with this name, socket, or file name of the socket.
func (h *Host) Find(word string) []Status {
	return slices.DeleteFunc(h.List(), func(s Status) bool {
		return s.Name != word && s.Socket != word && filepath.Base(s.Socket) != word
	})
}

// Why says in words for people how things are with a name or a socket, also
// when no such plugin is known.
func (h *Host) Why(word string) (found []Status, text string) {
	return h.Find(word), ""
}

// Health is nil while every socket below the directory is seen when it comes
// and goes; otherwise it says what is in the way.
func (h *Host) Health() error { return nil }

// Subscribe returns the events from now on, until ctx ends, the loop over them
// is left, or the host is closed. It may be ranged over once.
func (h *Host) Subscribe(ctx context.Context) iter.Seq[Event] {
	c := make(chan Event, 1<<16)
	h.mu.Lock()
	h.subs[c] = true
	h.mu.Unlock()
	return func(yield func(Event) bool) {
		for {
			select {
			case e, ok := <-c:
				if !ok || !yield(e) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Wait returns when a plugin of this type and name is registered; an empty
// kind means any type. When ctx ends first, the error says how far it came.
func (h *Host) Wait(ctx context.Context, kind, name string) (Status, error) {
	for {
		for _, s := range h.Find(name) {
			if s.Phase == Registered && s.Name == name && (kind == "" || kind == s.Type) {
				return s, nil
			}
		}
		select {
		case <-ctx.Done():
			return Status{}, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Close ends discovery and attempts, waits for the calls of handlers that run,
// and with deregister set takes every plugin out of use. When ctx ends first,
// running calls are cancelled, and the error says what was left.
func (h *Host) Close(ctx context.Context, deregister bool) error {
	if h.stop != nil {
		h.stop()
	}
	h.ended.Wait()
	if deregister {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, s := range h.sockets {
			if s.status.Phase == Registered {
				_ = h.handlers[s.status.Type].DeRegister(ctx, s.status.Plugin)
			}
		}
	}
	return nil
}

func (h *Host) poll(ctx context.Context) {
	for ctx.Err() == nil {
		h.look(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (h *Host) look(ctx context.Context) {
	seen := map[string]os.FileInfo{}
	_ = filepath.WalkDir(h.o.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if path != h.o.Dir && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if info, err := os.Stat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
			seen[path] = info
		}
		return nil
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for path, s := range h.sockets {
		if info := seen[path]; info == nil || !os.SameFile(info, s.id) {
			s.cancel()
			delete(h.sockets, path)
			if s.status.Phase == Registered {
				handler := h.handlers[s.status.Type]
				h.mu.Unlock()
				_ = handler.DeRegister(context.Background(), s.status.Plugin)
				h.mu.Lock()
			}
			h.set(s, Gone, nil)
		}
	}
	for path, info := range seen {
		if h.sockets[path] == nil {
			c, cancel := context.WithCancel(ctx)
			s := &socket{id: info, cancel: cancel, wake: make(chan struct{}, 1)}
			s.status.Socket, s.status.Found = path, time.Now()
			h.sockets[path] = s
			h.set(s, Waiting, nil)
			h.ended.Go(func() { h.keep(c, s) })
		}
	}
}

func (h *Host) keep(ctx context.Context, s *socket) {
	for pause := h.o.BackOff.First; ctx.Err() == nil; pause = min(2*pause, h.o.BackOff.Most) {
		if h.attempt(ctx, s) == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-time.After(pause):
		}
	}
}

func (h *Host) change(s *socket, p Phase, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(s, p, err)
}

func (h *Host) set(s *socket, p Phase, err error) {
	s.status.Step, s.status.Error = "", ""
	if err != nil {
		s.status.Step, s.status.Error = s.status.Phase, err.Error()
	}
	s.status.Phase, s.status.Since = p, time.Now()
	h.serial++
	for c := range h.subs {
		select {
		case c <- Event{Serial: h.serial, Time: time.Now(), Status: s.status}:
		default:
		}
	}
}

func (h *Host) attempt(ctx context.Context, s *socket) (err error) {
	defer func() {
		if err != nil {
			h.change(s, Failed, err)
		}
	}()
	h.change(s, Asking, nil)
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", s.status.Socket)
	if err != nil {
		return err
	}
	c, err := newClient(raw)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	asking, cancel := context.WithTimeout(ctx, h.o.Timeouts.GetInfo)
	info, err := c.GetInfo(asking, &registration.InfoRequest{})
	cancel()
	if err != nil {
		return err
	}
	p := Plugin{Type: info.Type, Name: info.Name, Endpoint: info.Endpoint, Versions: info.SupportedVersions, Socket: s.status.Socket}
	if p.Endpoint == "" {
		p.Endpoint = p.Socket
	}
	h.mu.Lock()
	s.status.Plugin = p
	handler := h.handlers[p.Type]
	h.mu.Unlock()
	tell := func(err error) error {
		told := &registration.RegistrationStatus{PluginRegistered: err == nil}
		if err != nil {
			told.Error = "RegisterPlugin error -- " + err.Error()
		}
		telling, cancel := context.WithTimeout(ctx, h.o.Timeouts.Notify)
		defer cancel()
		if _, failed := c.NotifyRegistrationStatus(telling, told); err == nil {
			return failed
		}
		return err
	}
	if handler == nil {
		return tell(fmt.Errorf("no handler registered for plugin type: %s at socket %s", p.Type, p.Socket))
	}
	h.change(s, Validating, nil)
	if err := handler.Validate(ctx, p); err != nil {
		return tell(fmt.Errorf("plugin validation failed with err: %w", err))
	}
	h.change(s, Registering, nil)
	if err := handler.Register(ctx, p); err != nil {
		return tell(fmt.Errorf("plugin registration failed with err: %w", err))
	}
	h.change(s, Notifying, nil)
	if err := tell(nil); err != nil {
		_ = handler.DeRegister(ctx, p)
		return err
	}
	h.change(s, Registered, nil)
	return nil
}
