// Package plugins tests the plugin host with more sockets than any node has,
// which come, go, hang and die among other files.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// instanceOf is the identity of a registration.
type instanceOf struct{ kind, name, endpoint, socket string }

// handler registers plugins, and sometimes fails. It checks that the host
// serializes the calls for a name.
type handler struct {
	testing.TB
	mu     sync.Mutex
	random *rand.Rand
	inside map[string]bool // names with a call in progress
	held   map[instanceOf]bool
	calls  int
}

func (h *handler) enter(p watch.Plugin) (lot int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inside[p.Name] {
		h.Errorf("two calls for %s at once", p.Name)
	}
	h.inside[p.Name] = true
	h.calls++
	return h.random.IntN(100)
}

func (h *handler) leave(p watch.Plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inside, p.Name)
}

func (h *handler) Validate(_ context.Context, p watch.Plugin) error {
	defer h.leave(p)
	if h.enter(p) < 3 {
		return errors.New("not valid today")
	}
	return nil
}

func (h *handler) Register(ctx context.Context, p watch.Plugin) error {
	defer h.leave(p)
	switch lot := h.enter(p); {
	case lot < 3:
		return errors.New("not today")
	case lot == 4:
		panic("not today")
	case lot == 5:
		select { // a slow call
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[instanceOf{p.Type, p.Name, p.Endpoint, p.Socket}] = true
	return nil
}

// DeRegister removes one instance: on a retry the next instance at its path can
// already exist.
func (h *handler) DeRegister(_ context.Context, p watch.Plugin) error {
	defer h.leave(p)
	if h.enter(p) < 3 {
		return errors.New("not today")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, instanceOf{p.Type, p.Name, p.Endpoint, p.Socket})
	return nil
}

// registered returns the handler's names, by socket.
func (h *handler) registered() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]string{}
	for i := range h.held {
		if all[i.socket] != "" {
			all[i.socket] += " and "
		}
		all[i.socket] += i.name
	}
	return all
}

// footprint is the resource usage of the idle process.
type footprint struct {
	goroutines, descriptors int
	heap                    uint64
}

func (f footprint) grown(first footprint) bool {
	return f.goroutines > first.goroutines+10 || f.descriptors > first.descriptors+10 || f.heap > first.heap+first.heap/2+4<<20
}

func measure(t testing.TB) footprint {
	t.Helper()
	runtime.GC()
	runtime.GC() // also memory freed by finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	open := testkit.Value(os.ReadDir("/proc/self/fd"))(t)
	return footprint{runtime.NumGoroutine(), len(open), m.HeapAlloc}
}

// sockets returns how many the test creates (SOAK_SOCKETS), and how many
// concurrently: each needs three descriptors, for the listener and both ends of
// a connection.
func sockets(t testing.TB) (all, most int) {
	t.Helper()
	all = 1000
	if text := os.Getenv("SOAK_SOCKETS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SOAK_SOCKETS is %q: want a number of sockets", text)
		}
		all = n
	}
	var limit unix.Rlimit
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	return all, int(min(limit.Cur/8, 1000))
}

// Sockets come, go, hang and die at random among other files. Whenever this
// pauses, exactly the live plugins are registered; at the end the host's
// resource usage has not grown.
func TestSoak(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	all, most := sockets(t)
	dir := testkit.Value(os.MkdirTemp("", "p"))(t) // short, for the 107 bytes of a socket's path
	t.Cleanup(func() { _ = os.RemoveAll(dir) })

	h := &handler{TB: t, random: rand.New(rand.NewPCG(seed, 1)), inside: map[string]bool{}, held: map[instanceOf]bool{}}
	host := testkit.Value(watch.New(watch.Options{
		Dir: filepath.Join(dir, "d"), Handlers: map[string]watch.Handler{registration.CSIPlugin: h},
		Timeouts: watch.Timeouts{Dial: time.Second, GetInfo: 500 * time.Millisecond, Notify: 500 * time.Millisecond},
		BackOff:  watch.BackOff{First: 20 * time.Millisecond, Most: time.Second},
		Grace:    200 * time.Millisecond, Rescan: 10 * time.Second,
	}))(t)
	testkit.Must(t, host.Start(t.Context()))
	t.Cleanup(func() {
		if err := host.Close(context.Background(), false); err != nil {
			t.Error(err)
		}
	})
	c := newCrowd(t, filepath.Join(dir, "d"), most, random)

	const rounds = 4
	var first footprint
	for round := range rounds {
		c.round(all * (round + 1) / rounds)
		atRest(t, host, h, c)
		living := len(c.live)
		c.clear()
		atRest(t, host, h, c)
		now := measure(t)
		for late := time.Now().Add(time.Minute); round > 0 && now.grown(first) && time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
			now = measure(t) // goroutines of broken connections can still be ending
		}
		t.Logf("%d sockets created, %d alive in the pause, %d calls of the handler so far; without sockets %+v", c.made, living, h.calls, now)
		if round == 0 {
			first = now
			continue
		}
		if now.grown(first) {
			t.Errorf("after %d sockets the process uses %+v, after the first round %+v", c.made, now, first)
		}
	}
}

// round runs until that many sockets have been created, and ends the flood.
func (c *crowd) round(until int) {
	ctx, stop := context.WithCancel(context.Background())
	var flooding sync.WaitGroup
	for who := range 2 {
		flooding.Go(func() { c.flood(ctx, who) })
	}
	for c.made < until {
		for range 1 + c.IntN(100) {
			c.step()
		}
		c.breathe()
	}
	stop()
	flooding.Wait()
}

// breathe lets most plugins receive their registration status: a plugin that
// dies earlier tests little.
func (c *crowd) breathe() {
	late := time.After(time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		untold := 0
		for _, p := range c.live {
			if !p.registered.Load() {
				untold++
			}
		}
		if untold <= len(c.live)/10 {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			return
		}
	}
}

// atRest waits until handler, host and directory agree.
func atRest(t *testing.T, host *watch.Host, h *handler, c *crowd) {
	t.Helper()
	err := testkit.Poll(3*time.Minute, nil, func() error {
		if differ := disagree(host, h, c); differ != "" {
			return errors.New(differ)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("three minutes after the last change: %v\n%s", err, explain(host, h, c))
	}
}

// explain returns the host's state of sockets that differ.
func explain(host *watch.Host, h *handler, c *crowd) (text string) {
	held := h.registered()
	for _, s := range host.List() {
		if p := c.live[s.Socket]; (p == nil) != (held[s.Socket] == "") {
			_, why := host.Why(s.Socket)
			text += fmt.Sprintf("%+v\n%s\n", s, why)
		}
	}
	return text
}

func disagree(host *watch.Host, h *handler, c *crowd) string {
	living, all := map[string]string{}, map[string]bool{}
	for path, p := range c.live {
		living[path] = p.name()
		if !p.registered.Load() {
			return p.name() + " was not notified of its registration"
		}
	}
	for _, path := range c.paths(c.dir) {
		all[path] = true
	}
	if d := cmp.Diff(living, h.registered()); d != "" {
		return "live plugins (-) and those of the handler (+): " + d
	}
	listed, registered := map[string]bool{}, map[string]string{}
	for _, s := range host.List() {
		listed[s.Socket] = true
		if s.Phase == watch.Registered {
			registered[s.Socket] = s.Name
		}
	}
	if !maps.Equal(all, listed) {
		return fmt.Sprintf("sockets in the directory (-) and in List (+): %s", cmp.Diff(all, listed))
	}
	if d := cmp.Diff(living, registered); d != "" {
		return "live plugins (-) and those registered in List (+): " + d
	}
	return ""
}
