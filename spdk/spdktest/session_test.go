package spdktest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

// newTarget starts a target that exports volNQN, without namespaces, to host1
// at 192.0.2.1:4420.
func newTarget(t *testing.T, n *Network, timing Timing) (*Process, *client) {
	t.Helper()
	p := startProcess(t, n, Config{Addresses: []string{"192.0.2.1"}, Timing: timing})
	c := dial(t, p)
	c.must("nvmf_create_transport", with{"trtype": "TCP"}, nil)
	c.must("nvmf_create_subsystem", with{"nqn": volNQN}, nil)
	c.must("nvmf_subsystem_add_host", with{"nqn": volNQN, "host": host1}, nil)
	c.must("nvmf_subsystem_add_listener", with{"nqn": volNQN, "listen_address": listen4420()}, nil)
	return p, c
}

func listen4420() with {
	return with{"trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420"}
}

func TestSessionsShowTheirSource(t *testing.T) {
	n := NewNetwork(nil)
	_, c := newTarget(t, n, Timing{})
	if _, err := n.Connect("nqn.2026-01.io.test:other", "198.51.100.1", volNQN, at("4420")); err == nil {
		t.Error("a host is connected that is not admitted")
	}
	if _, err := n.Connect(host1, "198.51.100.1", volNQN, at("4421")); err == nil {
		t.Error("a host is connected to a port without a listener")
	}
	testkit.Value(n.Connect(host1, "2001:0db8::1", volNQN, at("4420")))(t)
	dial(t, startProcess(t, n, Config{Source: "198.51.100.7"})).must("bdev_nvme_attach_controller", attach(nil), nil)
	var got []struct {
		Hostnqn string
		Qid     int
		Peer    map[string]string `json:"peer_address"`
	}
	c.must("nvmf_subsystem_get_qpairs", with{"nqn": volNQN}, &got)
	var sources []string
	for _, q := range got {
		if q.Qid == 0 {
			sources = append(sources, q.Hostnqn+" "+q.Peer["adrfam"]+" "+q.Peer["traddr"])
		}
	}
	if d := cmp.Diff([]string{host1 + " IPv4 198.51.100.7", host1 + " IPv6 2001:db8::1"}, sources); d != "" {
		t.Errorf("sources (-want +got):\n%s", d)
	}
}

func TestSessionEnds(t *testing.T) {
	for name, test := range map[string]struct {
		end   func(p *Process, c *client, s *Session)
		alive bool
	}{
		"host removed": {func(_ *Process, c *client, _ *Session) {
			c.must("nvmf_subsystem_remove_host", with{"nqn": volNQN, "host": host1}, nil)
		}, false},
		"other host removed": {func(_ *Process, c *client, _ *Session) {
			c.must("nvmf_subsystem_add_host", with{"nqn": volNQN, "host": host1 + "2"}, nil)
			c.must("nvmf_subsystem_remove_host", with{"nqn": volNQN, "host": host1 + "2"}, nil)
		}, true},
		"any host allowed and refused": {func(_ *Process, c *client, _ *Session) {
			c.must("nvmf_subsystem_allow_any_host", with{"nqn": volNQN, "allow_any_host": true}, nil)
			c.must("nvmf_subsystem_allow_any_host", with{"nqn": volNQN, "allow_any_host": false}, nil)
		}, true},
		"listener removed": {func(_ *Process, c *client, _ *Session) {
			c.must("nvmf_subsystem_remove_listener", with{"nqn": volNQN, "listen_address": listen4420()}, nil)
		}, false},
		"subsystem deleted": {func(_ *Process, c *client, _ *Session) {
			c.must("nvmf_delete_subsystem", with{"nqn": volNQN}, nil)
		}, false},
		"target killed": {func(p *Process, _ *client, _ *Session) { p.Kill() }, false},
		"network lost":  {func(p *Process, _ *client, _ *Session) { p.network.SetReach(at("4420"), Silent) }, false},
		"closed":        {func(_ *Process, _ *client, s *Session) { s.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := NewNetwork(nil)
			p, c := newTarget(t, n, Timing{})
			s := testkit.Value(n.Connect(host1, "198.51.100.1", volNQN, at("4420")))(t)
			if n.Controllers(volNQN)[host1] != 1 || !s.Alive() {
				t.Fatal("no session")
			}
			test.end(p, c, s)
			if held := n.Controllers(volNQN)[host1]; s.Alive() != test.alive || held > 0 != test.alive {
				t.Errorf("alive: %v, want %v; %d sessions", s.Alive(), test.alive, held)
			}
		})
	}
}

// With a delay the sessions of a removed host outlive the response, whether it
// is admitted again or not.
func TestSessionsOutliveRemoveHost(t *testing.T) {
	clock := newClock()
	n := NewNetwork(clock.Now)
	_, c := newTarget(t, n, Timing{RemoveHost: 2 * time.Second})
	s := testkit.Value(n.Connect(host1, "198.51.100.1", volNQN, at("4420")))(t)
	dial(t, startProcess(t, n, Config{})).must("bdev_nvme_attach_controller", attach(nil), nil)
	sessions := func(want int) {
		t.Helper()
		var all []any
		if c.must("nvmf_subsystem_get_controllers", with{"nqn": volNQN}, &all); len(all) != want {
			t.Errorf("%d sessions, want %d", len(all), want)
		}
	}
	c.must("nvmf_subsystem_remove_host", with{"nqn": volNQN, "host": host1}, nil)
	if _, err := n.Connect(host1, "198.51.100.1", volNQN, at("4420")); err == nil {
		t.Error("a removed host is connected")
	}
	sessions(2)
	clock.pass(time.Second)
	c.must("nvmf_subsystem_add_host", with{"nqn": volNQN, "host": host1}, nil)
	testkit.Value(n.Connect(host1, "198.51.100.1", volNQN, at("4420")))(t)
	sessions(3)
	clock.pass(time.Second)
	// Only the process connects again, and it does so at once.
	if sessions(2); s.Alive() {
		t.Error("the session of a removed host continues")
	}
}
