package watchtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/kubelet/watch"
)

const waitTimeout = 60 * time.Second

// barrierKind plugins only show a host's progress.
const barrierKind = "Barrier"

// Stage is a case's environment: a plugins directory, a host, and a recording
// handler.
type Stage struct {
	Ctx   context.Context
	Dir   string
	Quiet time.Duration
	// These run in the n-th handler call for a plugin, from 1. Set them before
	// Start.
	Validate, Register, DeRegister func(ctx context.Context, p watch.Plugin, n int) error

	harness  Harness
	host     Host
	log      *journal
	cleanups []func() error // in reverse order

	mu       sync.Mutex
	barriers int
	inside   map[string]int // running calls by name
	most     map[string]int
}

type failure struct{ error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func newStage(ctx context.Context, h Harness) (*Stage, error) {
	// Socket paths are limited to 107 bytes.
	base, err := os.MkdirTemp("", "w")
	if err != nil {
		return nil, err
	}
	s := &Stage{
		Ctx: ctx, Dir: filepath.Join(base, "d"), Quiet: h.Quiet, harness: h, log: newJournal(),
		inside: map[string]int{}, most: map[string]int{},
	}
	s.cleanups = append(s.cleanups, func() error { return os.RemoveAll(base) })
	return s, os.Mkdir(s.Dir, 0o750)
}

func (s *Stage) end() error {
	var failed []error
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		failed = append(failed, s.cleanups[i]())
	}
	return errors.Join(failed...)
}

// New creates the host.
func (s *Stage) New() Host {
	s.host = s.another(s.Dir)
	return s.host
}

func (s *Stage) another(dir string) Host {
	h, err := s.harness.New(dir, map[string]watch.Handler{
		Kind: handler{s}, barrierKind: acceptAll{},
	})
	check(err)
	s.cleanups = append(s.cleanups, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		return h.Close(ctx)
	})
	return h
}

// Start starts the host, after New if needed.
func (s *Stage) Start() {
	if s.host == nil {
		s.New()
	}
	check(s.host.Start(s.Ctx))
}

// Path returns the path of a name in the plugins directory.
func (s *Stage) Path(name string) string { return filepath.Join(s.Dir, name) }

// Aside returns a path outside, in the same file system.
func (s *Stage) Aside(name string) string { return filepath.Join(filepath.Dir(s.Dir), name) }

// Serve starts a plugin in the plugins directory.
func (s *Stage) Serve(name string, script Script) *Plugin {
	return s.ServeAt(s.Path(name), script)
}

// ServeAt starts a plugin at any path.
func (s *Stage) ServeAt(path string, script Script) *Plugin {
	check(os.MkdirAll(filepath.Dir(path), 0o750))
	p, err := serve(path, s.label(path), script, s.log)
	check(err)
	s.cleanups = append(s.cleanups, func() error { p.Kill(); return nil })
	return p
}

func (s *Stage) serveOn(l net.Listener, name string, script Script) {
	p := serveOn(l, s.Path(name), name, script, s.log)
	s.cleanups = append(s.cleanups, func() error { p.Kill(); return nil })
}

func (s *Stage) label(path string) string {
	if in, is := strings.CutPrefix(path, s.Dir+"/"); is {
		return in
	}
	return filepath.Base(path)
}

// Stop ends a plugin, which first removes its socket.
func (s *Stage) Stop(p *Plugin) {
	check(os.Remove(p.Path))
	p.end()
}

// Await waits for a number of calls, such as "Register" or "Notify(true)".
func (s *Stage) Await(plugin, what string, times int) {
	if !s.reach(plugin, what, times, waitTimeout) {
		calls := s.log.read()
		check(fmt.Errorf("%s received fewer than %d %s within %v: %s", plugin, times, what, waitTimeout, render(calls)))
	}
}

func (s *Stage) reach(plugin, what string, times int, within time.Duration) bool {
	return s.log.await(s.Ctx, within, func(calls []call) bool {
		n := 0
		for _, c := range calls {
			if c.plugin == plugin && (c.what == what || strings.HasPrefix(c.what, what+"(")) {
				n++
			}
		}
		return n >= times
	})
}

// WaitIdle waits until the host has handled all changes: a new plugin is
// registered, then no call for the duration Quiet.
func (s *Stage) WaitIdle() {
	s.mu.Lock()
	s.barriers++
	name := fmt.Sprintf("zz-barrier-%d", s.barriers)
	s.mu.Unlock()
	passed := newJournal()
	if b, err := serve(s.Path(name), name, Script{Type: barrierKind}, passed); err == nil {
		passed.await(s.Ctx, 3*s.Quiet, func(calls []call) bool { return len(calls) > 1 })
		_ = os.Remove(b.Path) // the case might have removed it
		b.end()
	}
	s.log.waitIdle(s.Ctx, s.Quiet, waitTimeout, never)
}

// Handled renders the handler calls.
func (s *Stage) Handled() string {
	all := s.log.read()
	var calls []call
	for _, c := range all {
		if c.byHandler {
			calls = append(calls, c)
		}
	}
	return render(calls)
}

// Calls renders all calls.
func (s *Stage) Calls() string {
	calls := s.log.read()
	return s.short(render(calls))
}

// short replaces the plugins directory by DIR.
func (s *Stage) short(text string) string { return strings.ReplaceAll(text, s.Dir, "DIR") }

// Registered returns the handler's plugins.
func (s *Stage) Registered() []string {
	return s.log.registered()
}

// MaxConcurrent returns the maximum of concurrent handler calls for a name.
func (s *Stage) MaxConcurrent(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most[name]
}

func (s *Stage) enter(name string) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside[name]++
	s.most[name] = max(s.most[name], s.inside[name])
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inside[name]--
	}
}

type handler struct{ s *Stage }

func (h handler) Validate(ctx context.Context, p watch.Plugin) error {
	return h.s.handle(ctx, "Validate", p, h.s.Validate)
}

func (h handler) Register(ctx context.Context, p watch.Plugin) error {
	return h.s.handle(ctx, "Register", p, h.s.Register)
}

func (h handler) DeRegister(ctx context.Context, p watch.Plugin) error {
	return h.s.handle(ctx, "DeRegister", p, h.s.DeRegister)
}

func (s *Stage) handle(ctx context.Context, what string, p watch.Plugin, do func(context.Context, watch.Plugin, int) error) error {
	defer s.enter(p.Name)()
	plugin := s.label(p.Endpoint)
	if p.Name != plugin {
		what += "(" + p.Name + ")"
	}
	n := s.log.write(call{plugin: plugin, what: what, byHandler: true})
	if do == nil {
		return nil
	}
	return do(ctx, p, n)
}

type acceptAll struct{}

func (acceptAll) Validate(context.Context, watch.Plugin) error   { return nil }
func (acceptAll) Register(context.Context, watch.Plugin) error   { return nil }
func (acceptAll) DeRegister(context.Context, watch.Plugin) error { return nil }
