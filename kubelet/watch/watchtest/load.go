package watchtest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// More events than the inotify queue holds.
func load() []Case {
	const whyLost = "a rescan follows lost inotify events; the kubelet never finds those sockets"
	return []Case{
		{Group: "load", Name: "queue for 64 events, 4,000 sockets at once", Want: "none lost", Kubelet: "some lost", Why: whyLost,
			Alone: true, Soak: true, Run: func(s *Stage) string {
				return overflow(s, 4000, func(*Stage) (fill, stop func()) { return func() {}, func() {} })
			}},
		{Group: "load", Name: "queue for 64 events, 200 sockets beside eight busy files", Want: "none lost", Kubelet: "some lost", Why: whyLost,
			Alone: true, Run: func(s *Stage) string {
				return overflow(s, 200, busyFiles)
			}},
		{Group: "load", Name: "1,000 sockets that accept and send nothing, and a good plugin", Want: "registered before any of them is retried",
			Alone: true, Run: silentCrowd},
		{Group: "load", Name: "1,000 at once, then all removed", Want: "1,000 registered, each once; then none", Alone: true, Run: thousand},
		{Group: "load", Name: "1,000 there at start", Want: "1,000 registered, each once; then none", Alone: true, Run: func(s *Stage) string {
			s.links(1000)
			return thousand(s)
		}},
	}
}

const (
	queueLimit = "/proc/sys/fs/inotify/max_queued_events"
	// overflowTimeout ends a failed case only: the race detector needs two
	// minutes for 4,000 sockets.
	overflowTimeout = 10 * time.Minute
)

// overflow starts the host with a short inotify queue and quickly creates links
// to a plugin, each after noise has filled the queue. The kernel applies the
// limit at inotify_init, so it is lowered only briefly.
func overflow(s *Stage, sockets int, noise func(*Stage) (fill, stop func())) string {
	before, err := os.ReadFile(queueLimit)
	check(err)
	check(os.WriteFile(queueLimit, []byte("64"), 0))
	h := s.New()
	err = h.Start(s.Ctx)
	check(os.WriteFile(queueLimit, before, 0))
	check(err)

	fill, stop := noise(s)
	socket := s.ServeAt(s.Aside("real.sock"), Script{Name: "real"}).Path
	for i := range sockets {
		fill()
		s.link(socket, i)
	}
	stop()
	// Until all are registered, or nothing happens any more.
	s.log.waitIdle(s.Ctx, max(3*s.Quiet, 5*time.Second), overflowTimeout, func() bool { return len(s.log.held) == sockets })
	if len(s.Registered()) == sockets {
		return "none lost"
	}
	return "some lost"
}

func (s *Stage) links(n int) {
	socket := s.ServeAt(s.Aside("real.sock"), Script{Name: "real"}).Path
	for i := range n {
		s.link(socket, i)
	}
}

func (s *Stage) link(socket string, i int) {
	check(os.Link(socket, s.Path("link-"+strconv.Itoa(i))))
}

// A host that waits for silent plugins registers another.
func silentCrowd(s *Stage) string {
	const n, busy = 1000, 300 // busy exceeds the host's limit
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
			connected.write(call{plugin: "silent"})
		}
	})
	s.cleanups = append(s.cleanups, func() error { defer accepting.Wait(); return l.Close() })
	for i := range n {
		s.link(l.Addr().String(), i)
	}
	s.Start()
	connected.await(s.Ctx, waitTimeout, func(calls []call) bool { return len(calls) >= busy })
	s.Serve("good.sock", Script{})
	s.Await("good.sock", "Notify(true)", 1)
	if tries := len(connected.read()); tries < busy || tries > n {
		return fmt.Sprintf("registered after %d connections to %d silent sockets", tries, n)
	}
	return "registered before any of them is retried"
}

// busyFiles writes to eight files until stop; fill waits for many more writes.
func busyFiles(s *Stage) (fill, stop func()) {
	const enough = 300 // the queue has 64
	ctx, cancel := context.WithCancel(s.Ctx)
	var writers sync.WaitGroup
	var writes atomic.Int64
	for i := range 8 {
		writers.Go(func() {
			f, err := os.Create(s.Path("busy-" + strconv.Itoa(i)))
			if err != nil {
				return
			}
			defer func() { _ = f.Close() }()
			for ctx.Err() == nil {
				_, _ = f.WriteAt([]byte("x"), 0)
				writes.Add(1)
			}
		})
	}
	fill = func() {
		for end := writes.Load() + enough; writes.Load() < end && ctx.Err() == nil; {
			runtime.Gosched()
		}
	}
	return fill, func() {
		cancel()
		writers.Wait()
	}
}

func thousand(s *Stage) string {
	const n = 1000
	s.Start()
	if _, err := os.Stat(s.Aside("real.sock")); err != nil {
		s.links(n)
	}
	s.log.awaitRegistered(s.Ctx, n, waitTimeout)
	s.log.waitIdle(s.Ctx, s.Quiet, waitTimeout, never)
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
	s.log.awaitRegistered(s.Ctx, 0, waitTimeout)
	s.log.waitIdle(s.Ctx, s.Quiet, waitTimeout, never)
	if left := len(s.Registered()); first != n || began != n || left != 0 {
		return fmt.Sprintf("%d registered in %d calls; then %d", first, began, left)
	}
	return "1,000 registered, each once; then none"
}
