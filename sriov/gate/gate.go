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

// Driver does the I/O of a Gate. A method starts the work and returns: it neither
// blocks nor calls the Gate, which gets the result later.
type Driver interface {
	// Scan reads the devices of the node; Scanned answers it.
	Scan(seq uint64)
	// Register makes sure that the socket is served, without stopping a server, and
	// registers it with the kubelet: by a Register call, or in the plugin watcher's
	// directory. Registered answers it, also after a failure.
	Register(resource string)
	// Confirm queries the kubelet's PodResources for allocatable devices; nil: all of
	// the resource. Confirmed answers it.
	Confirm(resource string, query uint64, devices []string)
	// Stop ends the server; Released answers it.
	Stop(resource string)
}

// Gate is the state machine of the plugin. It is not safe for concurrent use.
type Gate struct {
	now    time.Time
	timers timers
	cfg    Config
	driver Driver

	hash       string
	configured map[string]bool      // nil before the first Configure
	resources  map[string]*resource // configured resources, and removed ones until they stop

	holder *Session
	lost   bool // the stream of the holder: the hold time runs

	open          bool   // the resources
	closed        Closed // functions of the resources
	scan          uint64 // last
	scanned       bool   // by the last scan
	scanErr       error
	timeoutReason string
	quitting      bool

	ending    []*Session   // streams that end once the devices are withdrawn
	disabling []*Disabling // calls that wait for the withdrawal
	status    *Status
}

// New returns a Gate that offers nothing yet.
func New(cfg Config, driver Driver) *Gate {
	if cfg.WithdrawTimeout == 0 {
		cfg.WithdrawTimeout = 10 * time.Second
	}
	g := &Gate{timers: timers{}, cfg: cfg, driver: driver, resources: map[string]*resource{}}
	g.publish()
	return g
}

// step handles an event. Time never goes backwards.
func (g *Gate) step(now time.Time, event func()) {
	g.now = latest(g.now, now)
	for _, r := range g.resources {
		r.now = g.now
	}
	g.expireTimers()
	event()
	for _, name := range g.names() {
		g.resources[name].advance()
	}
	g.finish()
	g.publish()
}

// on handles an event of a resource, unless it has stopped.
func (g *Gate) on(now time.Time, name string, event func(*resource)) {
	g.step(now, func() {
		if r := g.resources[name]; r != nil && r.phase != Stopped {
			event(r)
		}
	})
}

// Tick handles the deadlines that have passed. It can be called at any time, and
// has to be called at Next.
func (g *Gate) Tick(now time.Time) { g.step(now, func() {}) }

// Next returns the next deadline; zero: none.
func (g *Gate) Next() time.Time {
	next := g.timers.next(time.Time{})
	for _, r := range g.resources {
		next = r.timers.next(next)
	}
	return next
}

func (g *Gate) expireTimers() {
	if g.timers.due(TimerLease, g.now) {
		g.leaseExpired()
	}
	if g.timers.due(TimerHold, g.now) {
		g.close()
	}
	if g.timers.due(TimerWithdraw, g.now) {
		g.withdrawTimedOut()
	}
	if g.timers.due(TimerScan, g.now) && g.shouldOffer() {
		last := g.scanErr
		g.rescan()
		g.scanErr = last // until the result: the state stays ERROR
	}
}

func (g *Gate) shouldOffer() bool { return !g.quitting && (!g.cfg.Controlled || g.holder != nil) }

// Configure sets the configuration of the resources; it is the first event.
func (g *Gate) Configure(now time.Time, hash string, resources []string) {
	g.step(now, func() {
		changed := g.configured != nil && hash != g.hash
		g.hash, g.configured = hash, map[string]bool{}
		for _, name := range resources {
			g.configured[name] = true
			if g.resources[name] == nil {
				g.add(name)
			}
		}
		for name, r := range g.resources {
			if !g.configured[name] {
				r.shutdown()
			}
		}
		// A claim for another configuration does not hold under this one.
		if h := g.holder; h != nil && changed && h.Hash != "" && h.Hash != g.hash {
			h.end(codes.Aborted, "the plugin's configuration changed; call EnableDevices again with its new hash")
			g.close()
		}
		if g.shouldOffer() {
			g.rescan()
		}
	})
}

func (g *Gate) add(name string) {
	r := newResource(name, g.driver)
	r.now, r.closed = g.now, g.closed
	if g.open {
		r.open()
	}
	g.resources[name] = r
}

func (g *Gate) rescan() {
	g.scan++
	g.scanned, g.scanErr = false, nil
	delete(g.timers, TimerScan)
	g.driver.Scan(g.scan)
}

// Scanned has the existing devices of each resource, with unique ids, or the error
// of a scan. Seq is that of the last Scan when the scan began.
func (g *Gate) Scanned(now time.Time, seq uint64, devices map[string][]Device, err error) {
	g.step(now, func() {
		if err == nil {
			for name, r := range g.resources {
				if of, scanned := devices[name]; scanned {
					r.setDevices(of)
				}
			}
		}
		if seq != g.scan || g.scanned {
			return
		}
		if g.scanErr = err; err != nil {
			if g.shouldOffer() {
				g.timers[TimerScan] = g.now.Add(ScanRetryDelay)
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
		g.open, g.timeoutReason = true, ""
		delete(g.timers, TimerWithdraw)
		for _, r := range g.resources {
			r.open()
		}
	})
}

// restrict withdraws the devices of the functions, and no others.
func (g *Gate) restrict(closed Closed) {
	if maps.Equal(closed, g.closed) {
		return
	}
	g.closed = closed
	for _, r := range g.resources {
		r.restrict(closed)
	}
}

// Released reports that a stopped resource's socket and registration are gone. If
// the resource has returned to the configuration, it is created again.
func (g *Gate) Released(now time.Time, name string) {
	g.step(now, func() {
		if r := g.resources[name]; r == nil || g.quitting {
			if r != nil {
				r.released = true
			}
			return
		}
		delete(g.resources, name)
		if g.configured[name] {
			g.add(name)
			g.rescan()
		}
	})
}

func (g *Gate) names() []string { return slices.Sorted(maps.Keys(g.resources)) }

func (g *Gate) publish() {
	if s := g.newStatus(); g.status == nil || !reflect.DeepEqual(s, *g.status) {
		g.status = &s
	}
}

// Status returns the status, which must not be modified: each change has another.
func (g *Gate) Status() *Status { return g.status }

func (g *Gate) newStatus() Status {
	s := Status{Holding: Waiting, Hash: g.hash, Resources: map[string]Report{}}
	if h := g.holder; h != nil {
		s.Holding, s.LeaseEnds, s.HoldEnds = Live, g.timers[TimerLease], g.timers[TimerHold]
		s.Generation, s.UID, s.Node = h.Generation, h.UID, h.Node
		s.Closed, s.Withdrawn = h.Closed, g.restricted(h.Closed)
		if g.lost {
			s.Holding = Lost
		}
	}
	if !g.cfg.Controlled {
		s.Holding = NotControlled
	}
	opening := false
	failing := map[string][]string{} // by error
	for _, name := range g.names() {
		r := g.resources[name].report()
		s.Resources[name] = r
		if r.Phase == Offered {
			s.Pools++
			s.Devices += r.Offered
		}
		if g.open && g.configured[name] {
			opening = opening || r.Phase != Offered || r.Devices > 0 && !r.Streaming
			if r.Error != "" {
				failing[r.Error] = append(failing[r.Error], name)
			}
		}
	}
	var failures []string
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
	case g.open && !opening:
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
		if !r.acknowledged && r.phase != Stopped {
			return false
		}
	}
	return true
}
