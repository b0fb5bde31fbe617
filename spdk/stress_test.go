package spdk

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/test/testkit"
)

// With interrupted calls, delayed responses and dropped connections, every call
// ends and no response reaches another call.
func TestResponsesReachTheirCalls(t *testing.T) {
	registry := prometheus.NewRegistry()
	client, p := serve(t, Config{Connections: 3, Metrics: registry}, func(p *peer) {
		var sending sync.Mutex
		var running sync.WaitGroup
		defer running.Wait()
		for {
			r, ok := p.next()
			if !ok {
				return
			}
			running.Go(func() {
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
				sending.Lock()
				defer sending.Unlock()
				p.send(`{"jsonrpc":"2.0","id":%d,"result":%s}`+"\n", r.ID, r.Params)
			})
		}
	})
	var running sync.WaitGroup
	var answered, interrupted atomic.Int64
	for caller := range 16 {
		running.Go(func() {
			for i := range 60 {
				patience := time.Duration(500+rand.IntN(20000)) * time.Microsecond
				if i%4 == 3 { // long enough to be answered under load
					patience = time.Minute
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				want := caller*1000 + i
				var got map[string]int
				err := client.Call(ctx, "echo", map[string]int{"n": want}, &got)
				cancel()
				switch {
				case err == nil && got["n"] == want:
					answered.Add(1)
				case err == nil:
					t.Errorf("caller %d got %v, want %d", caller, got, want)
				default:
					interrupted.Add(1)
				}
				if caller == 0 && i%20 == 19 {
					p.drop()
				}
			}
		})
	}
	running.Wait()
	if answered.Load() == 0 || interrupted.Load() == 0 {
		t.Errorf("%d calls answered and %d interrupted: nothing was tested", answered.Load(), interrupted.Load())
	}
	testkit.Eventually(t, "all late answers are in", func() bool {
		client.mu.Lock()
		defer client.mu.Unlock()
		return !slices.ContainsFunc(client.slots, func(s *slot) bool { return s.conn != nil && s.conn.abandonedCalls() != 0 })
	})
	client.mu.Lock()
	defer client.mu.Unlock()
	for _, s := range client.slots {
		if s.load != 0 {
			t.Errorf("a slot has %d calls when all are over", s.load)
		}
		if s.conn != nil && len(s.conn.pending) != 0 {
			t.Errorf("a connection keeps %d calls that are over", len(s.conn.pending))
		}
	}
}

// Restarts under load: every call ends, results are correct, and the client
// connects to the last process.
func TestRestartsUnderLoad(t *testing.T) {
	path := socketPath(t)
	client := open(t, Config{Socket: path, Timeout: time.Minute})
	stop, end := gate()
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	for caller := range 8 {
		running.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				var got map[string]int
				err := client.Call(t.Context(), "echo", map[string]int{"n": caller + i}, &got)
				if err == nil && got["n"] != caller+i {
					t.Errorf("got %v, want %d", got, caller+i)
				}
				if err != nil && errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a call hung: %v", err)
				}
			}
		})
	}
	for range 10 {
		p := start(t, path, echo)
		testkit.Eventually(t, "the process is used", func() bool { all, _ := p.connects(); return all > 0 })
		p.stop()
	}
	end()
	running.Wait()
	before := client.Generation()
	if before < 2 {
		t.Errorf("generation %d after ten processes", before)
	}
	start(t, path, echo)
	if err := client.Call(t.Context(), "echo", map[string]int{"n": 1}, nil); err != nil {
		t.Error(err)
	}
	if client.Generation() != before+1 {
		t.Errorf("generation %d, want %d", client.Generation(), before+1)
	}
}
