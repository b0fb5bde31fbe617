package spdktest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// session of a host with a subsystem.
type session struct {
	target       *subsystem // nil: no session
	host, hostID string
	source       string
	address      Address // of the listener
	port         int     // of the host's admin queue
	cntlid       int
	queues       int // with the admin queue
	began        time.Time
	ends         time.Time // after nvmf_subsystem_remove_host; else zero
	met          []uint32  // namespaces at the start
}

// Session is a connection of a host that is not a process, such as a kernel.
// It does not reconnect.
type Session struct {
	network *Network
	session
}

// Connect connects a host with an address to a subsystem, if it listens and
// admits the host. nvmf_subsystem_remove_host, the end of the subsystem or of
// its listener, and SetReach end the session.
func (n *Network) Connect(hostNQN, source, nqn string, a Address) (*Session, error) {
	return n.Authenticate(hostNQN, source, nqn, a, Keys{})
}

// Keys are those of a host; empty: none. A host with a TLS key connects with TLS.
type Keys struct{ DHChap, TLS string }

// Authenticate is Connect with keys of the host.
func (n *Network) Authenticate(hostNQN, source, nqn string, a Address, keys Keys) (*Session, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.catchUp()
	target := n.find(a, nqn, hostNQN, keys)
	if target == nil {
		return nil, fmt.Errorf("spdktest: no subsystem %s at %s:%s admits %s", nqn, a.Host, a.Port, hostNQN)
	}
	s := &Session{n, n.open(target, hostNQN, hostID(hostNQN), source, a, n.now())}
	s.queues = 2
	n.hosts = append(n.hosts, s)
	n.touch()
	return s, nil
}

// Alive reports whether the session has not ended.
func (s *Session) Alive() bool {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	s.network.catchUp()
	return s.target != nil
}

// Close ends the session.
func (s *Session) Close() { s.network.change(func() { s.target = nil }) }

func (n *Network) open(target *subsystem, host, id, source string, a Address, now time.Time) session {
	target.lastController++
	n.lastPort = max(n.lastPort, 32768) + 2
	s := session{
		target: target, host: host, hostID: id, source: source, address: a.key(), port: n.lastPort,
		cntlid: target.lastController, began: now,
	}
	for _, ns := range target.namespaces {
		s.met = append(s.met, ns.id)
	}
	return s
}

// step ends a session whose target is lost, or removed the host.
func (n *Network) step(s *session, now time.Time) {
	if s.target == nil {
		return
	}
	// A target checks its list of hosts only when a host connects [R].
	if !n.listens(s.address, s.target) || s.target.owner == nil && !s.target.allows(s.host) || !s.ends.IsZero() && !now.Before(s.ends) {
		s.target = nil
	} else if !s.ends.IsZero() {
		n.pending = true
	}
}

func (n *Network) listens(a Address, s *subsystem) bool {
	return n.reach[a.key()] == Open && slices.Contains(s.listeners, a.key()) && slices.Contains(n.byNQN[s.nqn], s)
}

// find returns the subsystem that a host reaches, or nil.
func (n *Network) find(a Address, nqn, host string, keys Keys) *subsystem {
	for _, s := range n.byNQN[nqn] {
		if n.listens(a, s) && s.allows(host) && s.authenticates(host, keys.DHChap) && n.encrypts(a, s, host, keys.TLS) {
			return s
		}
	}
	return nil
}

// sessions returns those of a subsystem.
func (n *Network) sessions(nqn string, is func(*subsystem) bool) []*session {
	var all []*session
	add := func(s *session) {
		if s.target != nil && s.target.nqn == nqn && is(s.target) {
			all = append(all, s)
		}
	}
	for _, p := range n.processes {
		for _, c := range p.controllers {
			for _, t := range c.paths {
				t.queues = c.queues()
				add(&t.session)
			}
		}
	}
	for _, s := range n.hosts {
		add(&s.session)
	}
	return all
}

func (s *subsystem) sessions(n *Network) []*session {
	return n.sessions(s.nqn, func(x *subsystem) bool { return x == s })
}

// Controllers counts sessions of a subsystem by host NQN.
func (n *Network) Controllers(nqn string) map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.catchUp()
	held := map[string]int{}
	for _, s := range n.sessions(nqn, func(*subsystem) bool { return true }) {
		held[s.host]++
	}
	return held
}

func removeHost(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	host := a.text("host")
	i := slices.Index(s.hosts, host)
	if i < 0 {
		return nil, internal()
	}
	s.hosts = slices.Delete(s.hosts, i, i+1)
	delete(s.keys, host)
	for _, x := range s.sessions(p.network) {
		if x.host == host && x.ends.IsZero() {
			x.ends = p.network.now().Add(p.config.Timing.RemoveHost)
		}
	}
	return true, nil
}

// controllersOf counts the admin queue in num_io_qpairs, like SPDK.
func controllersOf(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	all := []map[string]any{}
	for _, x := range s.sessions(p.network) {
		all = append(all, map[string]any{
			"cntlid": x.cntlid, "cntrltype": "io", "hostnqn": x.host, "hostid": x.hostID, "num_io_qpairs": x.queues,
		})
	}
	return all, nil
}

func hostID(nqn string) string {
	if id, err := uuid.Parse(strings.TrimPrefix(nqn, "nqn.2014-08.org.nvmexpress:uuid:")); err == nil {
		return id.String()
	}
	return uuid.NewSHA1(uuid.Nil, []byte(nqn)).String()
}

func qpairs(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	all := []map[string]any{}
	for _, x := range s.sessions(p.network) {
		for id := range x.queues {
			peer := Address{x.address.Transport, x.source, strconv.Itoa(x.port + id)}
			shown := map[string]any{"cntlid": x.cntlid, "qid": id, "state": "enabled", "listen_address": showAddress(x.address)}
			if p.config.Flavour != Fork { // peer_address is shown from 24.05 on, the others from 24.09 on [R]
				shown["thread"], shown["hostnqn"], shown["peer_address"] = "nvmf_tgt_poll_group_000", x.host, showAddress(peer.key())
			}
			all = append(all, shown)
		}
	}
	return all, nil
}
