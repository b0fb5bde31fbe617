package spdktest

import (
	"testing"
	"time"
)

const (
	volNQN = "nqn.2026-01.io.test:vol1"
	host1  = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
)

func at(port string) Address { return Address{"TCP", "192.0.2.1", port} }

func volume(spaces ...Namespace) Subsystem {
	return Subsystem{NQN: volNQN, Addresses: []Address{at("4420")}, Hosts: []string{host1}, Namespaces: spaces}
}

func attach(more with) with {
	p := with{"name": "nv0", "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": volNQN, "hostnqn": host1}
	for k, v := range more {
		p[k] = v
	}
	return p
}

type shownController struct {
	Name   string
	Ctrlrs []struct {
		State  string
		Cntlid int
	}
}

func (c *client) state(name string) string {
	c.t.Helper()
	var shown []shownController
	c.must("bdev_nvme_get_controllers", with{"name": name}, &shown)
	return shown[0].Ctrlrs[0].State
}

// TestAttachesCompleteOutOfOrder drops the packets to a target while two attaches
// begin: the first waits for a SYN at 63 s, the second for one at 56 s.
func TestAttachesCompleteOutOfOrder(t *testing.T) {
	clock := newClock()
	n := NewNetwork(clock.Now)
	n.Put(volume(Namespace{ID: 1}))
	n.SetReach(at("4420"), Dropped)
	p := startProcess(t, n, Config{})
	begin := func(name string, calls int) <-chan error {
		conn, ended := dial(t, p), make(chan error, 1)
		go func() {
			_, err := conn.try("bdev_nvme_attach_controller", attach(with{"name": name}))
			ended <- err
		}()
		for waiting := 0; waiting < calls; { // until each waits for its SYN
			n.mu.Lock()
			waiting = len(n.due)
			n.mu.Unlock()
		}
		return ended
	}
	first := begin("first", 1)
	clock.pass(25 * time.Second)
	second := begin("second", 2)
	clock.pass(19 * time.Second)
	n.SetReach(at("4420"), Open)
	clock.pass(13 * time.Second) // 57 s
	if err := <-second; err != nil {
		t.Errorf("the second attach: %v", err)
	}
	if len(first) > 0 {
		t.Errorf("the first attach ended before its SYN: %v", <-first)
	}
	conn := dial(t, p)
	conn.must("bdev_nvme_detach_controller", with{"name": "second"}, nil)
	clock.pass(7 * time.Second)
	if err := <-first; err != nil {
		t.Errorf("the first attach: %v", err)
	}
	if s := conn.state("first"); s != "enabled" {
		t.Errorf("the first controller is %s", s)
	}
}

func TestTimeoutRules(t *testing.T) {
	for _, c := range []struct {
		loss        int64
		delay, fast int64
		fit         bool
	}{
		{0, 0, 0, true}, {0, 1, 0, false}, {0, 0, 1, false}, {-1, 0, 0, false}, {-1, 1, 0, true}, {-1, 2, 1, false},
		{-1, 2, 2, true}, {-1, 2, 900, true}, {-2, 1, 0, false}, {5, 6, 0, false}, {5, 5, 0, true}, {5, 2, 6, false}, {5, 2, 5, true},
	} {
		if got := validTimeouts(&controller{lossTimeout: c.loss, delay: c.delay, fastFail: c.fast}); got != c.fit {
			t.Errorf("loss %d, delay %d, fast fail %d: %v, want %v", c.loss, c.delay, c.fast, got, c.fit)
		}
	}
}
