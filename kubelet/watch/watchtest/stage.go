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

// patience bounds every wait for something that must come.
const patience = 60 * time.Second

// barrierKind is the type of the plugins that only show how far a host is.
const barrierKind = "Barrier"

// Stage is where one case is played: an empty plugins directory, a host over
// it, and a handler that writes down what it is asked.
type Stage struct {
	Ctx   context.Context
	Dir   string
	Quiet time.Duration
	// Validate, Register and DeRegister are what the handler does in the n-th
	// call for a plugin, from 1. They are set before Start.
	Validate, Register, DeRegister func(ctx context.Context, p watch.Plugin, n int) error

	harness Harness
	host    Host
	log     *journal
	undo    []func() error // in reverse, at the end

	mu       sync.Mutex
	barriers int
	inside   map[string]int // handler calls now, by name
	most     map[string]int
}

// failure carries an error out of a case that could not be played.
type failure struct{ error }

// check ends the case when the stage itself fails.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func newStage(ctx context.Context, h Harness) (*Stage, error) {
	// Short, for the sake of the 107 bytes of a socket's path.
	base, err := os.MkdirTemp("", "w")
	if err != nil {
		return nil, err
	}
	s := &Stage{
		Ctx: ctx, Dir: filepath.Join(base, "d"), Quiet: h.Quiet, harness: h, log: newJournal(),
		inside: map[string]int{}, most: map[string]int{},
	}
	s.undo = append(s.undo, func() error { return os.RemoveAll(base) })
	return s, os.Mkdir(s.Dir, 0o750)
}

func (s *Stage) end() error {
	var failed []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		failed = append(failed, s.undo[i]())
	}
	return errors.Join(failed...)
}

// New makes the host, without starting it.
func (s *Stage) New() Host {
	s.host = s.another(s.Dir)
	return s.host
}

// another makes one more host, over a directory.
func (s *Stage) another(dir string) Host {
	h, err := s.harness.New(dir, map[string]watch.Handler{
		Kind: handler{s}, barrierKind: silent{},
	})
	check(err)
	s.undo = append(s.undo, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return h.Close(ctx)
	})
	return h
}

// Start makes the host when there is none, and starts it.
func (s *Stage) Start() {
	if s.host == nil {
		s.New()
	}
	check(s.host.Start(s.Ctx))
}

// Path is that of a name in the plugins directory.
func (s *Stage) Path(name string) string { return filepath.Join(s.Dir, name) }

// Aside is a path beside the plugins directory, in the same file system.
func (s *Stage) Aside(name string) string { return filepath.Join(filepath.Dir(s.Dir), name) }

// Serve starts a plugin in the plugins directory; directories are made.
func (s *Stage) Serve(name string, script Script) *Plugin {
	return s.ServeAt(s.Path(name), script)
}

// ServeAt starts a plugin anywhere.
func (s *Stage) ServeAt(path string, script Script) *Plugin {
	check(os.MkdirAll(filepath.Dir(path), 0o750))
	p, err := serve(path, s.label(path), script, s.log)
	check(err)
	s.undo = append(s.undo, func() error { p.Kill(); return nil })
	return p
}

// serveOn starts a plugin behind a listener that is there already.
func (s *Stage) serveOn(l net.Listener, name string, script Script) {
	p := serveOn(l, s.Path(name), name, script, s.log)
	s.undo = append(s.undo, func() error { p.Kill(); return nil })
}

// label names a plugin by its socket below the plugins directory.
func (s *Stage) label(path string) string {
	if in, is := strings.CutPrefix(path, s.Dir+"/"); is {
		return in
	}
	return filepath.Base(path)
}

// Stop ends a plugin as an orderly one ends: its socket goes first.
func (s *Stage) Stop(p *Plugin) {
	check(os.Remove(p.Path))
	p.end()
}

// Await waits until a plugin has had so many calls of a kind, such as
// "Register" or "Notify(true)".
func (s *Stage) Await(whom, what string, times int) {
	if !s.reach(whom, what, times, patience) {
		calls := s.log.read()
		check(fmt.Errorf("%s had fewer than %d %s within %v: %s", whom, times, what, patience, render(calls)))
	}
}

func (s *Stage) reach(whom, what string, times int, within time.Duration) bool {
	return s.log.await(s.Ctx, within, func(calls []call) bool {
		n := 0
		for _, c := range calls {
			if c.whom == whom && (c.what == what || strings.HasPrefix(c.what, what+"(")) {
				n++
			}
		}
		return n >= times
	})
}

// Settle waits until nothing more comes of what was done: a plugin that
// appears now has been registered, and then nobody was called for a while.
func (s *Stage) Settle() {
	s.mu.Lock()
	s.barriers++
	name := fmt.Sprintf("zz-barrier-%d", s.barriers)
	s.mu.Unlock()
	passed := newJournal()
	if b, err := serve(s.Path(name), name, Script{Type: barrierKind}, passed); err == nil {
		passed.await(s.Ctx, 3*s.Quiet, func(calls []call) bool { return len(calls) > 1 })
		_ = os.Remove(b.Path) // a case may have taken the directory away
		b.end()
	}
	s.log.settle(s.Ctx, s.Quiet, patience)
}

// Handled tells the calls of the handler.
func (s *Stage) Handled() string {
	all := s.log.read()
	var calls []call
	for _, c := range all {
		if c.ofHandler {
			calls = append(calls, c)
		}
	}
	return render(calls)
}

// Calls tells all calls.
func (s *Stage) Calls() string {
	calls := s.log.read()
	return s.short(render(calls))
}

// short leaves out of a text where this stage happens to be.
func (s *Stage) short(text string) string { return strings.ReplaceAll(text, s.Dir, "DIR") }

// Registered are the plugins that the handler holds now.
func (s *Stage) Registered() []string {
	return s.log.registered()
}

// Most is how many calls for one name the handler had at the same time.
func (s *Stage) Most(name string) int {
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

// handler writes down what the host asks of it.
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
	whom := s.label(p.Endpoint)
	if p.Name != whom {
		what += "(" + p.Name + ")"
	}
	n := s.log.write(call{whom: whom, what: what, ofHandler: true})
	if do == nil {
		return nil
	}
	return do(ctx, p, n)
}

// silent is a handler that takes everything.
type silent struct{}

func (silent) Validate(context.Context, watch.Plugin) error   { return nil }
func (silent) Register(context.Context, watch.Plugin) error   { return nil }
func (silent) DeRegister(context.Context, watch.Plugin) error { return nil }
