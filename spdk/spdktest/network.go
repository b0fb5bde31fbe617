// Package spdktest is a test double of SPDK and SNAP processes, for tests and
// demonstrations. It serves JSON-RPC on a UNIX socket like a recorded process
// (testdata). Behaviour that is not recorded is marked [R], read in SPDK's
// sources or documents, or [I], inferred.
//
// A Network holds remote NVMe subsystems and processes: targets (nvmf_*),
// initiators (bdev_nvme_*) or both, and SNAP if the Config says so.
// Process.Inject injects faults, Network's methods network events.
//
// Only lvols have data (Process.OpenLvol). Data does not pass through
// controllers of initiators.
package spdktest

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Reach is the reachability of an address.
type Reach int

const (
	// Open: a listener responds; without a listener the port is closed.
	Open Reach = iota
	// Refused: the port is closed, even if there is a listener.
	Refused
	// Silent: TCP connects, but the target never responds.
	Silent
	// Dropped: packets are dropped. A pending connect succeeds with its next
	// SYN after that.
	Dropped
)

// Address is the address of a listener.
type Address struct {
	Transport string // TCP, RDMA; NVDA_TCP connects to TCP listeners
	Host      string // an IP address without brackets
	Port      string
}

// key normalises transport alias and spelling of the IP address.
func (a Address) key() Address {
	a.Transport = strings.TrimPrefix(strings.ToUpper(a.Transport), "NVDA_")
	if ip, err := netip.ParseAddr(a.Host); err == nil {
		a.Host = ip.String()
	}
	return a
}

// Namespace is a namespace of a remote subsystem.
type Namespace struct {
	ID        uint32
	UUID      string // optional
	NGUID     string // 32 hex digits, optional
	BlockSize uint32 // 0: 4096
	Blocks    uint64 // 0: 1 GiB
	// After is the delay until an initiator sees the namespace.
	After time.Duration
}

// Subsystem is a remote NVMe subsystem.
type Subsystem struct {
	NQN        string
	Serial     string
	Model      string
	Addresses  []Address
	AnyHost    bool
	Hosts      []string // allowed host NQNs unless AnyHost
	Namespaces []Namespace
}

// subsystem is remote or exported by a process.
type subsystem struct {
	nqn, serial, model string
	listeners          []Address
	tls                map[Address]bool // listeners that were added with TLS
	anyHost            bool
	hosts              []string
	keys               map[string]hostKeys // by host
	maxNamespaces      uint32
	namespaces         []*namespace
	owner              *Process // nil: remote
	lastController     int
}

type namespace struct {
	id          uint32
	uuid, nguid string
	blockSize   uint32
	blocks      uint64
	after       time.Duration
	added       time.Time // to the subsystem
	bdev        *bdev     // nil: remote
}

// identity returns the uuid of an initiator's bdev: the digits of the NGUID, or
// else the UUID.
func (n *namespace) identity() string {
	digits := n.nguid
	if digits == "" {
		digits = n.uuid
	}
	if id, err := uuid.Parse(digits); err == nil {
		return id.String()
	}
	return ""
}

func (n *namespace) size() (blockSize uint32, blocks uint64) {
	if n.bdev != nil {
		return n.bdev.blockSize, n.bdev.blocks
	}
	return n.blockSize, n.blocks
}

func (s *subsystem) allows(host string) bool {
	return s.anyHost || slices.Contains(s.hosts, host)
}

func (s *subsystem) namespace(id uint32) *namespace {
	for _, n := range s.namespaces {
		if n.id == id {
			return n
		}
	}
	return nil
}

// Network holds processes and remote subsystems. It is safe for concurrent use.
type Network struct {
	now     func() time.Time
	machine bool // the system clock

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced on changes
	reach      map[Address]Reach
	reachSince map[Address]time.Time // when it was set
	subsystems []*subsystem
	byNQN      map[string][]*subsystem
	pending    bool // the state will change without a request
	processes  []*Process
	hosts      []*Session
	lastPort   int
	tls        map[Address]bool    // sockets with TLS
	stores     map[string]*lvstore // by backing file
	images     map[string]Image
	due        map[*time.Time]struct{} // ends of timed waits
}

// NewNetwork returns an empty network. A nil clock is the system clock; any
// other is polled every millisecond.
func NewNetwork(clock func() time.Time) *Network {
	machine := clock == nil
	if machine {
		clock = time.Now
	}
	return &Network{
		now:     clock,
		machine: machine,
		changed: make(chan struct{}),
		reach:   map[Address]Reach{}, reachSince: map[Address]time.Time{},
		byNQN:  map[string][]*subsystem{},
		stores: map[string]*lvstore{},
		images: map[string]Image{},
		tls:    map[Address]bool{},
		due:    map[*time.Time]struct{}{},
	}
}

// Put adds or replaces a remote subsystem. Sessions continue if the new one
// allows them.
func (n *Network) Put(s Subsystem) {
	n.change(func() {
		old := n.remote(s.NQN)
		if old == nil {
			old = &subsystem{nqn: s.NQN}
			n.add(old)
		}
		old.serial, old.model = orElse(s.Serial, "SPDKTEST0001"), orElse(s.Model, "spdktest")
		old.anyHost, old.hosts = s.AnyHost, slices.Clone(s.Hosts)
		old.maxNamespaces = 1024
		old.listeners = nil
		for _, a := range s.Addresses {
			old.listeners = append(old.listeners, a.key())
		}
		before := old.namespaces
		old.namespaces = nil
		for _, ns := range s.Namespaces {
			made := remoteNamespace(ns)
			made.added = n.now()
			if i := slices.IndexFunc(before, func(x *namespace) bool { return x.id == ns.ID }); i >= 0 {
				made.added = before[i].added
			}
			old.namespaces = append(old.namespaces, made)
		}
	})
}

func remoteNamespace(ns Namespace) *namespace {
	made := &namespace{id: ns.ID, uuid: ns.UUID, nguid: ns.NGUID, after: ns.After, blockSize: ns.BlockSize, blocks: ns.Blocks}
	if made.blockSize == 0 {
		made.blockSize = 4096
	}
	if made.blocks == 0 {
		made.blocks = 1 << 30 / uint64(made.blockSize)
	}
	return made
}

// Remove removes a remote subsystem from the network.
func (n *Network) Remove(nqn string) {
	n.change(func() {
		if s := n.remote(nqn); s != nil {
			n.drop(s)
		}
	})
}

func (n *Network) add(s *subsystem) {
	n.subsystems = append(n.subsystems, s)
	n.byNQN[s.nqn] = append(n.byNQN[s.nqn], s)
}

func (n *Network) drop(s *subsystem) {
	is := func(x *subsystem) bool { return x == s }
	n.subsystems = slices.DeleteFunc(n.subsystems, is)
	n.byNQN[s.nqn] = slices.DeleteFunc(n.byNQN[s.nqn], is)
}

// SetReach sets the reachability of an address.
func (n *Network) SetReach(a Address, r Reach) {
	n.change(func() { n.reach[a.key()], n.reachSince[a.key()] = r, n.now() })
}

func (n *Network) remote(nqn string) *subsystem {
	for _, s := range n.byNQN[nqn] {
		if s.owner == nil {
			return s
		}
	}
	return nil
}

// change updates all controllers after what, and wakes waiters.
func (n *Network) change(what func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	what()
	n.touch()
}

// touch updates all controllers and wakes waiters. Locked.
func (n *Network) touch() {
	n.update()
	close(n.changed)
	n.changed = make(chan struct{})
}

// update updates all controllers to the current time. Locked.
func (n *Network) update() {
	n.pending = false
	now := n.now()
	for _, s := range n.hosts {
		n.step(&s.session, now)
	}
	n.hosts = slices.DeleteFunc(n.hosts, func(s *Session) bool { return s.target == nil })
	for _, p := range n.processes {
		p.update(now)
	}
}

// catchUp applies changes that depend on time only. Locked.
func (n *Network) catchUp() {
	if n.pending {
		n.update()
	}
}

// tick is the polling interval for changes that depend on time only.
const tick = time.Millisecond

// wait releases the lock until a change or for d; false: the process has ended.
func (n *Network) wait(ctx context.Context, d time.Duration) bool {
	changed := n.changed
	n.mu.Unlock()
	defer n.mu.Lock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// until registers a timed wait; the result removes it.
func (n *Network) until(end *time.Time) func() {
	n.due[end] = struct{}{}
	return func() { delete(n.due, end) }
}

// sleep releases the lock for d; false: the process has ended.
func (n *Network) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	end := n.now().Add(d)
	defer n.until(&end)()
	return n.sleepUntil(ctx, end)
}

// sleepUntil releases the lock until a time whose wait is registered; false:
// the process has ended.
func (n *Network) sleepUntil(ctx context.Context, end time.Time) bool {
	n.mu.Unlock()
	defer n.mu.Lock()
	for now := n.now(); now.Before(end); now = n.now() {
		step := tick
		if n.machine {
			step = end.Sub(now)
		}
		timer := time.NewTimer(step)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
	return ctx.Err() == nil
}

func orElse[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
