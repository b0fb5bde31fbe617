package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Config says what a Manager works with. Attachers, by the protocol of their
// locators, and Store, the path of its database, are needed; what else is nil
// or zero is not offered or has a default.
type Config struct {
	Store string
	// Private are the directories of the driver itself, such as the pool; no
	// volume is staged or published in or over one.
	Private    []string
	Attachers  map[string]Attacher
	Ephemerals Ephemerals
	Grower     Grower
	Health     volume.Health
	// Locate finds the locator of a volume whose request holds none.
	Locate func(ctx context.Context, id volume.ID) (access.Access, error)
	Logger *slog.Logger
	// Boot identifies this boot of the machine; empty: the kernel is asked.
	Boot string
	// TrimCheck is how often Run looks for volumes whose time has come to be
	// trimmed; zero: every minute.
	TrimCheck time.Duration
}

// Manager stages and publishes volumes on this node. Its methods may be called
// by many goroutines; those for one volume take turns.
type Manager struct {
	config  Config
	records *records
	log     *slog.Logger
	boot    string
	locks   op.Locks
	trims   trims
}

// Open opens the store of a node. Call Reconcile before anything else.
func Open(ctx context.Context, c Config) (*Manager, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.TrimCheck <= 0 {
		c.TrimCheck = time.Minute
	}
	if c.Boot == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("tell this boot of the machine from others: %w", err)
		}
		c.Boot = strings.TrimSpace(string(id))
	}
	r, err := openRecords(ctx, c.Store)
	if err != nil {
		return nil, err
	}
	return &Manager{config: c, records: r, log: c.Logger, boot: c.Boot}, nil
}

// Close closes the store. No call may be running, and Run has returned.
func (m *Manager) Close() error { return m.records.close() }

// Knows reports whether there is anything on record of a volume.
func (m *Manager) Knows(ctx context.Context, id volume.ID) (bool, error) {
	_, staged, err := m.records.stage(ctx, id)
	if err != nil || staged {
		return staged, err
	}
	publishes, err := m.records.publishesOf(ctx, id)
	return len(publishes) > 0, err
}

// Volumes lists the volumes of which there is anything on record, in the order
// of their ids.
func (m *Manager) Volumes(ctx context.Context) ([]volume.ID, error) {
	stages, err := m.records.allStages(ctx)
	if err != nil {
		return nil, err
	}
	publishes, err := m.records.publishesOf(ctx, "")
	if err != nil {
		return nil, err
	}
	var ids []volume.ID
	for id := range stages {
		ids = append(ids, id)
	}
	for _, p := range publishes {
		ids = append(ids, p.Volume)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// lock waits for the turn of a volume, and of a target where there is one. A
// trim of the volume gives way.
func (m *Manager) lock(ctx context.Context, id volume.ID, targets ...string) (unlock func(), err error) {
	leave := m.trims.wanted(id)
	defer leave()
	keys := []string{"volume:" + string(id)}
	for _, t := range targets {
		keys = append(keys, "target:"+t)
	}
	return m.locks.Lock(ctx, keys...)
}

// attacher finds who attaches what a locator leads to.
func (m *Manager) attacher(a access.Access) (Attacher, error) {
	at, ok := m.config.Attachers[a.Protocol()]
	if !ok {
		return nil, errs.Errorf(errs.Unsupported, "this driver cannot attach a volume of type %s (targetType of the volume_context)", a.Protocol())
	}
	return at, nil
}

// source is a volume with who attaches it.
type source struct {
	attacher Attacher
	target   Target
}

func (m *Manager) source(stored map[string]string, on mounted) (source, error) {
	a, err := locator(stored)
	if err != nil {
		return source{}, err
	}
	at, err := m.attacher(a)
	if err != nil {
		return source{}, err
	}
	t := Target{Locator: a}
	if on.Boot == m.boot {
		t.Device = on.Device
	}
	return source{attacher: at, target: t}, nil
}

func (s source) look(ctx context.Context) (View, error) { return s.attacher.Look(ctx, s.target) }

func (s source) hold(ctx context.Context) (release func(), err error) {
	return s.attacher.Hold(ctx, s.target)
}

func (s source) detach(ctx context.Context) error { return s.attacher.Detach(ctx, s.target) }

// rollBackBound is how long the undoing of a failed call may take. It has a
// bound of its own, as the call's context may have ended.
const rollBackBound = 30 * time.Second

func rollBackContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), rollBackBound)
}

// trims knows the trims that run, so that they can be asked to give way.
type trims struct {
	mu      sync.Mutex
	waiting map[volume.ID]int
	running map[volume.ID]context.CancelFunc
}

// wanted says that somebody waits for a volume: a running trim is cancelled and
// none begins until leave is called.
func (t *trims) wanted(id volume.ID) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting == nil {
		t.waiting = map[volume.ID]int{}
	}
	t.waiting[id]++
	if cancel := t.running[id]; cancel != nil {
		cancel()
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.waiting[id]--; t.waiting[id] == 0 {
			delete(t.waiting, id)
		}
	}
}

// begin announces a trim; false: somebody waits for the volume.
func (t *trims) begin(id volume.ID, cancel context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting[id] > 0 {
		return false
	}
	if t.running == nil {
		t.running = map[volume.ID]context.CancelFunc{}
	}
	t.running[id] = cancel
	return true
}

func (t *trims) end(id volume.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, id)
}
