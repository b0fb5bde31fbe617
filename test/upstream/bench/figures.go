package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds the wait for registrations, some of which might never come.
const patience = 2 * time.Minute

func (s *subject) start() error {
	_, err := s.host.ask("start")
	return err
}

// one registers a hundred plugins one by one, a tenth of a second apart, so
// that they cover the kubelet's whole polling period.
func one(ctx context.Context, s *subject) error {
	if err := s.start(); err != nil {
		return err
	}
	all := newCrowd(s.dir, 100)
	defer all.end()
	tick := time.NewTicker(103 * time.Millisecond)
	defer tick.Stop()
	for _, p := range all {
		<-tick.C
		if err := p.serve(); err != nil {
			return err
		}
	}
	if n := all.awaitNotified(ctx, patience); n > 0 {
		return fmt.Errorf("%d plugins were not registered", n)
	}
	return s.latencies("one plugin", all)
}

// latencies adds rows for the time from bind to Register.
func (s *subject) latencies(of string, all crowd) error {
	a, err := s.host.ask("times")
	if err != nil {
		return err
	}
	var took []time.Duration
	for _, p := range all {
		if at, found := a.Registered[p.path]; found {
			took = append(took, time.Duration(at-p.bound))
		}
	}
	if len(took) == 0 {
		return errors.New("no plugin was registered")
	}
	slices.Sort(took)
	s.row(of+", bind to Register: p50", duration(took[len(took)/2]))
	s.row(of+", bind to Register: p99", duration(took[len(took)*99/100]))
	return nil
}

// thousand plugins are added at once, and removed.
func thousand(ctx context.Context, s *subject) error {
	if err := s.start(); err != nil {
		return err
	}
	all := newCrowd(s.dir, 1000)
	defer all.end()
	if err := s.arrive(ctx, "1,000 at once", all); err != nil {
		return err
	}
	if err := s.latencies("1,000 at once", all); err != nil {
		return err
	}
	gone := time.Now()
	if err := all.remove(); err != nil {
		return err
	}
	if err := s.held(ctx, 0); err != nil {
		return err
	}
	a, err := s.host.ask("times")
	if err != nil {
		return err
	}
	s.row("1,000 removed, to the last DeRegister", duration(a.DeRegistered-gone.UnixNano()))
	return nil
}

// idleWith measures an idle host with n plugins.
func idleWith(ctx context.Context, s *subject, n int) error {
	if err := s.start(); err != nil {
		return err
	}
	all := newCrowd(s.dir, n)
	defer all.end()
	if err := all.serve(); err != nil {
		return err
	}
	if n := all.awaitNotified(ctx, patience); n > 0 {
		return fmt.Errorf("%d plugins were not registered", n)
	}
	return s.idle(ctx, fmt.Sprintf("idle with %d", n))
}

// arrive binds all sockets and adds rows for the registration.
func (s *subject) arrive(ctx context.Context, what string, all crowd) error {
	before, err := s.host.ask("stats")
	if err != nil {
		return err
	}
	if _, err := s.host.ask("peak"); err != nil {
		return err
	}
	if err := all.serve(); err != nil {
		return err
	}
	return s.arrived(ctx, what, all, before.CPU)
}

func (s *subject) arrived(ctx context.Context, what string, all crowd, cpu time.Duration) error {
	missing := all.awaitNotified(ctx, patience)
	after, err := s.host.ask("stats")
	if err != nil {
		return err
	}
	resident, err := s.host.resident()
	if err != nil {
		return err
	}
	s.row(what+", first bind to last Notify", duration(all.last()-all[0].bound))
	s.row(what+", first GetInfo to last Notify", duration(all.span()))
	s.row(what+", processor time of the host", duration(after.CPU-cpu))
	s.row(what+", most goroutines", count(after.Peak))
	s.row(what+", most memory", size(resident))
	s.row(what+", attempts repeated", count(all.repeated()))
	s.row(what+", never registered", count(missing))
	return nil
}

// idle measures the cost of ten idle seconds.
func (s *subject) idle(ctx context.Context, what string) error {
	const span = 10 * time.Second
	rest := time.NewTimer(2 * time.Second) // until the registrations have completed
	<-rest.C
	before, err := s.host.ask("stats")
	if err != nil {
		return err
	}
	rest.Reset(span)
	select {
	case <-rest.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := s.host.ask("stats")
	if err != nil {
		return err
	}
	s.row(what+", processor time per second", duration((after.CPU-before.CPU)/(span/time.Second)))
	s.row(what+", allocated per second", size(int64(after.Allocated-before.Allocated)/int64(span/time.Second)))
	s.row(what+", goroutines", count(after.Goroutines))
	return nil
}

// held waits until the handler has n plugins.
func (s *subject) held(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		a, err := s.host.ask("stats")
		if err != nil || a.Held == n {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the handler has %d plugins, want %d", a.Held, n)
		}
	}
}

// atStart creates the plugins before the host starts.
func atStart(ctx context.Context, s *subject) error {
	all := newCrowd(s.dir, 1000)
	defer all.end()
	if err := all.serve(); err != nil {
		return err
	}
	before, err := s.host.ask("stats")
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.start(); err != nil {
		return err
	}
	if n := all.awaitNotified(ctx, patience); n > 0 {
		return fmt.Errorf("%d plugins were not registered", n)
	}
	after, err := s.host.ask("stats")
	if err != nil {
		return err
	}
	s.row("1,000 there at start, to the last Notify", duration(all.last()-began.UnixNano()))
	s.row("1,000 there at start, processor time of the host", duration(after.CPU-before.CPU))
	return nil
}

// silentSockets measures how much sockets that accept connections and never
// respond delay other plugins.
func silentSockets(ctx context.Context, s *subject) error {
	if err := s.start(); err != nil {
		return err
	}
	have := 0
	for _, n := range []int{0, 500, 2000} {
		for ; have < n; have++ {
			// No goroutine calls accept: the kernel does, up to the backlog.
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(s.dir, fmt.Sprintf("silent-%d.sock", have)), Net: "unix"})
			if err != nil {
				return err
			}
			defer func() { _ = l.Close() }()
		}
		good := newCrowd(filepath.Join(s.dir, fmt.Sprintf("beside-%d", n)), 10)
		if err := os.Mkdir(filepath.Dir(good[0].path), 0o750); err != nil {
			return err
		}
		defer good.end()
		tick := time.NewTicker(203 * time.Millisecond)
		for _, p := range good {
			if err := p.serve(); err != nil {
				return err
			}
			<-tick.C
		}
		tick.Stop()
		if n := good.awaitNotified(ctx, patience); n > 0 {
			return fmt.Errorf("%d plugins were not registered", n)
		}
		slowest := int64(0)
		for _, p := range good {
			slowest = max(slowest, p.notified.Load()-p.bound)
		}
		s.row(fmt.Sprintf("good plugins beside %d silent sockets, slowest of ten, bind to Notify", n), duration(slowest))
	}
	return nil
}

func atOnce(ctx context.Context, s *subject, n int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if need := uint64(2*n + 1000); limit.Cur < need {
		s.row(fmt.Sprintf("%d,000 at once", n/1000), value{text: fmt.Sprintf("needs %d descriptors (ulimit -n)", need)})
		return nil
	}
	if err := s.start(); err != nil {
		return err
	}
	all := newCrowd(s.dir, n)
	defer all.end()
	what := fmt.Sprintf("%d,000 at once", n/1000)
	if err := s.arrive(ctx, what, all); err != nil {
		return err
	}
	return s.idle(ctx, fmt.Sprintf("idle with %d,000", n/1000))
}

// stale is a socket whose plugin has died, and is replaced after a while.
var stale = measurement{"stale", 1, func(ctx context.Context, s *subject) error {
	const dead = 220 * time.Second
	if err := s.start(); err != nil {
		return err
	}
	p := newPlugin(filepath.Join(s.dir, "plugin.sock"))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		return err
	}
	select {
	case <-time.After(dead):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := os.Remove(p.path); err != nil {
		return err
	}
	if err := p.serve(); err != nil {
		return err
	}
	defer p.end()
	if n := (crowd{p}).awaitNotified(ctx, 3*time.Minute); n > 0 {
		return errors.New("the plugin was not registered")
	}
	s.row("plugin in the place of one dead for 220 s, bind to Notify", duration(p.notified.Load()-p.bound))
	return nil
}}
