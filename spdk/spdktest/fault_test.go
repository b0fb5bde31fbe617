package spdktest

import (
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestFaults(t *testing.T) {
	clock := newClock()
	n := NewNetwork(clock.Now)
	for name, f := range map[string]struct {
		fault    Fault
		made     bool // the bdev is there afterwards
		answered bool
		took     time.Duration
	}{
		"slow before":    {Fault{Wait: 90 * time.Second}, true, true, 90 * time.Second},
		"slow after":     {Fault{Hold: 90 * time.Second}, true, true, 90 * time.Second},
		"refused":        {Fault{Error: &Error{-12, "Cannot allocate memory"}}, false, true, 0},
		"dropped before": {Fault{Instead: Drop}, false, false, 0},
		"dropped after":  {Fault{Then: Drop}, true, false, 0},
		"kill before":    {Fault{Instead: Restart}, false, false, 0},
		"kill after":     {Fault{Then: Restart}, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, n, Config{})
			f.fault.Method, f.fault.Times = "bdev_malloc_create", 1
			p.Inject(f.fault)
			c := dial(t, p)
			var err error
			took := n.during(clock, func() {
				_, err = c.try("bdev_malloc_create", with{"name": "m0", "num_blocks": 8, "block_size": 512})
			})
			if answered := err == nil; answered != f.answered || isTimeout(err) {
				t.Fatalf("answered: %v (%v), want %v", answered, err, f.answered)
			}
			if took != f.took {
				t.Errorf("took %v, want %v", took, f.took)
			}
			after := patient(t, p)
			if made := after.ask("bdev_get_bdevs", with{"name": "m0"}).Error == nil; made != f.made {
				t.Errorf("made: %v, want %v", made, f.made)
			}
		})
	}
}

// patient connects to a process that might be restarting.
func patient(t *testing.T, p *Process) *client {
	t.Helper()
	var c *client
	testkit.EventuallyNil(t, "the process answers again", func() error {
		p.acting.Wait()
		c = dial(t, p)
		_, err := c.try("spdk_get_version", nil)
		return err
	})
	return c
}

func TestSilenceKeepsTheConnection(t *testing.T) {
	p := startProcess(t, NewNetwork(nil), Config{})
	p.Inject(Fault{Method: "bdev_get_bdevs", Then: Silence})
	c := dial(t, p)
	c.send(`{"id":1,"method":"bdev_get_bdevs"}`)
	if r := c.ask("rpc_get_methods", nil); r.Error != nil || len(r.Result) < 1000 {
		t.Errorf("answer %+v, want that of the second call", r)
	}
}

// A child that the test's process is forking keeps copies of all its files for a
// moment. The copy here stays open.
func TestKillEndsConnectionsThatAForkHasCopied(t *testing.T) {
	p := startProcess(t, NewNetwork(nil), Config{})
	c := dial(t, p)
	c.must("spdk_get_version", nil, nil)
	p.life.mu.Lock()
	for conn := range p.life.conns {
		testkit.Open(conn.(*net.UnixConn).File())(t)
	}
	p.life.mu.Unlock()
	testkit.Must(t, p.Restart())
	if _, err := c.Write([]byte(getVersionText)); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a request to a killed process: %v, want %v", err, syscall.EPIPE)
	}
}

func TestFaultsCountRequests(t *testing.T) {
	p := startProcess(t, NewNetwork(nil), Config{})
	c := dial(t, p)
	p.Inject(Fault{Method: "bdev_get_bdevs", Name: "x", Skip: 1, Times: 2, Error: &Error{-16, "busy"}})
	var codes []int
	for range 4 {
		c.refused(-19, "bdev_get_bdevs", with{"name": "y"})
		codes = append(codes, c.ask("bdev_get_bdevs", with{"name": "x"}).Error.Code)
	}
	if want := []int{-19, -16, -16, -19}; !slices.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
	p.Inject(Fault{Error: &Error{-16, "busy"}})
	c.refused(-16, "spdk_get_version", nil)
	p.Clear()
	c.must("spdk_get_version", nil, nil)
	if calls := p.Calls(); len(calls) != 10 || calls[9].Method != "spdk_get_version" || string(calls[0].Params) != `{"name":"y"}` {
		t.Errorf("calls %v", calls)
	}
	if n := p.Counts()["bdev_get_bdevs"]; n != 8 {
		t.Errorf("%d calls of bdev_get_bdevs, want 8", n)
	}
	if p.Forget(); len(p.Calls())+len(p.Counts()) != 0 {
		t.Error("calls that were forgotten")
	}
}

// Clients of all kinds, while the process and its target stop and start:
// detached objects are gone, and nothing hangs.
func TestManyClients(t *testing.T) {
	n := NewNetwork(nil)
	p := startProcess(t, n, Config{SNAP: true})
	for i := range 8 {
		s := volume(Namespace{ID: 1})
		s.NQN += strconv.Itoa(i)
		n.Put(s)
	}
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			name, nqn := "nv"+strconv.Itoa(i), volNQN+strconv.Itoa(i)
			for range 20 {
				c, err := net.Dial("unix", p.Socket())
				if err != nil {
					continue
				}
				one := &client{t, c, json.NewDecoder(c)}
				// The process can end during any of these calls.
				_, _ = one.try("bdev_nvme_attach_controller", attach(with{"name": name, "subnqn": nqn}))
				_, _ = one.try("nvme_subsystem_create", with{"nqn": nqn})
				_, _ = one.try("nvme_namespace_create", with{"nqn": nqn, "nsid": 1, "bdev_name": name + "n1"})
				_, _ = one.try("bdev_get_bdevs", nil)
				_, _ = one.try("bdev_nvme_detach_controller", with{"name": name})
				c.Close()
			}
		})
	}
	for range 5 {
		n.SetReach(at("4420"), Refused)
		n.SetReach(at("4420"), Open)
		if err := p.Restart(); err != nil {
			t.Error(err)
		}
	}
	clients.Wait()
	c := dial(t, p)
	for i := range 8 {
		_ = c.ask("bdev_nvme_detach_controller", with{"name": "nv" + strconv.Itoa(i)})
	}
	var left []any
	c.must("bdev_get_bdevs", nil, &left)
	if len(left) != 0 || len(p.bdevOf) != 0 {
		t.Errorf("%d bdevs are left, %d names", len(left), len(p.bdevOf))
	}
}

// A restart works while a child process still has the listener open before its
// exec.
func TestRestartWhileChildHoldsListener(t *testing.T) {
	p := testkit.Value(NewNetwork(nil).Start(Config{Socket: filepath.Join(t.TempDir(), "s")}))(t)
	inherited := testkit.Value(p.life.listener.(*net.UnixListener).File())(t)
	defer inherited.Close()
	if err := errors.Join(p.Restart(), p.Close()); err != nil {
		t.Error(err)
	}
}
