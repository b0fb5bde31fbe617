package watchtest

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// load: more than the kernel's queue of events holds.
func load() []Case {
	const whyLost = "events that the kernel dropped are made good by a rescan; the kubelet loses those sockets for good"
	return []Case{
		{Group: "load", Name: "queue for 64 events, 4,000 sockets at once", Want: "none lost", Kubelet: "some lost", Why: whyLost,
			Alone: true, Soak: true, Run: func(s *Stage) string {
				return overflow(s, 4000, func(context.Context) {})
			}},
		{Group: "load", Name: "queue for 64 events, 200 sockets beside eight busy files", Want: "none lost", Kubelet: "some lost", Why: whyLost,
			Alone: true, Run: func(s *Stage) string {
				return overflow(s, 200, func(ctx context.Context) { busyFiles(ctx, s) })
			}},
		{Group: "load", Name: "1,000 sockets that accept and say nothing, and a good plugin", Want: "registered before any of them is tried again",
			Alone: true, Run: silentCrowd},
		{Group: "load", Name: "1,000 at once, then all removed", Want: "1,000 registered, each once; then none", Alone: true, Run: thousand},
		{Group: "load", Name: "1,000 there at start", Want: "1,000 registered, each once; then none", Alone: true, Run: func(s *Stage) string {
			s.links(1000)
			return thousand(s)
		}},
	}
}

const queueLimit = "/proc/sys/fs/inotify/max_queued_events"

// overflow starts the host with a small queue and puts links to one plugin into
// its directory, as fast as links can be made. The kernel keeps the limit that
// holds when an instance is made, so that it is small for a moment only.
func overflow(s *Stage, sockets int, noise func(context.Context)) string {
	before, err := os.ReadFile(queueLimit)
	check(err)
	check(os.WriteFile(queueLimit, []byte("64"), 0))
	h := s.New()
	err = h.Start(s.Ctx)
	check(os.WriteFile(queueLimit, before, 0))
	check(err)

	ctx, quiet := context.WithCancel(s.Ctx)
	var noisy sync.WaitGroup
	noisy.Go(func() { noise(ctx) })
	s.links(sockets)
	quiet()
	noisy.Wait()
	s.log.settle(s.Ctx, max(3*s.Quiet, 5*time.Second), patience)
	if len(s.Registered()) == sockets {
		return "none lost"
	}
	return "some lost"
}

// links makes so many sockets that one plugin serves.
func (s *Stage) links(n int) {
	s.link(s.ServeAt(s.Aside("real.sock"), Script{Name: "real"}).Path, n)
}

// link makes so many hard links to a socket.
func (s *Stage) link(socket string, n int) {
	for i := range n {
		check(os.Link(socket, s.Path("link-"+strconv.Itoa(i))))
	}
}

// silentCrowd has a plugin come while a host waits for silent ones.
func silentCrowd(s *Stage) string {
	const n, busy = 1000, 300 // busy is more than a host has slots for
	l, err := listen(s.Aside("silent.sock"))
	check(err)
	connected := newJournal()
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			connected.write(call{whom: "silent"})
		}
	})
	s.undo = append(s.undo, func() error { defer accepting.Wait(); return l.Close() })
	s.link(l.Addr().String(), n)
	s.Start()
	connected.await(s.Ctx, patience, func(calls []call) bool { return len(calls) >= busy })
	s.Serve("good.sock", Script{})
	s.Await("good.sock", "Notify(true)", 1)
	if tries := len(connected.read()); tries < busy || tries > n {
		return fmt.Sprintf("registered after %d connections to %d silent sockets", tries, n)
	}
	return "registered before any of them is tried again"
}

// busyFiles writes to eight files in the plugins directory.
func busyFiles(ctx context.Context, s *Stage) {
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			f, err := os.Create(s.Path("busy-" + strconv.Itoa(i)))
			if err != nil {
				return
			}
			defer func() { _ = f.Close() }()
			for ctx.Err() == nil {
				_, _ = f.WriteAt([]byte("x"), 0)
			}
		})
	}
	writers.Wait()
}

func thousand(s *Stage) string {
	const n = 1000
	s.Start()
	if _, err := os.Stat(s.Aside("real.sock")); err != nil {
		s.links(n)
	}
	s.log.awaitRegistered(s.Ctx, n, patience)
	s.log.settle(s.Ctx, s.Quiet, patience)
	calls := s.log.read()
	began := 0
	for _, c := range calls {
		if strings.HasPrefix(c.what, "Register") {
			began++
		}
	}
	first := len(s.Registered())
	for i := range n {
		check(os.Remove(s.Path("link-" + strconv.Itoa(i))))
	}
	s.log.awaitRegistered(s.Ctx, 0, patience)
	s.log.settle(s.Ctx, s.Quiet, patience)
	if left := len(s.Registered()); first != n || began != n || left != 0 {
		return fmt.Sprintf("%d registered in %d calls; then %d", first, began, left)
	}
	return "1,000 registered, each once; then none"
}
