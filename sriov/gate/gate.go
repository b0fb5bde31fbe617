package gate

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// ScanPause is the time between a scan that failed and the next.
const ScanPause = time.Second

// Config configures a Gate.
type Config struct {
	// Controlled: nothing is offered without a holder. Otherwise everything is,
	// always.
	Controlled bool
	// Bound is how long a withdrawal should take at most; callers that wait for it
	// get an answer then. 0 is 10 s.
	Bound time.Duration
}

// Gate is the state machine of the plugin as a whole: who holds the devices, and
// whether they can be offered. One goroutine owns it.
type Gate struct {
	machine
	cfg Config

	hash       string
	configured map[string]bool   // names of the resources; nil before the first Configured
	resources  map[string]Report // those, and others that have not stopped yet

	holder *holder

	open     bool   // the resources got Open
	epoch    uint64 // of the last opening or closing
	scan     uint64 // number of the last Scan
	scanned  bool   // it succeeded
	scanErr  error
	overdue  string // what a withdrawal waited for when its bound passed
	quitting bool
	ended    bool

	leaving   []string // sessions whose stream ends when everything is withdrawn
	pending   []uint64 // calls of Disable
	published *Status
}

// holder is a claim that was accepted.
type holder struct {
	Claim
	session string
	lost    bool // the stream has ended, and the hold time runs
}

// New returns the machine of a plugin that offers nothing yet.
func New(cfg Config) *Gate {
	if cfg.Bound == 0 {
		cfg.Bound = 10 * time.Second
	}
	return &Gate{machine: machine{timers: map[Timer]time.Time{}}, cfg: cfg, resources: map[string]Report{}}
}

// Step handles an event and returns what is to be done, in that order.
func (g *Gate) Step(at time.Time, event Event) []Action {
	g.begin(at)
	g.elapse()
	event.apply(g)
	g.finish()
	g.publish()
	g.exit()
	return g.out
}

// wanted reports whether the devices should be offered.
func (g *Gate) wanted() bool { return !g.quitting && (!g.cfg.Controlled || g.holder != nil) }

// live returns the holder if its stream is open.
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
			g.do(To{Resource: name, Event: Shutdown{Epoch: g.epoch}})
		}
	}
	// A claim for another configuration is no claim for this one.
	if h := g.holder; h != nil && changed && h.Hash != "" && h.Hash != g.hash {
		if !h.lost {
			g.end(h.session, codes.Aborted, "the configuration of the plugin changed; enable again with its hash")
		}
		g.holder = nil
		g.close()
	}
	if g.wanted() {
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
		if g.wanted() {
			g.set(TimerScan, g.now.Add(ScanPause))
		}
		return
	}
	g.scanned = true
	if !g.wanted() || g.open {
		return
	}
	g.open = true
	g.epoch++
	g.overdue = ""
	delete(g.timers, TimerBound)
	for _, name := range g.names() {
		g.do(To{Resource: name, Event: Open{Epoch: g.epoch}})
	}
}

// add adds a resource, which is as open as the others.
func (g *Gate) add(name string) {
	g.resources[name] = Report{Phase: Idle, Epoch: g.epoch}
	if g.open {
		g.do(To{Resource: name, Event: Open{Epoch: g.epoch}})
	}
}

// apply stores the report. A resource removed from the configuration is deleted
// once stopped, and added again if it has returned meanwhile.
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

// elapse ends a lease or a hold time that is over, even if its timer is late.
func (g *Gate) elapse() {
	if g.due(TimerLease) {
		g.leaseOver()
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
	case TimerBound:
		g.bound()
	case TimerScan:
		if g.wanted() {
			g.rescan()
		}
	}
}

func (g *Gate) names() []string { return slices.Sorted(maps.Keys(g.resources)) }

func (g *Gate) end(session string, code codes.Code, reason string) {
	g.do(End{Session: session, Code: code, Reason: reason})
}

func (g *Gate) publish() {
	if s := g.Status(); g.published == nil || !reflect.DeepEqual(s, *g.published) {
		g.published = &s
		g.do(Publish{Status: s})
	}
}

// Status returns the status of the plugin.
func (g *Gate) Status() Status {
	s := Status{Holding: Waiting, Hash: g.hash, Resources: maps.Clone(g.resources)}
	if h := g.holder; h != nil {
		s.Holding, s.LeaseEnds, s.HoldEnds = Live, g.timers[TimerLease], g.timers[TimerHold]
		s.Generation, s.UID, s.Node = h.Generation, h.UID, h.Node
		if h.lost {
			s.Holding = Lost
		}
	}
	if !g.cfg.Controlled {
		s.Holding = NotControlled
	}
	var failures []string
	for _, name := range g.names() {
		r := g.resources[name]
		if r.Phase == Offered {
			s.Pools++
			s.Devices += r.Offered
		}
		if g.open && g.configured[name] && r.Error != "" {
			failures = append(failures, name+": "+r.Error)
		}
	}
	switch {
	case g.scanErr != nil:
		s.Error = g.scanErr.Error()
	case g.overdue != "":
		s.Error = g.overdue
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

// opening reports whether the kubelet does not have everything yet.
func (g *Gate) opening() bool {
	for name := range g.configured {
		if r := g.resources[name]; r.Epoch != g.epoch || (r.Devices > 0 && !r.Streaming) {
			return true
		}
	}
	return false
}
