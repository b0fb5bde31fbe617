package spdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestResponsesOutOfOrder(t *testing.T) {
	const calls = 50
	client, p := serve(t, Config{Connections: 1}, func(p *peer) {
		var all []request
		for range calls {
			r, ok := p.next()
			if !ok {
				return
			}
			all = append(all, r)
		}
		for i := len(all) - 1; i >= 0; i-- {
			p.send(`{"jsonrpc":"2.0","id":%d,"result":%s}`, all[i].ID, all[i].Params)
		}
		p.next()
	})
	var running sync.WaitGroup
	for i := range calls {
		running.Go(func() {
			var got map[string]int
			if err := client.Call(t.Context(), "echo", map[string]int{"n": i}, &got); err != nil || got["n"] != i {
				t.Errorf("call %d got %v, %v", i, got, err)
			}
		})
	}
	running.Wait()
	if all, _ := p.connects(); all != 1 {
		t.Errorf("%d connections, want 1", all)
	}
}

// Responses are JSON values with any white space between them, split at any
// position.
func TestFraming(t *testing.T) {
	for name, write := range map[string]func(p *peer, text string){
		"byte by byte": func(p *peer, text string) {
			for i := range len(text) {
				p.send("%s", text[i:i+1])
			}
		},
		"without a newline":    func(p *peer, text string) { p.send("%s", text) },
		"white space around":   func(p *peer, text string) { p.send("\n\r\n \t%s \n\n", text) },
		"pretty":               func(p *peer, text string) { p.send("%s", strings.ReplaceAll(text, ",", " ,\n  ")) },
		"an unknown id before": func(p *peer, text string) { p.send(`{"jsonrpc":"2.0","id":4711,"result":[1]}%s`, text) },
		"again the same":       func(p *peer, text string) { p.send("%s%s", text, text) },
		"unknown members":      func(p *peer, text string) { p.send(`{"extra":{"id":9},%s`, text[1:]) },
		"error null":           func(p *peer, text string) { p.send(`{"error":null,%s`, text[1:]) },
		"the id is a string":   func(p *peer, text string) { p.send("%s", quoteID(text)) },
		"an envelope of SNAP":  func(p *peer, text string) { p.send("%s", wrap(text)) },
	} {
		t.Run(name, func(t *testing.T) {
			client, p := serve(t, Config{Connections: 1}, func(p *peer) {
				for {
					r, ok := p.next()
					if !ok {
						return
					}
					write(p, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"n":%s}}`, r.ID, r.Params[len(`{"n":`):len(r.Params)-1]))
				}
			})
			for i := range 3 {
				var got map[string]int
				if err := client.Call(t.Context(), "echo", map[string]int{"n": i}, &got); err != nil || got["n"] != i {
					t.Fatalf("got %v, %v", got, err)
				}
			}
			if all, _ := p.connects(); all != 1 {
				t.Errorf("%d connections, want 1", all)
			}
		})
	}
}

func quoteID(text string) string {
	before, after, _ := strings.Cut(text, `"id":`)
	id, rest, _ := strings.Cut(after, ",")
	return before + `"id":"` + id + `",` + rest
}

func wrap(text string) string {
	before, result, _ := strings.Cut(text, `"result":`)
	return before + `"result":{"status":"SNAP_SUCCESS","message":"","result":` + result + `}`
}

func TestLargeResponses(t *testing.T) {
	const bound = 8 << 20
	endless := make(chan struct{}, 1)
	client, p := serve(t, Config{Connections: 1, MaxAnswer: bound}, func(p *peer) {
		for {
			r, ok := p.next()
			if !ok {
				return
			}
			var size struct{ Size int }
			if err := json.Unmarshal(r.Params, &size); err != nil {
				t.Error(err)
			}
			p.send(`{"jsonrpc":"2.0","id":%d,"result":"`, r.ID)
			block := strings.Repeat("x", 64<<10)
			for sent := 0; size.Size < 0 || sent < size.Size; sent += len(block) {
				if _, err := p.Write([]byte(block)); err != nil {
					endless <- struct{}{}
					return
				}
			}
			p.send(`"}`)
		}
	})
	var got string
	if err := client.Call(t.Context(), "big", map[string]int{"size": bound - 64<<10}, &got); err != nil || len(got) != bound-64<<10 {
		t.Fatalf("an answer below the bound: %d bytes, %v", len(got), err)
	}
	err := client.Call(t.Context(), "big", map[string]int{"size": -1}, &got)
	testkit.WantError(t, "the error", err, errs.Unavailable, "8388608 bytes")
	if !errors.Is(err, ErrTooLarge) || !errors.Is(err, Unanswered) {
		t.Errorf("%v is not ErrTooLarge and Unanswered", err)
	}
	<-endless // the connection was closed
	if err := client.Call(t.Context(), "big", map[string]int{"size": 0}, &got); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if all, _ := p.connects(); all != 2 {
		t.Errorf("%d connections, want 2", all)
	}
}

// A request that might have been executed is never retried.
func TestDroppedBeforeResponseIsNotRetried(t *testing.T) {
	asked := make(chan string, 10)
	client, _ := serve(t, Config{}, func(p *peer) {
		if r, ok := p.next(); ok {
			asked <- r.Method
			p.send(`{"jsonrpc":"2.0","id":%d,"resu`, r.ID) // and then it exits
		}
	})
	err := client.Call(t.Context(), "bdev_nvme_attach_controller", nil, nil)
	testkit.WantError(t, "the error", err, errs.Unavailable, "bdev_nvme_attach_controller", "did not respond", client.Socket())
	if !errors.Is(err, Unanswered) {
		t.Errorf("%v is not Unanswered", err)
	}
	if len(asked) != 1 {
		t.Errorf("%d requests, want 1", len(asked))
	}
}

// A connection lost between two calls causes no error.
func TestDroppedBetweenCallsReconnects(t *testing.T) {
	client, p := serve(t, Config{Connections: 1}, echo)
	for i := range 50 {
		var got map[string]int
		if err := client.Call(t.Context(), "echo", map[string]int{"n": i}, &got); err != nil || got["n"] != i {
			t.Fatalf("call %d: %v, %v", i, got, err)
		}
		p.drop()
	}
	if n := client.Generation(); n != 1 {
		t.Errorf("generation %d: the process was the same all the time", n)
	}
}

func TestNoSocket(t *testing.T) {
	path := socketPath(t)
	client := open(t, Config{Socket: path})
	err := client.Call(t.Context(), "x", nil, nil)
	testkit.WantError(t, "the error", err, errs.Unavailable, path, "no such file")
	if errors.Is(err, Unanswered) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v: nothing was sent", err)
	}
	testkit.Must(t, os.WriteFile(path, nil, 0o600))
	testkit.WantError(t, "Call", client.Call(t.Context(), "x", nil, nil), errs.Unavailable, "is not a socket")
}

// A socket path that is too long for connect(2) can be dialled.
func TestLongPath(t *testing.T) {
	short := socketPath(t)
	start(t, short, answers(`{"id":%d,"result":true}`))
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	testkit.Must(t, os.Symlink(filepath.Dir(short), dir))
	client := open(t, Config{Socket: filepath.Join(dir, "spdk.sock")})
	if err := client.Call(t.Context(), "x", nil, nil); err != nil {
		t.Error(err)
	}
}

// A late response is dropped, and the connection stays usable.
func TestLateResponseIsDropped(t *testing.T) {
	registry := prometheus.NewRegistry()
	release, open := gate()
	defer open()
	asked := make(chan struct{})
	client, p := serve(t, Config{Connections: 1, Metrics: registry}, func(p *peer) {
		slow, ok := p.next()
		if !ok {
			return
		}
		close(asked)
		<-release
		p.send(`{"jsonrpc":"2.0","id":%d,"result":"late"}`, slow.ID)
		echo(p)
	})
	ctx, late := context.WithCancelCause(t.Context())
	go func() { <-asked; late(context.DeadlineExceeded) }()
	err := client.Call(ctx, "slow", nil, nil)
	testkit.WantError(t, "the error", err, errs.Unavailable, "slow", "did not respond")
	if !errors.Is(err, Unanswered) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not Unanswered by a deadline", err)
	}
	open()
	var got map[string]int
	if err := client.Call(t.Context(), "echo", map[string]int{"n": 7}, &got); err != nil || got["n"] != 7 {
		t.Errorf("the next call: %v, %v", got, err)
	}
	if all, _ := p.connects(); all != 1 {
		t.Errorf("%d connections, want 1", all)
	}
	if n := testkit.Metric(t, registry, "cleat_spdk_late_answers_total"); n != 1 {
		t.Errorf("%v late answers counted, want 1", n)
	}
}

func TestCallWithoutDeadlineTimesOut(t *testing.T) {
	var err error
	for timeout := 20 * time.Millisecond; timeout < time.Minute && !errors.Is(err, Unanswered); timeout *= 4 { // until a request is sent
		client, _ := serve(t, Config{Timeout: timeout}, func(p *peer) { p.next(); p.next() })
		if err = client.Call(context.WithoutCancel(t.Context()), "silent", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	if !errors.Is(err, Unanswered) {
		t.Errorf("got %v", err)
	}
}

func TestCancel(t *testing.T) {
	got := make(chan struct{})
	client, _ := serve(t, Config{}, func(p *peer) { p.next(); close(got); p.next() })
	why := errors.New("cancelled by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-got; cancel(why) }()
	if err := client.Call(ctx, "silent", nil, nil); !errors.Is(err, why) || !errors.Is(err, Unanswered) {
		t.Errorf("got %v", err)
	}
	if err := client.Call(ctx, "silent", nil, nil); !errors.Is(err, why) || errors.Is(err, Unanswered) {
		t.Errorf("a call that was over before it began: %v", err)
	}
}

// Pending calls do not delay others: neither on their connection nor, with a
// process that takes one request of a connection at a time, on another.
func TestSlowCallsDoNotBlockOthers(t *testing.T) {
	release, open := gate()
	defer open()
	client, p := serve(t, Config{Connections: 3}, func(p *peer) {
		for {
			r, ok := p.next()
			if !ok {
				return
			}
			if r.Method == "slow" {
				<-release
			}
			p.send(`{"id":%d,"result":true}`, r.ID)
		}
	})
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			if err := client.Call(t.Context(), "slow", nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	testkit.Eventually(t, "both are in flight", func() bool { _, most := p.connects(); return most == 2 })
	for range 20 {
		testkit.Must(t, client.Call(t.Context(), "fast", nil, nil))
	}
	open()
	running.Wait()
	for range 20 {
		testkit.Must(t, client.Call(t.Context(), "fast", nil, nil))
	}
	if all, most := p.connects(); all > 3 || most > 3 {
		t.Errorf("%d connections, %d at once; 3 are allowed", all, most)
	}
}

// A connection with an abandoned call is used last: a process that handles one
// request of a connection at a time might be stuck on it.
func TestConnectionWithAbandonedCallIsAvoided(t *testing.T) {
	release, open := gate()
	defer open()
	asked := make(chan struct{})
	client, p := serve(t, Config{Connections: 2}, func(p *peer) {
		for {
			r, ok := p.next()
			if !ok {
				return
			}
			if r.Method == "stuck" {
				close(asked)
				<-release
			}
			p.send(`{"id":%d,"result":true}`, r.ID)
		}
	})
	ctx, abandon := context.WithCancel(t.Context())
	go func() { <-asked; abandon() }()
	if err := client.Call(ctx, "stuck", nil, nil); !errors.Is(err, Unanswered) {
		t.Fatal(err)
	}
	for range 10 {
		testkit.Must(t, client.Call(t.Context(), "heartbeat", nil, nil))
	}
	if all, _ := p.connects(); all != 2 {
		t.Errorf("%d connections, want 2", all)
	}
}

func TestOneCallerUsesOneConnection(t *testing.T) {
	client, p := serve(t, Config{}, echo)
	for range 20 {
		testkit.Must(t, client.Call(t.Context(), "echo", map[string]int{}, nil))
	}
	if all, _ := p.connects(); all != 1 {
		t.Errorf("%d connections, want 1", all)
	}
}

// An invalid response closes the connection and fails its calls.
func TestInvalidResponses(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		words []string
	}{
		"no JSON":            {"HTTP/1.1 400 Bad Request\r\n", []string{"invalid JSON-RPC response"}},
		"a batch":            {`[{"id":1,"result":true}]`, []string{"invalid JSON-RPC response"}},
		"a number":           {"1 ", []string{"invalid JSON-RPC response"}},
		"broken off":         {`{"id":1,"result":[`, []string{"lost", "EOF"}},
		"nothing":            {"", []string{"lost", "EOF"}},
		"no id":              {`{"jsonrpc":"2.0","result":true}`, []string{"without a request id"}},
		"the id is null":     {`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid request"}}`, []string{"without a request id", "-32600"}},
		"the id is negative": {`{"jsonrpc":"2.0","id":-1,"result":true}`, []string{"without a request id"}},
		"a broken number":    {`{"jsonrpc":"2.0","id":1.5.2,"result":true}`, []string{"invalid JSON-RPC response"}},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, Config{Connections: 1}, func(p *peer) {
				if _, ok := p.next(); ok {
					p.send("%s", c.text)
				}
			})
			err := client.Call(t.Context(), "x", nil, nil)
			testkit.WantError(t, "the error", err, errs.Unavailable, c.words...)
			if !errors.Is(err, Unanswered) || errors.Is(err, BadParams) {
				t.Errorf("%v: want Unanswered, without an error response", err)
			}
		})
	}
}

func TestClose(t *testing.T) {
	asked := make(chan struct{}, 10)
	client, _ := serve(t, Config{}, func(p *peer) {
		for {
			if _, ok := p.next(); !ok {
				return
			}
			asked <- struct{}{}
		}
	})
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			testkit.WantError(t, "Call", client.Call(t.Context(), "silent", nil, nil), errs.Unavailable, "the client is closed")
		})
	}
	for range 8 {
		<-asked
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	running.Wait()
	testkit.WantError(t, "Call", client.Call(t.Context(), "x", nil, nil), errs.Unavailable, "the client is closed")
	testkit.WantError(t, "WaitReady", client.WaitReady(t.Context()), errs.Unavailable, "the client is closed")
	if err := client.Close(); err != nil {
		t.Errorf("the second close: %v", err)
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"no socket":             {},
		"a relative one":        {Socket: "spdk.sock"},
		"negative timeout":      {Socket: "/s", Timeout: -1},
		"negative answers":      {Socket: "/s", MaxAnswer: -1},
		"too many connections":  {Socket: "/s", Connections: 33},
		"fewer than none of it": {Socket: "/s", Connections: -1},
	} {
		if _, err := Open(c); errs.KindOf(err) != errs.Invalid || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	registry := prometheus.NewRegistry()
	open(t, Config{Socket: "/s", Metrics: registry})
	if _, err := Open(Config{Socket: "/s", Metrics: registry}); err == nil {
		t.Error("the second with the same figures is not refused")
	}
}

func TestUnencodableRequests(t *testing.T) {
	client := open(t, Config{Socket: socketPath(t)})
	for name, c := range map[string]struct {
		method string
		params any
	}{
		"no method":            {"", nil},
		"a method with quotes": {`x","id":7,"method":"y`, nil},
		"a list":               {"x", []int{1}},
		"a string":             {"x", "y"},
		"a channel":            {"x", map[string]any{"c": make(chan int)}},
		"too large":            {"x", map[string]string{"x": strings.Repeat("x", maxRequest)}},
	} {
		if err := client.Call(t.Context(), c.method, c.params, nil); errs.KindOf(err) != errs.Invalid || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
