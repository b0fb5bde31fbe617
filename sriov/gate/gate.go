package gate

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// ScanRetryDelay is the delay after a failed scan.
const ScanRetryDelay = time.Second

// Config configures a Gate.
type Config struct {
	// Controlled offers devices only to a holder.
	Controlled bool
	// WithdrawTimeout is when waiting callers get an error. Default 10 s.
	WithdrawTimeout time.Duration
}

// Gate is the state machine of the plugin. It is not safe for concurrent use.
type Gate struct {
	machine
	cfg Config

	hash       string
	configured map[string]bool   // nil before the first Configured
	resources  map[string]Report // configured resources, and removed ones until they stop

	holder *holder

	open          bool   // sent to the resources
	epoch         uint64 // of the last opening or closing
	restriction   uint64 // of the last Restrict
	closed        Closed // of the last Restrict
	scan          uint64 // of the last Scan
	scanned       bool   // by the last Scan
	scanErr       error
	timeoutReason string
	quitting      bool
	ended         bool

	endingSessions  []string // ended once the devices are withdrawn
	pendingDisables []uint64 // calls that wait for the withdrawal
	published       *Status
}

type holder struct {
	Claim
	session string
	lost    bool // the hold time runs
}

// New returns a Gate that offers nothing yet.
func New(cfg Config) *Gate {
	if cfg.WithdrawTimeout == 0 {
		cfg.WithdrawTimeout = 10 * time.Second
	}
	return &Gate{machine: machine{timers: map[Timer]time.Time{}}, cfg: cfg, resources: map[string]Report{}}
}

// Step handles an event and returns the actions to run, in order.
func (g *Gate) Step(at time.Time, event Event) []Action {
	g.begin(at)
	g.expireTimers()
	event.apply(g)
	g.finish()
	g.publish()
	g.exit()
	return g.out
}

func (g *Gate) shouldOffer() bool { return !g.quitting && (!g.cfg.Controlled || g.holder != nil) }

func (g *Gate) live() *holder {
	if g.holder == nil || g.holder.lost {
		return nil
	}
	return g.holder
}

func (e Configured) apply(g *Gate) {
	changed := g.configured != nil && e.Hash != g.hash
	g.hash, g.configured = e.Hash, map[string]bool{}
	for _, name := range e.Resources {
		g.configured[name] = true
		if _, known := g.resources[name]; !known {
			g.add(name)
		}
	}
	for _, name := range g.names() {
		if !g.configured[name] {
			g.do(Forward{Resource: name, Event: Shutdown{Epoch: g.epoch}})
		}
	}
	// A claim for another configuration does not hold under this one.
	if h := g.holder; h != nil && changed && h.Hash != "" && h.Hash != g.hash {
		if !h.lost {
			g.end(h.session, codes.Aborted, "the plugin's configuration changed; call EnableDevices again with its new hash")
		}
		g.holder = nil
		g.close()
	}
	if g.shouldOffer() {
		g.rescan()
	}
}

func (g *Gate) rescan() {
	g.scan++
	g.scanned, g.scanErr = false, nil
	delete(g.timers, TimerScan)
	g.do(Scan{Seq: g.scan})
}

func (e Scanned) apply(g *Gate) {
	if e.Seq != g.scan || g.scanned {
		return
	}
	if g.scanErr = e.Err; e.Err != nil {
		if g.shouldOffer() {
			g.set(TimerScan, g.now.Add(ScanRetryDelay))
		}
		return
	}
	g.scanned = true
	if !g.shouldOffer() {
		return
	}
	if h := g.holder; h != nil {
		g.restrict(h.Closed)
	}
	if g.open {
		return
	}
	g.open = true
	g.epoch++
	g.timeoutReason = ""
	delete(g.timers, TimerWithdraw)
	for _, name := range g.names() {
		g.do(Forward{Resource: name, Event: Open{Epoch: g.epoch}})
	}
}

// restrict withdraws the devices of the functions, and no others.
func (g *Gate) restrict(closed Closed) {
	if maps.Equal(closed, g.closed) {
		return
	}
	g.restriction, g.closed = g.restriction+1, closed
	for _, name := range g.names() {
		g.do(Forward{Resource: name, Event: Restrict{Seq: g.restriction, Closed: closed}})
	}
}

func (g *Gate) add(name string) {
	g.resources[name] = Report{Phase: Idle, Epoch: g.epoch}
	if g.restriction > 0 {
		g.do(Forward{Resource: name, Event: Restrict{Seq: g.restriction, Closed: g.closed}})
	}
	if g.open {
		g.do(Forward{Resource: name, Event: Open{Epoch: g.epoch}})
	}
}

// A resource removed from the configuration is deleted once stopped, and
// recreated if it has returned.
func (e Reported) apply(g *Gate) {
	if _, known := g.resources[e.Resource]; !known {
		return
	}
	g.resources[e.Resource] = e.Report
	if e.Report.Phase != Stopped || g.quitting {
		return
	}
	delete(g.resources, e.Resource)
	if g.configured[e.Resource] {
		g.add(e.Resource)
		g.rescan()
	}
}

// expireTimers does not need the timers to be on time.
func (g *Gate) expireTimers() {
	if g.due(TimerLease) {
		g.leaseExpired()
	}
	if g.due(TimerHold) {
		g.holder = nil
		g.close()
	}
}

func (e Expired) apply(g *Gate) {
	if !g.expired(e.Timer) {
		return
	}
	switch e.Timer {
	case TimerWithdraw:
		g.withdrawTimedOut()
	case TimerScan:
		if g.shouldOffer() {
			last := g.scanErr
			g.rescan()
			g.scanErr = last // until the result: the state stays ERROR
		}
	}
}

func (g *Gate) names() []string { return slices.Sorted(maps.Keys(g.resources)) }

func (g *Gate) end(session string, code codes.Code, reason string) {
	g.do(EndStream{Session: session, Code: code, Reason: reason})
}

func (g *Gate) publish() {
	if s := g.Status(); g.published == nil || !reflect.DeepEqual(s, *g.published) {
		g.published = &s
		g.do(Publish{Status: s})
	}
}

// Status returns the plugin's status.
func (g *Gate) Status() Status {
	s := Status{Holding: Waiting, Hash: g.hash, Resources: maps.Clone(g.resources)}
	if h := g.holder; h != nil {
		s.Holding, s.LeaseEnds, s.HoldEnds = Live, g.timers[TimerLease], g.timers[TimerHold]
		s.Generation, s.UID, s.Node = h.Generation, h.UID, h.Node
		s.Closed, s.Withdrawn = h.Closed, g.restricted(h.Closed)
		if h.lost {
			s.Holding = Lost
		}
	}
	if !g.cfg.Controlled {
		s.Holding = NotControlled
	}
	var failures []string
	failing := map[string][]string{} // by error
	for _, name := range g.names() {
		r := g.resources[name]
		if r.Phase == Offered {
			s.Pools++
			s.Devices += r.Offered
		}
		if g.open && g.configured[name] && r.Error != "" {
			failing[r.Error] = append(failing[r.Error], name)
		}
	}
	for err, names := range failing {
		failures = append(failures, strings.Join(names, ", ")+": "+err)
	}
	slices.Sort(failures)
	switch {
	case g.scanErr != nil:
		s.Error = g.scanErr.Error()
	case g.timeoutReason != "":
		s.Error = g.timeoutReason
	default:
		s.Error = strings.Join(failures, "; ")
	}
	switch {
	case s.Error != "":
		s.State = Failed
	case g.quitting || (!g.open && g.unfinished() != ""):
		s.State = Stopping
	case g.open && !g.opening():
		s.State = Serving
	default:
		s.State = Initializing
	}
	return s
}

// restricted reports whether the devices of the functions are withdrawn.
func (g *Gate) restricted(closed Closed) bool {
	if len(closed) == 0 || !closed.within(g.closed) || !g.scanned {
		return false // before the scan, a device might be another function's
	}
	for _, r := range g.resources {
		if r.Restriction != g.restriction && r.Phase != Stopped {
			return false
		}
	}
	return true
}

func (g *Gate) opening() bool {
	for name := range g.configured {
		if r := g.resources[name]; r.Epoch != g.epoch || (r.Devices > 0 && !r.Streaming) {
			return true
		}
	}
	return false
}
