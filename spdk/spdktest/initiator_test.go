package spdktest

import (
	"slices"
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

func TestAttachRemoteSubsystem(t *testing.T) {
	n := NewNetwork(nil)
	n.Put(volume(Namespace{ID: 1, UUID: "e33a8f79-5f83-40cc-b7d5-cc0aab47b95d"}, Namespace{ID: 7, NGUID: "ABCDEF0123456789ABCDEF0123456789"}))
	c := dial(t, startProcess(t, n, Config{}))
	var names []string
	c.must("bdev_nvme_attach_controller", attach(nil), &names)
	if !slices.Equal(names, []string{"nv0n1", "nv0n7"}) {
		t.Fatalf("bdevs %v", names)
	}
	var shown []struct{ Name, UUID string }
	c.must("bdev_get_bdevs", with{"name": "abcdef01-2345-6789-abcd-ef0123456789"}, &shown)
	if shown[0].Name != "nv0n7" {
		t.Errorf("the bdev of the NGUID is %v", shown)
	}
	if held := n.Controllers(volNQN); held[host1] != 1 {
		t.Errorf("sessions %v", held)
	}
	c.must("bdev_nvme_detach_controller", with{"name": "nv0"}, nil)
	c.refused(-19, "bdev_get_bdevs", with{"name": "nv0n1"})
	if held := n.Controllers(volNQN); len(held) != 0 {
		t.Errorf("sessions %v after the detach", held)
	}
}

func TestAttachSubsystemWithoutNamespace(t *testing.T) {
	n := NewNetwork(nil)
	n.Put(volume())
	c := dial(t, startProcess(t, n, Config{}))
	var names []string
	c.must("bdev_nvme_attach_controller", attach(nil), &names)
	if names == nil || len(names) != 0 {
		t.Fatalf("bdevs %v, want none and a list", names)
	}
	if s := c.state("nv0"); s != "enabled" {
		t.Errorf("the controller without namespaces is %s", s)
	}
	// An added namespace appears without a request.
	n.Put(volume(Namespace{ID: 3}))
	c.must("bdev_get_bdevs", with{"name": "nv0n3", "timeout": 5000}, nil)
}

func TestLateNamespace(t *testing.T) {
	clock := newClock()
	n := NewNetwork(clock.Now)
	n.Put(volume(Namespace{ID: 1, After: time.Minute}))
	c := dial(t, startProcess(t, n, Config{}))
	c.must("bdev_nvme_attach_controller", attach(nil), nil)
	n.during(clock, func() { c.refused(-110, "bdev_get_bdevs", with{"name": "nv0n1", "timeout": 20}) })
	clock.pass(time.Minute)
	c.must("bdev_get_bdevs", with{"name": "nv0n1", "timeout": 5000}, nil)
}

func TestUnreachableTargets(t *testing.T) {
	n := NewNetwork(nil)
	n.Put(volume(Namespace{ID: 1}))
	n.SetReach(at("4421"), Silent)
	n.SetReach(at("4422"), Refused)
	n.SetReach(at("4423"), Dropped)
	c := dial(t, startProcess(t, n, Config{Timing: Timing{Silent: time.Millisecond}}))
	c.must("bdev_nvme_set_options", with{"tcp_connect_timeout_ms": 1}, nil)
	for name, more := range map[string]with{
		"silent": {"trsvcid": "4421"}, "refused": {"trsvcid": "4422"}, "dropped": {"trsvcid": "4423"}, "no listener": {"trsvcid": "4424"},
		"host": {"hostnqn": "nqn.2014-08.org.nvmexpress:uuid:2"}, "subsystem": {"subnqn": "nqn.2026-01.io.test:nope"},
	} {
		t.Run(name, func(t *testing.T) { c.refused(-5, "bdev_nvme_attach_controller", attach(more)) })
	}
	c.must("bdev_nvme_attach_controller", attach(nil), nil)
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

func TestControllersReconnect(t *testing.T) {
	for _, c := range []struct {
		name  string
		more  with
		state string
	}{
		{"defaults", nil, "failed"},
		{"for ever", with{"ctrlr_loss_timeout_sec": -1, "reconnect_delay_sec": 1}, "reconnect_is_delayed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newClock()
			n := NewNetwork(clock.Now)
			n.Put(volume(Namespace{ID: 1}))
			conn := dial(t, startProcess(t, n, Config{Timing: Timing{Reset: time.Second}}))
			conn.must("bdev_nvme_attach_controller", attach(c.more), nil)
			n.SetReach(at("4420"), Refused)
			for _, want := range []string{"resetting", c.state} {
				if s := conn.state("nv0"); s != want {
					t.Fatalf("state %s, want %s", s, want)
				}
				conn.must("bdev_get_bdevs", with{"name": "nv0n1"}, nil)
				clock.pass(time.Second)
			}
			n.SetReach(at("4420"), Open)
			for _, want := range []string{"resetting", "enabled"} {
				if s := conn.state("nv0"); s != want {
					t.Fatalf("state %s, want %s", s, want)
				}
				clock.pass(time.Second)
			}
		})
	}
}

func TestLossTimeoutEndsTheController(t *testing.T) {
	clock := newClock()
	n := NewNetwork(clock.Now)
	n.Put(volume(Namespace{ID: 1}))
	c := dial(t, startProcess(t, n, Config{}))
	c.must("bdev_nvme_attach_controller", attach(with{"ctrlr_loss_timeout_sec": 30, "reconnect_delay_sec": 2}), nil)
	n.Remove(volNQN)
	clock.pass(29 * time.Second)
	c.must("bdev_get_bdevs", with{"name": "nv0n1"}, nil)
	clock.pass(time.Second)
	c.refused(-22, "bdev_nvme_get_controllers", with{"name": "nv0"})
	c.refused(-19, "bdev_get_bdevs", with{"name": "nv0n1"})
}

func TestInjectedControllerFailure(t *testing.T) {
	n := NewNetwork(nil)
	n.Put(volume(Namespace{ID: 1}))
	p := startProcess(t, n, Config{})
	c := dial(t, p)
	c.must("bdev_nvme_attach_controller", attach(nil), nil)
	if !p.Fail("nv0") || p.Fail("nv1") {
		t.Error("Fail returned true for a missing controller")
	}
	if s := c.state("nv0"); s != "failed" {
		t.Errorf("state %s", s)
	}
	c.must("bdev_nvme_reset_controller", with{"name": "nv0"}, nil)
	if s := c.state("nv0"); s != "enabled" {
		t.Errorf("state %s after the reset", s)
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

func TestSecondPath(t *testing.T) {
	n := NewNetwork(nil)
	s := volume(Namespace{ID: 1})
	s.Addresses = append(s.Addresses, Address{"TCP", "2001:db8::1", "4420"})
	n.Put(s)
	c := dial(t, startProcess(t, n, Config{}))
	c.must("bdev_nvme_attach_controller", attach(nil), nil)
	second := attach(with{"adrfam": "IPv6", "traddr": "2001:db8:0::1"})
	c.must("bdev_nvme_attach_controller", second, nil)
	var shown []shownController
	c.must("bdev_nvme_get_controllers", nil, &shown)
	if len(shown) != 1 || len(shown[0].Ctrlrs) != 2 {
		t.Fatalf("controllers %+v", shown)
	}
	// Without one path the bdev uses the other.
	c.must("bdev_nvme_detach_controller", with{"name": "nv0", "trtype": "TCP", "traddr": "192.0.2.1"}, nil)
	c.must("bdev_get_bdevs", with{"name": "nv0n1"}, nil)
	c.must("bdev_nvme_detach_controller", with{"name": "nv0", "trtype": "TCP", "traddr": "2001:db8:0::1"}, nil)
	c.refused(-19, "bdev_get_bdevs", with{"name": "nv0n1"})
}
