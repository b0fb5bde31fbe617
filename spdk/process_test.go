package spdk

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func release(version string, asked *atomic.Int64, methods string) func(*peer) {
	return func(p *peer) {
		for {
			r, ok := p.next()
			if !ok {
				return
			}
			asked.Add(1)
			switch r.Method {
			case "spdk_get_version":
				p.send(`{"id":%d,"result":%s}`, r.ID, version)
			case "rpc_get_methods":
				p.send(`{"id":%d,"result":%s}`, r.ID, methods)
			default:
				p.send(`{"id":%d,"error":{"code":-32601,"message":"Method not found"}}`, r.ID)
			}
		}
	}
}

const (
	upstream = `{"version":"SPDK v26.09-pre","fields":{"major":26,"minor":9,"patch":0,"suffix":"-pre"}}`
	fork     = `{"version":"SPDK v24.01.1"}`
)

func TestRestart(t *testing.T) {
	var asked atomic.Int64
	registry := prometheus.NewRegistry()
	client, first := serve(t, Config{Metrics: registry}, release(upstream, &asked, `["b","a"]`))
	if n := client.Generation(); n != 0 {
		t.Errorf("generation %d before the first connection", n)
	}
	for range 3 {
		v, err := client.Version(t.Context())
		if err != nil || v.Major != 26 || v.Minor != 9 || v.Suffix != "-pre" || v.String() != "SPDK v26.09-pre" {
			t.Fatalf("%+v, %v", v, err)
		}
		m, err := client.Methods(t.Context())
		if err != nil || !m.Has("a", "b") || m.Has("a", "c") || !cmp.Equal(m.Names(), []string{"a", "b"}) {
			t.Fatalf("%v, %v", m.Names(), err)
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d requests, want 2: the answers are cached", n)
	}
	before, err := client.Process(t.Context())
	if err != nil || before.Generation != 1 {
		t.Errorf("%+v, %v", before, err)
	}
	other := open(t, Config{Socket: client.Socket()})
	if same, err := other.Process(t.Context()); err != nil || same.Identity != before.Identity {
		t.Errorf("another client sees %+v, %v, not %+v", same, err, before)
	}

	first.stop()
	testkit.Eventually(t, "the process is gone", func() bool {
		_, err := client.Process(t.Context())
		return err != nil && errs.KindOf(err) == errs.Unavailable
	})
	start(t, client.Socket(), release(fork, &asked, `[]`))
	after, err := client.Process(t.Context())
	if err != nil || after.Generation != 2 || after.Identity == before.Identity {
		t.Errorf("after a restart: %+v, %v", after, err)
	}
	if v, err := client.Version(t.Context()); err != nil || v.Major != 24 || v.Minor != 1 || v.Patch != 1 {
		t.Errorf("the version of the previous process is cached: %+v, %v", v, err)
	}
	if m, err := client.Methods(t.Context()); err != nil || m.Has("a") {
		t.Errorf("the methods of the previous process are cached: %v, %v", m.Names(), err)
	}
	if client.Generation() != 2 || testkit.Metric(t, registry, "cleat_spdk_restarts_total") != 1 {
		t.Errorf("generation %d, %v restarts", client.Generation(), testkit.Metric(t, registry, "cleat_spdk_restarts_total"))
	}
}

// Answers received over a lost connection are requested again, even from the
// same process.
func TestLostConnectionDropsCachedAnswers(t *testing.T) {
	var asked atomic.Int64
	client, p := serve(t, Config{}, release(upstream, &asked, `[]`))
	for range 2 {
		testkit.Value(client.Version(t.Context()))(t)
		p.drop()
		testkit.Eventually(t, "the loss is noticed", func() bool {
			client.mu.Lock()
			defer client.mu.Unlock()
			return client.facts.version == nil
		})
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	if n := client.Generation(); n != 1 {
		t.Errorf("generation %d: it is the same process", n)
	}
}

func TestAnswerOfReplacedProcessIsNotCached(t *testing.T) {
	client := open(t, Config{Socket: "/nowhere"})
	client.mu.Lock()
	client.recordProcess("one")
	epoch := client.facts.epoch
	client.recordProcess("two")
	client.mu.Unlock()
	client.learn(epoch, func(f *facts) { f.version = &Version{Major: 1} })
	if _, v, _ := client.known(); v != nil {
		t.Errorf("kept %+v", v)
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string]Version{
		upstream: {"SPDK v26.09-pre", 26, 9, 0, "-pre"},
		`{"version":"SPDK v24.01.1-pre git sha1 0123abc"}`:                       {"SPDK v24.01.1-pre git sha1 0123abc", 24, 1, 1, "-pre"},
		`{"version":"SPDK v25.05","fields":null}`:                                {"SPDK v25.05", 25, 5, 0, ""},
		`{"version":"x","fields":{"major":24,"minor":1,"patch":2,"commit":"c"}}`: {"x", 24, 1, 2, ""},
	} {
		var v Version
		if err := json.Unmarshal([]byte(text), &v); err != nil || v != want {
			t.Errorf("%s: %+v, %v", text, v, err)
		}
	}
	for _, text := range []string{`{}`, `{"version":"SPDK"}`, `{"version":7}`, `[]`} {
		var v Version
		if err := json.Unmarshal([]byte(text), &v); err == nil {
			t.Errorf("%s: %+v", text, v)
		}
	}
}

// SNAP starts late, resets the first connections, as if its initialisation
// failed, and then initialises slowly.
func TestWaitReady(t *testing.T) {
	path := socketPath(t)
	registry := prometheus.NewRegistry()
	client := open(t, Config{Socket: path, Timeout: 50 * time.Millisecond, Metrics: registry})
	ready := make(chan error, 1)
	go func() { ready <- client.WaitReady(t.Context()) }()
	testkit.Eventually(t, "a call was made", func() bool { return testkit.Metric(t, registry, "cleat_spdk_calls_total") > 0 })

	failing := start(t, path, func(p *peer) { p.next() })
	testkit.Eventually(t, "a connection is lost", func() bool { all, _ := failing.connects(); return all > 0 })
	failing.stop()

	initialised, open := gate()
	defer open()
	var waits atomic.Int64
	start(t, path, func(p *peer) {
		for {
			r, ok := p.next()
			if !ok {
				return
			}
			if r.Method == "framework_wait_init" {
				waits.Add(1)
				<-initialised
				p.send(`{"id":%d,"result":true}`, r.ID)
				continue
			}
			p.send(`{"id":%d,"result":%s}`, r.ID, upstream)
		}
	})
	testkit.Eventually(t, "the request is repeated after a timeout", func() bool { return waits.Load() > 1 })
	select {
	case err := <-ready:
		t.Fatalf("ready before the initialisation was done: %v", err)
	default:
	}
	open()
	if err := <-ready; err != nil {
		t.Error(err)
	}
}

// The methods are read again after the initialisation.
func TestWaitReadyReadsMethodsAgain(t *testing.T) {
	var asked atomic.Int64
	client, _ := serve(t, Config{}, release(fork, &asked, `["framework_start_init"]`))
	testkit.Value(client.Methods(t.Context()))(t)
	testkit.Must(t, client.WaitReady(t.Context()))
	before := asked.Load()
	if _, err := client.Methods(t.Context()); err != nil || asked.Load() != before+1 {
		t.Errorf("%d more requests, %v", asked.Load()-before, err)
	}
}

func TestWaitReadyWithoutWaitInit(t *testing.T) {
	var asked atomic.Int64
	client, _ := serve(t, Config{}, release(fork, &asked, `[]`))
	if err := client.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNeverReady(t *testing.T) {
	path := socketPath(t)
	client := open(t, Config{Socket: path})
	var err error
	for patience := 60 * time.Millisecond; patience < time.Minute; patience *= 2 { // until the timeout is long enough for an attempt
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err = client.WaitReady(ctx)
		if cancel(); err == nil || strings.Contains(err.Error(), "no such file") {
			break
		}
	}
	testkit.WantError(t, "the error", err, errs.Unavailable, "is not ready", path, "no such file")

	start(t, path, answers(`{"id":%d,"error":{"code":-1,"message":"Operation not permitted"}}`))
	err = client.WaitReady(t.Context())
	if !errors.Is(err, Denied) {
		t.Errorf("a process that refuses: %v", err)
	}
}

// The identity is that of the process that accepts the connection.
func TestReplacedSocketIsAnotherProcess(t *testing.T) {
	path := socketPath(t)
	first := start(t, path, echo)
	_, one, err := dial(t.Context(), path)
	testkit.Must(t, err)
	testkit.Must(t, os.Rename(path, path+".old"))
	start(t, path, echo)
	raw, two, err := dial(t.Context(), path)
	if err != nil || one == two {
		t.Errorf("%q and %q, %v", one, two, err)
	}
	_ = raw.Close()
	first.stop()
	if !strings.Contains(two, ".") {
		t.Errorf("%q", two)
	}
}
