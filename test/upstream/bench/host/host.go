// Package host runs the processes that the benchmark compares: a plugin host
// with an empty handler, controlled over standard input, one word a line, with
// responses in JSON on standard output.
package host

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
)

// Answer is a response. Times are in nanoseconds since 1970, comparable between
// processes.
type Answer struct {
	Error string `json:",omitempty"`

	CPU        time.Duration // of the process so far
	Allocated  uint64        // bytes so far
	Goroutines int
	Peak       int // most goroutines since the word peak

	Registered   map[string]int64 `json:",omitempty"` // last Register by endpoint
	DeRegistered int64            // last DeRegister
	Held         int              // registered and not deregistered
}

// Main runs the process. The words are start, stats, peak, times and forget.
func Main(make func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error)) {
	if err := run(make); err != nil {
		fmt.Fprintln(os.Stderr, "host:", err)
		os.Exit(1)
	}
}

func run(make func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error)) error {
	if len(os.Args) != 2 {
		return errors.New("the argument is the plugins directory")
	}
	h := &handler{times: map[string]int64{}, held: map[string]bool{}}
	host, err := make(os.Args[1], map[string]watch.Handler{registration.CSIPlugin: h})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var peak peak
	out := json.NewEncoder(os.Stdout)
	for words := bufio.NewScanner(os.Stdin); words.Scan(); {
		var a Answer
		switch words.Text() {
		case "start":
			if err := host.Start(ctx); err != nil {
				a.Error = err.Error()
			}
		case "peak":
			peak.follow(ctx)
		case "stats":
			a = stats()
			a.Peak, a.Held = peak.end(), h.count()
		case "times":
			a.Registered, a.DeRegistered = h.all()
		case "forget":
			h.forget()
		default:
			a.Error = "unknown word " + words.Text()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return host.Close(ctx)
}

func stats() Answer {
	var used unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &used) // cannot fail for this process
	var m runtime.MemStats
	runtime.ReadMemStats(&m) // exact, unlike runtime/metrics
	return Answer{
		CPU:       time.Duration(used.Utime.Nano() + used.Stime.Nano()),
		Allocated: m.TotalAlloc, Goroutines: runtime.NumGoroutine(),
	}
}

// peak samples the number of goroutines every 2 ms while it is enabled.
type peak struct {
	most  int
	stop  context.CancelFunc
	ended sync.WaitGroup
}

func (p *peak) follow(ctx context.Context) {
	p.end()
	p.most = runtime.NumGoroutine()
	ctx, p.stop = context.WithCancel(ctx)
	p.ended.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.most = max(p.most, runtime.NumGoroutine())
			case <-ctx.Done():
				return
			}
		}
	})
}

func (p *peak) end() int {
	if p.stop != nil {
		p.stop()
		p.ended.Wait()
		p.stop = nil
	}
	return p.most
}

// handler records the time of its calls.
type handler struct {
	mu    sync.Mutex
	times map[string]int64
	held  map[string]bool
	last  int64
}

func (*handler) Validate(context.Context, watch.Plugin) error { return nil }

func (h *handler) Register(_ context.Context, p watch.Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times[p.Endpoint], h.held[p.Endpoint] = time.Now().UnixNano(), true
	return nil
}

func (h *handler) DeRegister(_ context.Context, p watch.Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, p.Endpoint)
	h.last = time.Now().UnixNano()
	return nil
}

func (h *handler) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held)
}

func (h *handler) all() (map[string]int64, int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.times), h.last
}

func (h *handler) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times = map[string]int64{}
}
