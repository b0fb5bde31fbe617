// Package fencetest has fakes for fencing: an in-memory network with a fencer
// that can fail.
package fencetest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Network is a storage server, its clients, and the fencer between them, which
// is safe for concurrent use.
type Network struct {
	mu       sync.Mutex
	held     []netip.Prefix
	sessions map[string]*Session
	next     int
	faults   map[string]error
	applied  int
	changed  chan struct{}
}

// Session is a client's connection.
type Session struct {
	network *Network
	id      string
	client  netip.Addr
	dead    bool // client's end
	stuck   bool // kept open by the server
	gone    chan struct{}
}

// NewNetwork returns a network without fences.
func NewNetwork() *Network {
	return &Network{sessions: map[string]*Session{}, faults: map[string]error{}, changed: make(chan struct{}, 1)}
}

// Connect starts a session, or fails if the client is fenced.
func (n *Network) Connect(client netip.Addr) (*Session, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if covers(n.held, client) {
		return nil, fmt.Errorf("connect from %s: timed out", client)
	}
	n.next++
	s := &Session{network: n, id: fmt.Sprint("session-", n.next), client: client, gone: make(chan struct{})}
	n.sessions[s.id] = s
	return s, nil
}

// Write writes at the server, or fails.
func (s *Session) Write() error {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	if s.dead || covers(s.network.held, s.client) {
		return fmt.Errorf("write from %s: timed out", s.client)
	}
	return nil
}

// Stick makes the server keep an ended session open until Release.
func (s *Session) Stick() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	s.stuck = true
}

// Release makes the server close an ended session.
func (s *Session) Release() {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	s.stuck = false
	if s.dead {
		s.drop()
	}
}

func (s *Session) drop() {
	if _, there := s.network.sessions[s.id]; there {
		delete(s.network.sessions, s.id)
		close(s.gone)
	}
}

func covers(blocks []netip.Prefix, client netip.Addr) bool {
	return slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(client) })
}

// Fail makes a method of the Fencer (Apply, Held, Sessions, End) fail; nil ends
// that.
func (n *Network) Fail(method string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[method] = err
}

// Tamper changes the held blocks (disjoint, sorted) like another program, and
// signals Changed.
func (n *Network) Tamper(held ...netip.Prefix) {
	n.mu.Lock()
	n.held = held
	n.mu.Unlock()
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Changed signals Tamper.
func (n *Network) Changed() <-chan struct{} { return n.changed }

// Applied counts Apply calls.
func (n *Network) Applied() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.applied
}

var _ volume.Fencer = (*Network)(nil)

// Apply implements volume.Fencer.
func (n *Network) Apply(_ context.Context, wanted volume.FenceSet) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.applied++
	if err := n.faults["Apply"]; err != nil {
		return err
	}
	n.held = slices.Clone(wanted.Blocks)
	return nil
}

// Held implements volume.Fencer.
func (n *Network) Held(context.Context) ([]netip.Prefix, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.held), n.faults["Held"]
}

// Sessions implements volume.Fencer. As with sockets, an ended session is not
// listed even if the server has it open.
func (n *Network) Sessions(_ context.Context, blocks []netip.Prefix) ([]volume.Session, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var live []volume.Session
	for _, s := range n.sessions {
		if !s.dead && covers(blocks, s.client) {
			live = append(live, volume.Session{ID: s.id, Client: netip.AddrPortFrom(s.client, 1024), Holder: "the server"})
		}
	}
	return live, n.faults["Sessions"]
}

// End implements volume.Fencer.
func (n *Network) End(ctx context.Context, sessions []volume.Session) error {
	n.mu.Lock()
	if err := n.faults["End"]; err != nil {
		n.mu.Unlock()
		return err
	}
	var all []*Session
	for _, want := range sessions {
		if s := n.sessions[want.ID]; s != nil {
			s.dead = true
			if !s.stuck {
				s.drop()
			}
			all = append(all, s)
		}
	}
	n.mu.Unlock()
	for _, s := range all {
		select {
		case <-s.gone:
		case <-ctx.Done():
			return errs.Errorf(errs.Unavailable, "%s is still held by the server: %w", s.id, ctx.Err())
		}
	}
	return nil
}
