// Package plugin creates devices in the SNAP process, records them, and removes
// them.
//
// Operations on one volume are serialised (internal/op), and so are those on a
// shared object. Every request to SNAP is recorded before it is sent: after a
// crash Run removes unfinished devices, or a retry creates them again. Only
// devices recorded as created are returned. Whether SNAP still holds a device
// is always read from SNAP.
package plugin

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/spdk"
)

// Config configures a Plugin. Table, RPC and Objects are required.
type Config struct {
	Table    *table.Table
	RPC      *spdk.Client
	Objects  *object.Manager // of the same process as RPC
	Settings plan.Settings

	// AnswerWithin bounds CreateDevice and DeleteDevice: the node driver has
	// one worker and no deadline. A longer operation continues, and the next
	// call joins it. 0 is 25 s.
	AnswerWithin time.Duration
	LookWithin   time.Duration // timeout for SNAP of all other calls; 0 is 5 s
	Grace        time.Duration // how long GetDevice repeats its last result; 0 is 30 s
	RetryEvery   time.Duration // between attempts to remove left-over objects; 0 is 1 s

	// Now is the clock for deadlines of unanswered calls; nil: time.Now.
	Now func() time.Time

	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Plugin is safe for concurrent use.
type Plugin struct {
	config  Config
	table   *table.Table
	rpc     *spdk.Client
	objects *object.Manager
	log     *slog.Logger
	ops     *op.Operations
	locks   op.Locks // by object
	stale   prometheus.Counter
	closing context.Context
	close   context.CancelFunc

	wakeCleanup, wakePaths chan struct{}

	cleanedUp atomic.Bool // or readyAfter has passed

	mu      sync.Mutex
	process string              // of the last known SNAP
	offer   *Offer              // nil: not known
	held    map[string]lastHeld // by volume
	left    map[string]error    // volumes with a device to remove, and the last error
	stuck   map[plan.ID]error   // unused objects, and the last error
}

type lastHeld struct {
	process string
	at      time.Time
}

func New(c Config) (*Plugin, error) {
	if c.Table == nil || c.RPC == nil || c.Objects == nil {
		return nil, errors.New("no Table, RPC or Objects in the configuration")
	}
	for at, value := range map[*time.Duration]time.Duration{
		&c.AnswerWithin: 25 * time.Second, &c.LookWithin: 5 * time.Second, &c.Grace: 30 * time.Second,
		&c.RetryEvery: time.Second,
	} {
		if *at < 0 {
			return nil, errs.Errorf(errs.Invalid, "negative duration %s", *at)
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
		wakeCleanup: make(chan struct{}, 1), wakePaths: make(chan struct{}, 1),
		held: map[string]lastHeld{}, left: map[string]error{}, stuck: map[plan.ID]error{},
	}
	p.closing, p.close = context.WithCancel(context.Background())
	if err := p.register(c.Metrics); err != nil {
		return nil, err
	}
	unfinished, _ := p.table.List("", math.MaxInt, func(d table.Device) bool { return d.Phase != table.Ready })
	for _, d := range unfinished {
		p.left[d.Volume] = errInterrupted
	}
	p.ops = op.New(context.Background(), busyAfter, op.OnPanic(func(ctx context.Context, e *op.PanicError) {
		p.log.ErrorContext(ctx, "operation panicked", "err", e)
	}))
	return p, nil
}

const busyAfter = 3 * time.Second

var errInterrupted = errors.New("interrupted by the end of the plugin")

// Close ends Run, refuses new calls, cancels in-flight calls and waits for
// them. The next start removes their unfinished work, which is on record.
func (p *Plugin) Close(ctx context.Context) error {
	p.close()
	return p.ops.Close(ctx)
}

// volumeKey is the key of operations on a volume, whose id can have a colon.
func volumeKey(id string) string { return "volume:" + id }

// bounded waits AnswerWithin for the result of an operation.
func (p *Plugin) bounded(ctx context.Context, r op.Request, fn func(context.Context) (string, error)) (string, error) {
	waiting, cancel := context.WithTimeout(ctx, p.config.AnswerWithin)
	defer cancel()
	name, err := op.Do(waiting, p.ops, r, fn)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return "", errs.Errorf(errs.Busy, "%s of volume %s is still in progress after %s: retry", r.What, strings.TrimPrefix(r.Keys[0], volumeKey("")), p.config.AnswerWithin)
	}
	return name, err
}

// lock locks objects. SPDK treats two controllers of one subsystem as one
// object.
func (p *Plugin) lock(ctx context.Context, objects ...plan.Object) (unlock func(), err error) {
	var keys []string
	for _, o := range objects {
		keys = append(keys, o.ID.String())
		if o.Controller != nil {
			keys = append(keys, "subsystem "+o.Controller.SubNQN)
		}
	}
	return p.locks.Lock(ctx, keys...)
}

// current returns the identity of the SNAP process.
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

var (
	// ErrNotFound: SNAP holds no device of that name for the volume.
	ErrNotFound = errors.New("device not found")
	// ErrUnsupported: the SNAP process does not support the volume mode.
	ErrUnsupported = errors.New("not supported by this SNAP process")
)

// Offer is the set of volume modes that the SNAP process supports.
type Offer struct {
	Block      bool `json:"block"`
	Filesystem bool `json:"filesystem"`
}
