package spdktest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// record is a request and its response on the wire of a real SPDK 26.09-pre. A
// null response: no response within 90 s.
type record struct {
	Scenario string
	Request  json.RawMessage
	Response json.RawMessage
}

func (r record) situation() string {
	s, _, _ := strings.Cut(r.Scenario, ": ")
	return s
}

func records(t *testing.T, file string) []record {
	t.Helper()
	f := testkit.Value(os.Open("testdata/" + file))(t)
	defer f.Close()
	var all []record
	for d := json.NewDecoder(f); ; {
		var r record
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
}

func took() map[string]time.Duration {
	return map[string]time.Duration{
		"target bdev/lvol: get a missing bdev with timeout (ms)":                                      500 * time.Millisecond,
		"initiator, target accepts TCP but never answers: attach (10 s)":                              10 * time.Second,
		"initiator, fresh process: target drops SYN, tcp_connect_timeout_ms 3000 (3 s)":               3 * time.Second,
		"initiator, fresh process: target never answers, fabrics_connect_timeout_us 2 s (still 10 s)": 10 * time.Second,
		"initiator reset/detach/re-attach: reset controller":                                          740 * time.Millisecond,
		"initiator reset/detach/re-attach: attach with loss timeout -1":                               155 * time.Millisecond,
	}
}

// replay is the environment of the record: a target, its initiator, and the process
// of the start-up records.
type replay struct {
	t         *testing.T
	clock     *clock
	network   *Network
	target    *Process
	initiator *Process
	startup   *Process
	conns     map[*Process]*client
	uuids     map[string]string // recorded to ours
}

func newReplay(t *testing.T) *replay {
	clock := newClock()
	n := NewNetwork(clock.Now)
	root := t.TempDir()
	tmp := filepath.Join(root, "var/tmp")
	testkit.Must(t, os.MkdirAll(filepath.Join(tmp, "fsroot"), 0o700))
	for name, size := range map[string]int64{"disk.img": 256 << 20, "disk2.img": 64 << 20} {
		testkit.Must(t, os.WriteFile(filepath.Join(tmp, name), nil, 0o600))
		testkit.Must(t, os.Truncate(filepath.Join(tmp, name), size))
	}
	timing := MeasuredTiming()
	timing.HotAdd = 3 * time.Second
	local := func(port string) Address { return Address{"TCP", "127.0.0.1", port} }
	n.SetReach(local("4990"), Silent)
	n.SetReach(local("4991"), Dropped)
	return &replay{
		t: t, clock: clock, network: n,
		target:    startProcess(t, n, Config{Root: root, Timing: timing}),
		initiator: startProcess(t, n, Config{Root: root, Timing: timing}),
		startup:   startProcess(t, n, Config{Root: root, WaitForRPC: true}),
		conns:     map[*Process]*client{}, uuids: map[string]string{},
	}
}

func (r *replay) process(situation string) *Process {
	switch {
	case strings.HasPrefix(situation, "start-up"):
		return r.startup
	case strings.HasPrefix(situation, "initiator"):
		return r.initiator
	}
	return r.target
}

func (r *replay) conn(p *Process) *client {
	if r.conns[p] == nil {
		r.conns[p] = dial(r.t, p)
	}
	return r.conns[p]
}

// do sends a request that is not in the record.
func (r *replay) do(p *Process, method string, params with) {
	r.t.Helper()
	r.conn(p).must(method, params, nil)
}

// offRecord has the steps before a record, by scenario.
func (r *replay) offRecord() map[string]func() {
	long := func() { r.clock.pass(5 * time.Second) }
	address := func(port string) with {
		return with{"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port}
	}
	return map[string]func(){
		"initiator attach: attach ok": func() {
			r.do(r.target, "nvmf_subsystem_add_host", with{"nqn": volNQN, "host": host1})
		},
		"initiator after target resize: bdev grew by itself": func() {
			const emul = "nqn.2026-01.io.test:emul"
			r.do(r.initiator, "nvmf_create_transport", with{"trtype": "TCP"})
			r.do(r.initiator, "nvmf_create_subsystem", with{"nqn": emul, "serial_number": "DPU1", "allow_any_host": true})
			r.do(r.initiator, "nvmf_subsystem_add_ns", with{"nqn": emul, "namespace": with{"bdev_name": "nv0n1"}})
			r.do(r.initiator, "nvmf_subsystem_add_listener", with{"nqn": emul, "listen_address": address("4421")})
		},
		"initiator while fenced, default timeouts: controller state failed":               long,
		"initiator after unfencing: enabled 6 s after add_host":                           long,
		"initiator while fenced, loss timeout -1: controller state reconnect_is_delayed":  long,
		"initiator after unfencing 2: enabled again":                                      long,
		"target namespace 3 removed: delete an exported lvol with an initiator connected": long,
		"initiator, target killed: controller state": func() {
			if !r.target.Write("lvs0/v1", 8) {
				r.t.Fatal("lvs0/v1 cannot be written")
			}
			r.target.Kill()
			delete(r.conns, r.target)
			long()
		},
		"target restarted: lvols before aio": func() {
			testkit.Must(r.t, r.target.Start())
		},
		"initiator, target back: controller state resetting": func() {
			r.do(r.target, "nvmf_create_transport", with{"trtype": "TCP"})
			r.do(r.target, "nvmf_create_subsystem", with{"nqn": volNQN, "serial_number": "SN1", "model_number": "MOD1", "max_namespaces": 8})
			r.do(r.target, "nvmf_subsystem_add_ns", with{"nqn": volNQN, "namespace": with{"nsid": 1, "bdev_name": "lvs0/v1"}})
			r.do(r.target, "nvmf_subsystem_add_host", with{"nqn": volNQN, "host": host1})
			r.do(r.target, "nvmf_subsystem_add_listener", with{"nqn": volNQN, "listen_address": address("4420")})
		},
		"initiator, target back: controller state enabled": long,
		"initiator, fresh process: bdev_nvme_set_options before any controller": func() {
			testkit.Must(r.t, r.initiator.Restart())
			delete(r.conns, r.initiator)
		},
		"target teardown: delete an lvstore that holds an lvol": func() {
			r.do(r.target, "bdev_malloc_create", with{"name": "m5", "num_blocks": 131072, "block_size": 512})
			r.do(r.target, "bdev_lvol_create_lvstore", with{"bdev_name": "m5", "lvs_name": "lvs1"})
			r.do(r.target, "bdev_lvol_create", with{"lvs_name": "lvs1", "lvol_name": "v1", "size_in_mib": 8})
		},
		"initiator, subsystem deleted: controller state": long,
	}
}

// The double answers every record as the real process did: the same code and
// text, or the same result, member by member. Only uuids are examples, and
// ours must correspond to theirs one to one.
func TestReplay(t *testing.T) {
	r := newReplay(t)
	if n := r.run("spdk-rpc.jsonl", r.offRecord(), nil, took()); n != 200 {
		t.Errorf("%d records, want 200", n)
	}
}

// Pending waits advance the time while a request of the record is answered. The
// next SYN of a connect whose request stayed unanswered does not: it would move
// the time by seconds if the next request takes longer than a millisecond.
func TestUnansweredConnectsDoNotMoveTheTime(t *testing.T) {
	r := newReplay(t)
	if err := r.conn(r.initiator).unanswered(json.RawMessage(`{"jsonrpc":"2.0","id":1,"method":"bdev_nvme_attach_controller","params":` +
		`{"name":"nvs","trtype":"TCP","adrfam":"IPv4","traddr":"127.0.0.1","trsvcid":"4991","subnqn":"` + volNQN + `"}}`)); err != nil {
		t.Fatal(err)
	}
	r.abandon(r.initiator, true)
	for range 3 {
		r.clock.pass(5 * time.Second)
		now := r.clock.Now()
		testkit.Eventually(t, "the connect waits for its next SYN", func() bool {
			r.network.mu.Lock()
			defer r.network.mu.Unlock()
			for end := range r.network.due {
				return end.After(now)
			}
			return false
		})
		if r.network.advance(r.clock); !r.clock.Now().Equal(now) {
			t.Fatalf("the time moved by %v", r.clock.Now().Sub(now))
		}
	}
}

// run replays a file and returns the number of its records.
func (r *replay) run(file string, before map[string]func(), excuse map[string]string, times map[string]time.Duration) int {
	t, all := r.t, records(r.t, file)
	known := map[string]bool{}
	for _, rec := range all {
		known[rec.Scenario] = true
		rec.Request = json.RawMessage(r.ours(string(rec.Request)))
		if prepare := before[rec.Scenario]; prepare != nil {
			prepare()
		}
		err := r.check(rec, times[rec.Scenario])
		reason, listed := excuse[rec.Scenario]
		switch {
		case err != nil && !listed:
			t.Errorf("%s: %v", rec.Scenario, err)
		case err == nil && listed:
			t.Errorf("%s: excused (%s), but answered as recorded", rec.Scenario, reason)
		}
	}
	for _, listed := range slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(excuse)), slices.Collect(maps.Keys(times))) {
		if !known[listed] {
			t.Errorf("no record is called %q", listed)
		}
	}
	return len(all)
}

// ours replaces recorded uuids, and NGUIDs, in a text. Unknown uuids of a request
// map to themselves.
func (r *replay) ours(text string) string {
	text = anyUUID.ReplaceAllStringFunc(text, func(id string) string {
		if r.uuids[id] == "" {
			r.uuids[id] = id
		}
		return r.uuids[id]
	})
	return anyNGUID.ReplaceAllStringFunc(text, func(digits string) string {
		id := r.ours(plainUUID(digits))
		return strings.ToUpper(strings.ReplaceAll(id, "-", ""))
	})
}

func (r *replay) check(rec record, want time.Duration) error {
	p := r.process(rec.situation())
	c := r.conn(p)
	if string(rec.Response) == "null" {
		err := c.unanswered(rec.Request)
		r.abandon(p, strings.Contains(string(rec.Request), `"id"`))
		return err
	}
	var got json.RawMessage
	var err error
	passed := r.network.during(r.clock, func() {
		if _, err = c.Write(append(slices.Clone(rec.Request), '\n')); err == nil {
			err = c.answers.Decode(&got)
		}
	})
	if err != nil {
		return err
	}
	if want > 0 && passed != want {
		return fmt.Errorf("took %v, want %v", passed, want)
	}
	var theirs, ours any
	if err := json.Unmarshal(rec.Response, &theirs); err != nil {
		return err
	}
	if err := json.Unmarshal(got, &ours); err != nil {
		return err
	}
	return r.same("", theirs, ours)
}

// abandon leaves a request without a recorded response: its connection is not
// used again.
func (r *replay) abandon(p *Process, waits bool) {
	delete(r.conns, p)
	if waits {
		testkit.Eventually(r.t, "the unanswered request waits", r.network.awaited)
	}
	r.network.mu.Lock()
	defer r.network.mu.Unlock()
	r.clock.never = maps.Clone(r.network.due)
}

// unanswered checks that another request is answered, and the first is not.
func (c *client) unanswered(request json.RawMessage) error {
	if _, err := c.Write(slices.Concat(request, []byte(`{"jsonrpc":"2.0","id":"after","method":"spdk_get_version"}`))); err != nil {
		return err
	}
	got, err := c.receive()
	if err != nil {
		return err
	}
	if string(got.ID) != `"after"` {
		return fmt.Errorf("answered with %+v, want no answer", got)
	}
	return nil
}

var (
	anyUUID  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	onlyUUID = regexp.MustCompile(`^` + anyUUID.String() + `$`)
	anyNGUID = regexp.MustCompile(`\b([0-9A-F]{8})([0-9A-F]{4})([0-9A-F]{4})([0-9A-F]{4})([0-9A-F]{12})\b`)
	nguid    = regexp.MustCompile(`^` + anyNGUID.String() + `$`)
)

// same compares an answer with the record, member by member.
func (r *replay) same(where string, theirs, ours any) error {
	switch theirs := theirs.(type) {
	case map[string]any:
		got, ok := ours.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %v, want %v", where, ours, theirs)
		}
		if a, b := slices.Sorted(maps.Keys(theirs)), slices.Sorted(maps.Keys(got)); !slices.Equal(a, b) {
			return fmt.Errorf("%s has the members %v, want %v (%v)", where, b, a, got)
		}
		for name := range theirs {
			if err := r.same(where+"."+name, theirs[name], got[name]); err != nil {
				return err
			}
		}
		return nil
	case []any:
		got, ok := ours.([]any)
		if !ok || len(got) != len(theirs) {
			return fmt.Errorf("%s is %v, want %v", where, ours, theirs)
		}
		for i := range theirs {
			if err := r.same(fmt.Sprintf("%s[%d]", where, i), theirs[i], got[i]); err != nil {
				return err
			}
		}
		return nil
	case string:
		got, ok := ours.(string)
		if ok && strings.HasSuffix(where, ".peer_address.trsvcid") && got != "" {
			return nil // any port
		}
		if ok {
			return r.sameText(where, theirs, got)
		}
	}
	if theirs != ours {
		return fmt.Errorf("%s is %v, want %v", where, ours, theirs)
	}
	return nil
}

func (r *replay) sameText(where, theirs, ours string) error {
	theirs, ours = plainUUID(theirs), plainUUID(ours)
	if !onlyUUID.MatchString(theirs) || !onlyUUID.MatchString(ours) {
		if theirs = r.ours(theirs); theirs != ours {
			return fmt.Errorf("%s is %q, want %q", where, ours, theirs)
		}
		return nil
	}
	stands, seen := r.uuids[theirs]
	if !seen {
		for other, taken := range r.uuids {
			if taken == ours {
				return fmt.Errorf("%s is %q, which already corresponds to %q, not to %q", where, ours, other, theirs)
			}
		}
		r.uuids[theirs], stands = ours, ours
	}
	if stands != ours {
		return fmt.Errorf("%s is %q, want %q, which corresponds to %q", where, ours, stands, theirs)
	}
	return nil
}

func plainUUID(s string) string {
	if m := nguid.FindStringSubmatch(s); m != nil {
		return strings.ToLower(strings.Join(m[1:], "-"))
	}
	return s
}
