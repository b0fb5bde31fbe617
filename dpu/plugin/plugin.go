// Package plugin is the storage vendor's plugin itself: it makes devices in the
// SNAP process, remembers them, and takes them back.
//
// One operation at a time works on a volume (internal/op), and one on an object
// that volumes share. The record comes first: whatever is asked of SNAP is on
// disk before, so that after a crash the keeper (Run) finds what was begun and
// takes it back, or a retry makes it anew. Only what is recorded as made is
// ever answered. What SNAP holds now is asked of SNAP.
package plugin

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/spdk"
)

// Config says what a Plugin works with. Table, RPC and Objects are needed.
type Config struct {
	Table    *table.Table
	RPC      *spdk.Client
	Objects  *object.Maker // of the same process as RPC
	Settings plan.Settings

	// AnswerWithin bounds a CreateDevice and a DeleteDevice: the node driver
	// has no deadline of its own, and one worker. What takes longer goes on,
	// and the next call joins it. 0 is 25 s.
	AnswerWithin time.Duration
	// LookWithin bounds what GetDevice asks of SNAP. 0 is 5 s.
	LookWithin time.Duration
	// Grace is how long GetDevice gives the last good answer while SNAP is
	// slow. 0 is 30 s.
	Grace time.Duration
	// BusyAfter is how long a call waits for another one on its volume. 0 is 3 s.
	BusyAfter time.Duration
	// KeepEvery is how often the keeper looks after what is not as it should
	// be. 0 is 1 s.
	KeepEvery time.Duration
	// Now is the clock that bounds calls without an answer; nil: time.Now.
	Now func() time.Time

	Logger  *slog.Logger          // nil: no log
	Metrics prometheus.Registerer // nil: none
}

// Plugin may be used by several goroutines.
type Plugin struct {
	config  Config
	table   *table.Table
	rpc     *spdk.Client
	objects *object.Maker
	log     *slog.Logger
	ops     *op.Operations
	locks   op.Locks // by object
	metrics *metrics
	wake    chan struct{} // of the keeper
	// unmended wakes whoever attaches missing paths.
	unmended chan struct{}
	closing  context.Context
	close    context.CancelFunc

	mu      sync.Mutex
	process string              // identity of the SNAP process that was met last
	offer   *Offer              // what it was found to be able to; nil: not known
	good    map[string]lastGood // by volume
	left    map[string]error    // volumes whose device is to be taken back, and why it was not yet
	stuck   map[plan.ID]error   // objects that no device needs, and why they are still there
	begun   bool                // what the start found was worked off once
}

// lastGood is when SNAP was last seen to hold a device.
type lastGood struct {
	process string
	at      time.Time
}

// New makes a Plugin. What the table holds unfinished is left to Run.
func New(c Config) (*Plugin, error) {
	if c.Table == nil || c.RPC == nil || c.Objects == nil {
		return nil, errors.New("a plugin needs a table, a client of SNAP and a maker of objects")
	}
	for at, value := range map[*time.Duration]time.Duration{
		&c.AnswerWithin: 25 * time.Second, &c.LookWithin: 5 * time.Second, &c.Grace: 30 * time.Second,
		&c.BusyAfter: 3 * time.Second, &c.KeepEvery: time.Second,
	} {
		if *at < 0 {
			return nil, errs.Errorf(errs.Invalid, "a time of %s is not possible", *at)
		}
		if *at == 0 {
			*at = value
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Plugin{
		config: c, table: c.Table, rpc: c.RPC, objects: c.Objects, log: c.Logger,
		wake: make(chan struct{}, 1), unmended: make(chan struct{}, 1), good: map[string]lastGood{}, left: map[string]error{}, stuck: map[plan.ID]error{},
	}
	p.closing, p.close = context.WithCancel(context.Background())
	var err error
	if p.metrics, err = newMetrics(c.Metrics, p); err != nil {
		return nil, err
	}
	unfinished, _ := p.table.List("", int(^uint(0)>>1), func(d table.Device) bool { return d.Phase != table.Made })
	for _, d := range unfinished {
		p.left[d.Volume] = errInterrupted
	}
	p.ops = op.New(context.Background(), c.BusyAfter, op.OnPanic(func(ctx context.Context, e *op.PanicError) {
		p.log.ErrorContext(ctx, "An operation panicked", "error", e)
	}))
	return p, nil
}

var errInterrupted = errors.New("the plugin ended before it was done")

// Close ends Run, takes no more calls, cancels the running ones and waits for
// their end. What they began is on record; the next start takes it back.
func (p *Plugin) Close(ctx context.Context) error {
	p.close()
	return p.ops.Close(ctx)
}

// bounded runs an operation on a volume, and waits for it for AnswerWithin.
func (p *Plugin) bounded(ctx context.Context, r op.Request, fn func(context.Context) (string, error)) (string, error) {
	waiting, cancel := context.WithTimeout(ctx, p.config.AnswerWithin)
	defer cancel()
	name, err := op.Do(waiting, p.ops, r, fn)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return "", errs.Errorf(errs.Busy, "%s of volume %s is not done after %s; it goes on: ask again", r.What, r.Keys[0], p.config.AnswerWithin)
	}
	return name, err
}

// lockKeys are those of objects, so that what is shared changes once at a time.
// Two controllers to one subsystem are one to SPDK.
func lockKeys(objects []plan.Object) []string {
	var keys []string
	for _, o := range objects {
		keys = append(keys, o.ID.String())
		if o.Controller != nil {
			keys = append(keys, "subsystem "+o.Controller.SubNQN)
		}
	}
	return keys
}

// current returns which SNAP process is there.
func (p *Plugin) current(ctx context.Context) (string, error) {
	process, err := p.rpc.Process(ctx)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = process.Identity
	return process.Identity, nil
}

// nudge lets the keeper look at once.
func (p *Plugin) nudge() { wakeUp(p.wake) }

func wakeUp(who chan<- struct{}) {
	select {
	case who <- struct{}{}:
	default: // it is being woken
	}
}

var (
	// ErrAbsent: SNAP holds no device of that name for the volume.
	ErrAbsent = errors.New("there is no such device")
	// ErrUnserved: the SNAP process does not support the volume mode.
	ErrUnserved = errors.New("this SNAP process cannot serve it")
)

// Offer has the volume modes that the SNAP process supports.
type Offer struct {
	Block      bool `json:"block"`
	Filesystem bool `json:"filesystem"`
}
