package watch

import "time"

// machine decides what is to be done about every socket. It does nothing
// itself: results and the time go in, actions and changes of status come out.
// What it is told costs the same however many sockets there are.
//
// It is told by its methods, each within do.
type machine struct {
	rules
	handled map[string]bool
	places  map[string]*place    // by path
	sockets map[uint64]*socket   // by token
	orphans map[instance]*socket // see orphan
	turns   turns
	lanes   lanes
	alarms  alarms
	tokens  uint64

	closing bool
	running int      // actions whose result is still to come
	left    []string // plugins that could not be deregistered when closing

	now  time.Time
	next output
}

// rules are what an operator may choose.
type rules struct {
	Dial, Grace time.Duration
	BackOff     BackOff
	Concurrency int
	random      func() float64 // in [0, 1)
}

// output is what the machine wants done and known.
type output struct {
	actions  []action
	changes  []change
	outcomes []outcome
}

// place is a path. While the socket that was there is not done with, the next
// one waits.
type place struct {
	path  string
	now   *socket
	next  bool
	found time.Time // of the next
}

// socket is one appearance of a socket at a path, from the time it is found
// until the handler has let go of it.
type socket struct {
	token  uint64
	place  *place // nil: an orphan
	status Status
	doing  doing
	gone   bool // the file is no longer there, or another one is
	held   bool // the handler has the plugin, or may have it
	open   bool // there may be a connection

	refusal  *refusal // to be told
	failure  *failure // comes into force when the handler has let go
	failures int      // in a row
	anew     bool     // the next attempt is the first since it was registered
	said     string   // the last failure since it was registered
	awaits   string   // the type whose handler is missing
	hung     bool     // it let the last attempt run into a deadline

	lane  lane
	alarm uint64        // 0: none
	begun time.Time     // when the attempt began to connect
	pause time.Duration // between the last two tries to connect, or looks whether it lives

	heldSince time.Time // the connection that shows whether it lives
	refused   bool      // at the last look whether it lives
}

// doing is what goes on with a socket.
type doing int

const (
	nothing       doing = iota // until an alarm, or something from outside
	queued                     // for a lane, to be asked
	asking                     // connecting, and GetInfo
	redialling                 // until it connects again
	awaitingTurn               // to be validated and registered
	validating                 // these four hold the turn of the name
	registering                //
	takingBack                 // what was left by a Register that was cut off
	deregistering              //
	queuedToTell               // for a lane, to be notified
	telling                    //
	awaitingLeave              // a turn, to be deregistered
)

// refusal is what a plugin is told when it was not registered, and the failure
// that this is.
type refusal struct {
	text string
	failure
}

// failure is why an attempt ended.
type failure struct {
	step         Phase
	text, reason string
	refused      bool // nobody listens, which may change in a moment
	hung         bool // it ran into a deadline
	cut          bool // so that nobody knows how far it came
}

// instance is what a handler tells registrations apart by.
type instance struct{ kind, name, endpoint, socket string }

func (p Plugin) instance() instance { return instance{p.Type, p.Name, p.Endpoint, p.Socket} }

// action is something to do. Those with the name of a method behind them have
// a result, which goes there.
type action struct {
	do     verb
	token  uint64
	plugin Plugin
	text   string // tell: why it was not registered; empty: it was
}

type verb int

const (
	ask         verb = iota // asked: over a new connection, which stays open
	cancel                  // the asking that runs
	validate                // validated
	register                // registered
	tell                    // told: over the connection, or a new one
	hangUp                  // the connection
	keep                    // it instead, to see whether the plugin lives
	deRegister              // deregistered
	checkAlive              // checked; and hungUp some time later when it was alive
	forgetAlive             // no more hungUp
)

// change is a new status.
type change struct {
	Status
	news bool // not the same failure again
}

// outcome is the end of an attempt or of a call of DeRegister: the phase that
// was reached, or in which it failed. kind is empty when nobody handles it.
type outcome struct {
	kind   string
	phase  Phase
	failed bool
	took   time.Duration // since the socket was found; of success only
}

func newMachine(r rules) *machine {
	return &machine{
		rules: r, handled: map[string]bool{}, places: map[string]*place{}, sockets: map[uint64]*socket{},
		orphans: map[instance]*socket{}, turns: turns{}, lanes: lanes{limit: r.Concurrency},
	}
}

// do tells the machine something, and returns what follows from it.
func (m *machine) do(now time.Time, tell func()) output {
	m.now = now
	tell()
	m.dispatch()
	out := m.next
	m.next = output{}
	return out
}

// handle: a type has a handler from now on.
func (m *machine) handle(kind string) {
	m.handled[kind] = true
	for _, s := range m.sockets {
		if s.awaits == kind && s.doing == nothing {
			m.again(s)
		}
	}
}

// found: a socket appeared.
func (m *machine) found(path string) {
	if m.closing {
		return
	}
	m.gone(path) // in case it was not told
	p := m.places[path]
	if p == nil {
		p = &place{path: path}
		m.places[path] = p
		m.begin(p, m.now)
		return
	}
	p.next, p.found = true, m.now
	if s := p.now; s.doing == nothing { // its DeRegister has failed; once more, before the next has its turn
		m.settle(s)
	}
}

func (m *machine) begin(p *place, found time.Time) {
	m.tokens++
	s := &socket{token: m.tokens, place: p}
	s.status.Socket, s.status.Found = p.path, found
	p.now, p.next = s, false
	m.sockets[s.token] = s
	m.set(s, Waiting)
	m.queue(s)
}

// gone: the socket at the path is no longer there.
func (m *machine) gone(path string) {
	p := m.places[path]
	switch {
	case p == nil:
	case p.next:
		p.next = false
	case !p.now.gone:
		p.now.gone = true
		m.halt(p.now)
	}
}

// halt ends what has changed nothing yet. Anything else goes on to where it
// leads to settle.
func (m *machine) halt(s *socket) {
	switch s.doing {
	case nothing, queued, redialling:
		m.settle(s)
	case asking:
		m.act(s, cancel)
	case awaitingTurn:
		m.turns.withdraw(s)
		m.settle(s)
	}
}

// settle is where a socket ends for which no attempt is to be made: the handler
// lets go of it, if it is gone, and then it is forgotten.
func (m *machine) settle(s *socket) {
	m.close(s)
	switch s.doing, s.alarm = nothing, 0; {
	case !s.gone: // the host closes
	case s.held:
		m.leave(s)
	default:
		m.finish(s)
	}
}

// finish forgets a socket, and begins with the next one at its place.
func (m *machine) finish(s *socket) {
	m.act(s, forgetAlive)
	delete(m.sockets, s.token)
	if s.place == nil {
		delete(m.orphans, s.status.instance())
		return
	}
	m.set(s, Gone)
	m.follow(s.place)
}

// follow begins with the next socket at a place.
func (m *machine) follow(p *place) {
	if p.now = nil; p.next {
		m.begin(p, p.found)
	} else {
		delete(m.places, p.path)
	}
}

// stop begins the end: no new attempt. With deregister set, every plugin is
// taken out of use.
func (m *machine) stop(deregister bool) {
	m.closing = true
	for _, s := range m.sockets {
		if s.place != nil {
			s.place.next = false
		}
		if !s.gone || s.doing == nothing { // else it is on its way
			s.gone = s.gone || deregister
			m.halt(s)
		}
	}
}

// idle reports whether nothing runs; after stop, nothing begins any more then.
func (m *machine) idle() bool { return m.running == 0 }

// close ends the connection of an attempt.
func (m *machine) close(s *socket) {
	if s.open {
		s.open = false
		m.act(s, hangUp)
	}
}

func (m *machine) act(s *socket, do verb) {
	m.send(action{do: do, token: s.token, plugin: s.status.Plugin})
}

func (m *machine) send(a action) {
	switch a.do {
	case cancel, hangUp, keep, forgetAlive:
	default:
		m.running++
	}
	m.next.actions = append(m.next.actions, a)
}

// result finds the socket whose action has ended.
func (m *machine) result(token uint64) *socket {
	m.running--
	return m.sockets[token]
}

// set publishes the status in a phase.
func (m *machine) set(s *socket, phase Phase) {
	if s.status.Phase != phase {
		s.status.Phase, s.status.Since = phase, m.now
	}
	news := phase != Failed || s.status.Error != s.said
	switch phase {
	case Failed:
		s.said = s.status.Error
	case Registered:
		s.said = ""
	}
	if s.place != nil {
		m.next.changes = append(m.next.changes, change{Status: s.status, news: news})
	}
}
