package gate

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// ScanPause lies between a scan that failed and the next.
const ScanPause = time.Second

// Config is what a Control is made with.
type Config struct {
	// Controlled: nothing is offered unless somebody answers for it. Else
	// everything is, always.
	Controlled bool
	// Bound is how long a withdrawal should take at most; what waits for it is
	// told then. 0 is 10 s.
	Bound time.Duration
}

// Control is the state machine of the plugin as a whole: who answers for the
// devices, and whether they may be offered. It is not safe for concurrent use:
// one goroutine owns it.
type Control struct {
	cfg    Config
	now    time.Time
	timers timers
	out    []ControlAction

	hash       string
	configured map[string]bool   // names of the resources; nil before the first Configured
	resources  map[string]Report // those, and others that have not stopped yet

	holder *Claim // with a live stream
	lost   *Claim // whose hold time runs

	open     bool   // the resources were told to open
	epoch    uint64 // of the last opening or closing
	scan     uint64 // last one asked for
	scanned  bool   // it was good
	scanErr  error
	overdue  string // what a withdrawal waited for when its bound passed
	quitting bool
	ended    bool

	leaving []string // sessions whose stream ends when all is withdrawn
	pending []uint64 // calls of Disable
	told    Status
}

// NewControl returns the machine of a plugin that offers nothing yet.
func NewControl(cfg Config) *Control {
	if cfg.Bound == 0 {
		cfg.Bound = 10 * time.Second
	}
	return &Control{cfg: cfg, timers: timers{}, resources: map[string]Report{}}
}

// Step tells the machine what happened at a moment, and returns what is to be
// done, in that order. A moment before the last one counts as the last one.
func (c *Control) Step(at time.Time, event ControlEvent) []ControlAction {
	if at.After(c.now) {
		c.now = at
	}
	c.out = nil
	c.elapse()
	switch e := event.(type) {
	case Enable:
		c.enable(e.Claim)
	case Closed:
		c.closed(e.Session)
	case Heartbeat:
		c.heartbeat(e)
	case Disable:
		c.disable(e)
	case DisableGone:
		c.pending = slices.DeleteFunc(c.pending, func(id uint64) bool { return id == e.Call })
	case Configured:
		c.configure(e)
	case Scanned:
		c.scanDone(e)
	case Told:
		c.hear(e)
	case Expired:
		c.expired(e.Timer)
	case Quit:
		c.quit()
	}
	c.finish()
	c.publish()
	c.exit()
	return c.out
}

// wanted reports whether somebody answers for the devices, or nobody needs to.
func (c *Control) wanted() bool {
	return !c.quitting && (!c.cfg.Controlled || c.holder != nil || c.lost != nil)
}

func (c *Control) configure(e Configured) {
	changed := c.configured != nil && e.Hash != c.hash
	c.hash, c.configured = e.Hash, map[string]bool{}
	for _, name := range e.Resources {
		c.configured[name] = true
		if _, known := c.resources[name]; !known {
			c.begin(name)
		}
	}
	for _, name := range c.names() {
		if !c.configured[name] {
			c.do(To{Resource: name, Event: Shutdown{Epoch: c.epoch}})
		}
	}
	// Who said that another configuration is ready does not answer for this one.
	const reason = "the configuration of the plugin changed; enable again with its hash"
	if h := c.holder; h != nil && changed && h.Hash != "" && h.Hash != c.hash {
		c.holder = nil
		c.end(h.Session, codes.Aborted, reason)
		c.close()
	}
	if l := c.lost; l != nil && changed && l.Hash != "" && l.Hash != c.hash {
		c.lost = nil
		c.close()
	}
	if c.wanted() {
		c.rescan()
	}
}

func (c *Control) rescan() {
	c.scan++
	c.scanned, c.scanErr = false, nil
	delete(c.timers, TimerScan)
	c.do(Scan{Seq: c.scan})
}

func (c *Control) scanDone(e Scanned) {
	if e.Seq != c.scan || c.scanned {
		return
	}
	if c.scanErr = e.Err; e.Err != nil {
		if c.wanted() {
			c.set(TimerScan, c.now.Add(ScanPause))
		}
		return
	}
	c.scanned = true
	if !c.wanted() || c.open {
		return
	}
	c.open = true
	c.epoch++
	c.overdue = ""
	delete(c.timers, TimerBound)
	for _, name := range c.names() {
		c.do(To{Resource: name, Event: Open{Epoch: c.epoch}})
	}
}

// begin adds a resource, which is as open as the others.
func (c *Control) begin(name string) {
	c.resources[name] = Report{Phase: Idle, Epoch: c.epoch}
	if c.open {
		c.do(To{Resource: name, Event: Open{Epoch: c.epoch}})
	}
}

// hear takes a resource's word. One that left the configuration is forgotten
// when it has stopped, and begins anew if it came back meanwhile.
func (c *Control) hear(e Told) {
	if _, known := c.resources[e.Resource]; !known {
		return
	}
	c.resources[e.Resource] = e.Report
	if e.Report.Phase != Stopped || c.quitting {
		return
	}
	delete(c.resources, e.Resource)
	if c.configured[e.Resource] {
		c.begin(e.Resource)
		c.rescan()
	}
}

// elapse ends what has run out, though its timer may be late: a lease that is
// over protects nobody.
func (c *Control) elapse() {
	if c.timers.due(TimerLease, c.now) {
		c.leaseOver()
	}
	if c.timers.due(TimerHold, c.now) {
		c.lost = nil
		c.close()
	}
}

func (c *Control) expired(name Timer) {
	if at, armed := c.timers[name]; armed && c.now.Before(at) {
		c.set(name, at) // it came early
		return
	}
	if !c.timers.due(name, c.now) {
		return
	}
	switch name {
	case TimerBound:
		c.bound()
	case TimerScan:
		if c.wanted() {
			c.rescan()
		}
	}
}

func (c *Control) names() []string { return slices.Sorted(maps.Keys(c.resources)) }

func (c *Control) do(a ControlAction) { c.out = append(c.out, a) }

func (c *Control) set(name Timer, at time.Time) {
	c.timers[name] = at
	c.do(Set{Timer: name, At: at})
}

func (c *Control) end(session string, code codes.Code, reason string) {
	c.do(End{Session: session, Code: code, Reason: reason})
}

func (c *Control) publish() {
	if s := c.Status(); !reflect.DeepEqual(s, c.told) {
		c.told = s
		c.do(Publish{Status: s})
	}
}

// Status tells how the plugin is.
func (c *Control) Status() Status {
	s := Status{Holding: Waiting, Hash: c.hash, Error: c.overdue, Resources: maps.Clone(c.resources)}
	who := c.holder
	switch {
	case !c.cfg.Controlled:
		s.Holding = NotControlled
	case who != nil:
		s.Holding = Live
		s.LeaseEnds = c.timers[TimerLease]
	case c.lost != nil:
		who, s.Holding = c.lost, Lost
		s.HoldEnds = c.timers[TimerHold]
	}
	if who != nil {
		s.Generation, s.UID, s.Node = who.Generation, who.UID, who.Node
	}
	var wrong []string
	for _, name := range c.names() {
		r := c.resources[name]
		if r.Phase == Offered {
			s.Pools++
			s.Devices += r.Offered
		}
		if c.open && c.configured[name] && r.Error != "" {
			wrong = append(wrong, name+": "+r.Error)
		}
	}
	switch {
	case c.scanErr != nil:
		s.Error = c.scanErr.Error()
	case s.Error == "":
		s.Error = strings.Join(wrong, "; ")
	}
	switch {
	case s.Error != "":
		s.State = Failed
	case c.quitting || (!c.open && c.unfinished() != ""):
		s.State = Stopping
	case c.open && !c.opening():
		s.State = Serving
	default:
		s.State = Initializing
	}
	return s
}

// opening reports whether the kubelet does not have everything yet.
func (c *Control) opening() bool {
	for name := range c.configured {
		if r := c.resources[name]; r.Epoch != c.epoch || (r.Devices > 0 && !r.Streaming) {
			return true
		}
	}
	return false
}
