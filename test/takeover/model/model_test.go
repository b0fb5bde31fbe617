package model

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/takeover/plan"
	"github.com/cleatproject/cleat/test/soak"
)

// modelEvents is how many events happen at most, apart from what controllers do.
func modelEvents() uint8 {
	if soak.Enabled {
		return 3
	}
	return 2
}

// model explores all worlds that are reachable within the budget of events.
// Controllers observe, write and act in every order; each write and each answer
// can be lost.
type model struct {
	broken mutant

	statuses  []plan.Status // without conditions: they decide nothing here
	statusOf  map[string]uint16
	steps     []step
	stepOf    map[string]uint16
	decisions map[observationKey]uint16
}

type step struct {
	status  uint16
	actions []plan.Action
	// Which of the bits of leader.left are writes to these, and need what was read.
	toNode, toObject, ghosts uint8
}

// observationKey is what an observation depends on.
type observationKey struct {
	remediation   uint8
	object, other object
	read          read
	pods, foreign bool
	failed        uint8 // backend + 1 that does not answer
	term          uint8
}

func newModel(broken mutant) *model {
	m := &model{broken: broken, statusOf: map[string]uint16{}, stepOf: map[string]uint16{}, decisions: map[observationKey]uint16{}}
	m.status(plan.Status{})
	return m
}

func (m *model) status(s plan.Status) uint16 {
	s.Conditions = nil
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	id, known := m.statusOf[string(text)]
	if !known {
		id = uint16(len(m.statuses))
		m.statuses, m.statusOf[string(text)] = append(m.statuses, s), id
	}
	return id
}

var (
	backends  = []string{"backend 0", "backend 1"}
	addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")} // of A and B
	uids      = []string{"uid-0", "uid-1"}
	epoch     = time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	config    = plan.Config{
		Coverage:      []plan.Rule{{Driver: "driver-v1", Backend: backends[0]}, {Driver: "driver-v2", Backend: backends[1]}},
		Backends:      []plan.Backend{{Name: backends[0]}, {Name: backends[1]}},
		MaxConcurrent: 2,
	}
)

func (m *model) observation(k observationKey) plan.Observation {
	r := k.remediation
	o := plan.Observation{
		Now: epoch, Config: config, Lease: plan.Lease{Held: true, Term: int64(k.term)},
		Remediation: m.remediation(r, k.object),
		Clients:     []plan.Client{{Machine: "a", Source: plan.FromStorageNetwork, Addresses: addresses[:1]}},
		Protected:   []plan.Protected{{Block: netip.PrefixFrom(addresses[1], 32), Owner: "node b"}},
	}
	if k.other.exists {
		other := m.remediation(1-r, k.other)
		o.Others = []plan.Other{{Name: other.Name, UID: other.UID, Created: other.Created, Node: other.Node, Status: other.Status}}
	}
	if n := k.read.node; n.exists {
		o.Node = &plan.Node{
			UID:     fmt.Sprint("node-", n.uid),
			Machine: plan.Machine{Name: "a", MachineID: fmt.Sprint("machine-", n.machine), SystemUUID: "system", BootID: fmt.Sprint("boot-", n.boot)},
			Ready:   n.ready, Unschedulable: n.unschedulable,
		}
		if n.claimBy != 0 {
			o.Node.Claim = plan.Claim{Remediation: uids[n.claimBy-1], Term: int64(n.claimTerm), Cordoned: n.claimCordoned, Left: n.claimLeft}
		}
		if n.taint != 0 {
			value := "an administrator's"
			if n.taint <= administrator {
				value = plan.TaintValue(uids[n.taint-1])
			}
			o.Node.OutOfService = &value
		}
	}
	for v := range 3 {
		if name := fmt.Sprint("v", v+1); k.read.volumes&(1<<v) != 0 {
			o.Volumes = append(o.Volumes, plan.Volume{Name: name, Plugin: "csi", Driver: "driver-" + name, SeenIn: []string{"attachment"}})
		}
	}
	if k.pods {
		o.Pods = []plan.Pod{{Namespace: "default", Name: "pod", UID: "pod-uid"}}
	}
	if k.foreign {
		o.Clients = append(o.Clients, plan.Client{Machine: "a", Source: plan.FromNode, Addresses: addresses[1:]})
	}
	if intent := m.statuses[k.read.intent].Intent; intent != nil {
		for b, name := range backends {
			read := plan.ReadBack{Backend: name, Intent: intent.Digest, At: epoch}
			for i, a := range addresses {
				if k.read.held[b]&(1<<i) != 0 {
					read.Held = append(read.Held, a)
				}
			}
			read.Recorded, read.Lifted = read.Held, len(read.Held) == 0
			if int(k.failed) == b+1 {
				read.Held, read.Recorded, read.Lifted, read.Err = nil, nil, false, "no answer"
			}
			o.ReadBacks = append(o.ReadBacks, read)
		}
	}
	return o
}

func (m *model) remediation(r uint8, o object) plan.Remediation {
	out := plan.Remediation{
		Name: "remediation-" + uids[r], UID: uids[r], Created: epoch.Add(time.Duration(r) * time.Second), Node: "a",
		Finalizer: o.finalizer, Deleting: o.deleting, TimedOut: o.timedOut, Status: m.statuses[o.status],
	}
	if o.off != 0 {
		out.Off = &plan.Off{Record: m.statuses[o.off-1].Record.Digest, Machines: []string{"a"}}
	}
	return out
}

// decide returns Next's step for an observation, by its number.
func (m *model) decide(k observationKey) uint16 {
	if id, known := m.decisions[k]; known {
		return id
	}
	o := m.observation(k)
	if m.broken.observe != nil {
		m.broken.observe(&o, k)
	}
	next := plan.Next(o)
	if m.broken.decide != nil {
		m.broken.decide(&o, &next)
	}
	st := step{status: m.status(next.Status), actions: next.Actions, toObject: writeStatus, ghosts: writeStatus}
	for i, a := range st.actions {
		switch a.(type) {
		case plan.AddFinalizer, plan.RemoveFinalizer:
			st.toObject |= 1 << i
		case plan.TaintNode:
			st.ghosts |= 1 << i
			st.toNode |= 1 << i
		case plan.ClaimNode, plan.LeaveNode:
			st.toNode |= 1 << i
		}
	}
	text := fmt.Sprintf("%d %#v", st.status, st.actions)
	id, known := m.stepOf[text]
	if !known {
		id = uint16(len(m.steps))
		m.steps, m.stepOf[text] = append(m.steps, st), id
	}
	m.decisions[k] = id
	return id
}

// begin is a controller that has read all but the remediation.
func (m *model) begin(w *world, r uint8) leader {
	l := leader{phase: reading, remediation: r, nodeFresh: true}
	l.read = read{node: w.node, volumes: w.volumes}
	l.read.node.cordonOf = 0
	if m.statuses[w.objects[r].status].Intent != nil {
		l.read.intent = w.objects[r].status
	}
	for b := range w.held {
		l.read.held[b] = w.held[b][r]
		if m.broken.otherOwners {
			l.read.anyone[b] = w.held[b][0] | w.held[b][1] | w.held[b][administrator]
		}
	}
	return l
}

// successor is called with each world that can follow, and what happened.
type successor func(next world, what func() string, violation string)

func (m *model) successors(w world, visit successor) {
	yield := func(next world, what func() string, violation string) {
		for i := range next.leaders {
			m.settle(&next.leaders[i])
		}
		visit(next, what, violation)
	}
	if w.budget > 0 {
		for _, e := range events {
			next := w
			if e.do(&next, m) {
				next.budget--
				yield(next, func() string { return e.name }, m.wrong(&next))
			}
		}
	}
	m.lead(w, 0, yield)
	if w.elected {
		m.lead(w, 1, yield)
	}
}

// settle makes equal what behaves the same: a controller whose writes all fail
// is as good as idle.
func (m *model) settle(l *leader) {
	if l.phase == acting {
		st := m.steps[l.step]
		if !l.objectFresh && !m.broken.unconditionalStatus {
			l.left &^= st.toObject
		}
		if !l.nodeFresh && !m.broken.unconditionalNode {
			l.left &^= st.toNode
		}
		if l.left == 0 {
			*l = leader{}
		}
		l.objectFresh = l.objectFresh && l.left&st.toObject != 0
		l.nodeFresh = l.nodeFresh && l.left&st.toNode != 0
		if l.left&st.ghosts == 0 {
			l.volumes, l.held = 0, 0
		}
	}
}

// lead continues controller i by one step.
func (m *model) lead(w world, i int, yield successor) {
	says := func(what string) func() string {
		return func() string { return fmt.Sprintf("controller %d: %s", i, what) }
	}
	switch l := w.leaders[i]; l.phase {
	case idle:
		for r := range w.objects {
			if w.objects[r].exists {
				next := w
				next.leaders[i] = m.begin(&w, uint8(r))
				yield(next, says("reads all but the remediation"), "")
				if m.broken.staleNode {
					next.leaders[i].read.node, next.leaders[i].nodeFresh = initial(0).node, false
					yield(next, says("reads an old Node object"), "")
				}
			}
		}
	case reading:
		for failed := range uint8(3) {
			next := w
			next.leaders[i] = m.decided(&w, l, uint8(i)+1, failed)
			yield(next, says("reads the remediation and decides"), "")
		}
	case acting:
		next := w
		next.leaders[i] = leader{}
		yield(next, says("is killed, or what it sends is lost"), "")
		for bits := l.left; bits != 0; bits &= bits - 1 {
			next, bit := w, bits&-bits
			what, violation := m.act(&next, i, bit)
			if next.leaders[i].left &^= bit; next.leaders[i].left == 0 {
				next.leaders[i] = leader{}
			}
			if violation == "" {
				violation = m.wrong(&next)
			}
			yield(next, func() string { return says(what())() }, violation)
		}
	}
}

// decided is the controller with a step, or idle without one.
func (m *model) decided(w *world, l leader, term, failed uint8) leader {
	r := l.remediation
	k := observationKey{
		remediation: r, object: w.objects[r], other: w.objects[1-r], read: l.read,
		pods: w.pods, foreign: w.foreign, failed: failed, term: term,
	}
	if !k.object.exists {
		return leader{}
	}
	l.objectFresh = true
	l.step = m.decide(k)
	l.phase, l.volumes, l.held = acting, l.read.volumes, 0
	for b := range l.read.held {
		if l.read.held[b]&addressA != 0 {
			l.held |= 1 << b
		}
	}
	l.read = read{}
	st := m.steps[l.step]
	if st.status != k.object.status {
		l.left = writeStatus
	}
	if l.left == 0 || m.broken.actsFirst {
		l.left |= 1<<len(st.actions) - 1
	}
	return l
}

// set numbers worlds. It is a hash table of numbers: a map would need three
// times the memory.
type set struct {
	all   []world
	table []int32 // number + 1, at the hash or after it
	seed  maphash.Seed
}

func newSet() *set { return &set{table: make([]int32, 1<<12), seed: maphash.MakeSeed()} }

// add returns true for a new world.
func (s *set) add(w world) bool {
	at := s.find(w)
	if s.table[at] != 0 {
		return false
	}
	s.all = append(s.all, w)
	s.table[at] = int32(len(s.all))
	if 2*len(s.all) > len(s.table) {
		s.table = make([]int32, 2*len(s.table))
		for i, w := range s.all {
			s.table[s.find(w)] = int32(i + 1)
		}
	}
	return true
}

func (s *set) find(w world) uint64 {
	mask := uint64(len(s.table) - 1)
	at := maphash.Comparable(s.seed, w) & mask
	for s.table[at] != 0 && s.all[s.table[at]-1] != w {
		at = (at + 1) & mask
	}
	return at
}

// explored is the result of an exploration.
type explored struct {
	worlds    int
	violation string // empty if none
	way       string // to it
}

func (m *model) explore(start []world, quiet bool) explored {
	seen, rested := newSet(), newSet()
	var parent []int32
	for _, w := range start {
		seen.add(w)
		parent = append(parent, -1)
	}
	for at := 0; at < len(seen.all); at++ {
		violation, last := "", ""
		m.successors(seen.all[at], func(next world, what func() string, wrong string) {
			switch {
			case violation != "":
			case wrong != "":
				violation, last = wrong, what()
			case seen.add(next):
				parent = append(parent, int32(at))
			}
		})
		if violation == "" && quiet {
			w := seen.all[at]
			w.leaders, w.budget = [2]leader{}, 0
			if rested.add(w) {
				violation, last = m.stuck(w), "then nothing else happens"
			}
		}
		if violation != "" {
			return explored{len(seen.all), violation, m.way(seen.all, parent, at) + last}
		}
	}
	return explored{worlds: len(seen.all)}
}

// way prints how world `at` was reached.
func (m *model) way(all []world, parent []int32, at int) string {
	var lines []string
	for ; parent[at] >= 0; at = int(parent[at]) {
		name := ""
		m.successors(all[parent[at]], func(next world, what func() string, _ string) {
			if name == "" && next == all[at] {
				name = what()
			}
		})
		lines = append(lines, name)
	}
	slices.Reverse(lines)
	return strings.Join(append(lines, ""), "\n")
}

func TestModel(t *testing.T) {
	m := newModel(mutant{})
	begin := time.Now()
	result := m.explore(starts(modelEvents()), true)
	t.Logf("%d worlds with up to %d events, %d different observations, %d statuses, %v", result.worlds, modelEvents(), len(m.decisions), len(m.statuses), time.Since(begin))
	if result.violation != "" {
		t.Fatalf("%s:\n%s", result.violation, result.way)
	}
}

func starts(budget uint8) []world {
	both := initial(budget)
	both.volumes, both.mounted = v1|v2, v1|v2
	return []world{initial(budget), both}
}
