package spdk

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Target is an SPDK process with lvol stores.
type Target struct {
	Name      string // part of volume ids
	Client    *rpc.Client
	Transport string           // tcp or rdma
	Addresses []netip.AddrPort // of the exports
	// TLSAddresses are those of volumes that require TLS, and of nothing else.
	TLSAddresses []netip.AddrPort
	Stores       []string // names of lvol stores for new volumes; empty: all
	// Forget has the UUIDs of lvols that are lost for good: what they belonged to can
	// be deleted.
	Forget []string
	// Cleared has the tokens of unclean stores whose free clusters were cleared since.
	Cleared []string
	// Topology has the segments of the nodes that reach the target; empty: all.
	Topology map[string]string
}

// Config is what an engine serves.
type Config struct {
	Targets []Target
	// Retired are the names of targets that are gone for good, with all volumes
	// and sessions there: their records can be removed.
	Retired []string
	// Database has the volumes. Several processes can share it.
	Database store.Database
	// Grants, usually in the same database, has the clients that are admitted.
	Grants volume.Grants
	// Owner identifies this release at targets that others use as well. It is the
	// same after a loss of the database.
	Owner string
	// HostNQN returns the host NQN of a node.
	HostNQN func(node string) string
	// Interval of comparing the exports with the records; zero is 5 s.
	Interval time.Duration
	// nil: no background events
	Logger *slog.Logger
}

// Engine serves the lvols of some targets. If two processes with one database
// overlap, no volume is lost or exists twice, and no client is left admitted
// against the records.
type Engine struct {
	config  Config
	targets map[string]*target
	order   []*target
	locks   op.Locks // "name:" with the name of a volume, "snapshot:" with that of a snapshot
	// answerTime is for targets whose answer the call can do without, enforceTime
	// for the export of one volume, zeroTime for a call that waits for zeros,
	// returnTime for a host that is not connected.
	answerTime, enforceTime, zeroTime, returnTime time.Duration
	tookOver                                      chan struct{} // closed takeOverTime after the start
}

var (
	_ volume.Engine    = (*Engine)(nil)
	_ volume.Snapshots = (*Engine)(nil)
	_ volume.Modifier  = (*Engine)(nil)
	_ volume.Health    = (*Engine)(nil)
	_ volume.Granter   = (*Engine)(nil)
	_ volume.Fencer    = (*Engine)(nil)
)

// target is a Target and what the last comparison found.
type target struct {
	Target

	unswept atomic.Bool   // interrupted calls can have left lvols
	wake    chan struct{} // has an element if the exports are to be compared at once

	mu      sync.Mutex
	stores  []rpc.LvolStore     // of the last list
	sources map[string][]string // snapshots for copies that no record has, by store
	lost    []string            // objects whose lvols the target does not have any more
	failure error               // why the exports could not be compared
	foreign []string            // subsystems with names of volumes that neither a record nor another release has
	absent  map[hostAt]absence  // hosts without a grant or an address that are not connected
}

// New returns an engine. The targets need not answer.
func New(c Config) (*Engine, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Interval == 0 {
		c.Interval = 5 * time.Second
	}
	if len(c.Targets)+len(c.Retired) == 0 {
		return nil, errs.Errorf(errs.Invalid, "no SPDK target is configured")
	}
	e := &Engine{config: c, targets: map[string]*target{}, answerTime: 5 * time.Second, enforceTime: time.Minute, zeroTime: time.Minute, returnTime: returnTime}
	tookOver := make(chan struct{})
	time.AfterFunc(takeOverTime, func() { close(tookOver) })
	e.tookOver = tookOver
	for _, t := range c.Targets {
		switch {
		case checkTargetName(t.Name) != nil:
			return nil, checkTargetName(t.Name)
		case e.targets[t.Name] != nil || e.isRetired(t.Name):
			return nil, errs.Errorf(errs.Invalid, "two targets have the name %s", t.Name)
		case len(t.Addresses) == 0:
			return nil, errs.Errorf(errs.Invalid, "target %s has no address", t.Name)
		case len(t.TLSAddresses) > 0 && t.Transport != "tcp":
			return nil, errs.Errorf(errs.Invalid, "target %s has TLS addresses, which only NVMe/TCP has", t.Name)
		}
		own := &target{Target: t, wake: make(chan struct{}, 1)}
		own.unswept.Store(true)
		e.targets[t.Name] = own
		e.order = append(e.order, own)
	}
	return e, nil
}

// spare returns Exhausted if there is no space for the record of another object.
// What is left is for revocations, fences and deletions.
func (e *Engine) spare(ctx context.Context) error {
	if err := e.config.Database.Spare(ctx); err != nil {
		return errs.Errorf(errs.Exhausted, "the records of the controller have no space for another one; free space there, or delete volumes: %w", err)
	}
	return nil
}

// Backend returns the abilities of lvols.
func (e *Engine) Backend() volume.Backend {
	return volume.Backend{
		Engine: e, Snapshots: e, Modifier: e, Health: e, Granter: e, Fencer: e,
		Clones: true, MultiNode: true, FormatOnNode: true,
		Parameters: parameterKeys(), Mutable: mutableKeys(),
	}
}

// Get implements volume.Engine.
func (e *Engine) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	r, err := e.find(ctx, id)
	if err != nil {
		return volume.Volume{}, err
	}
	return e.volume(r), nil
}

// List implements volume.Engine.
func (e *Engine) List(ctx context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	var page []volume.Volume
	all, err := e.records(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.isVolume() && r.id() > after && (limit == 0 || len(page) < limit) {
			page = append(page, e.volume(r))
		}
	}
	return page, nil
}

// targetOf returns the target of an id. NotFound: it is no id of a target, or the
// target is retired. Precondition: whether the object exists is not known, as the
// target is not configured.
func (e *Engine) targetOf(what, id string) (t *target, uuid string, err error) {
	name, uuid, ok := parseID(id)
	switch {
	case !ok:
		return nil, "", errs.Errorf(errs.NotFound, "%s %s does not exist", what, errs.Quote(id))
	case e.isRetired(name):
		return nil, "", errs.Errorf(errs.NotFound, "%s %s was on target %s, which is retired", what, errs.Quote(id), name)
	}
	if t, err = e.target(name); err != nil {
		return nil, "", fmt.Errorf("%s %s: %w", what, errs.Quote(id), err)
	}
	return t, uuid, nil
}

func (e *Engine) isRetired(target string) bool { return slices.Contains(e.config.Retired, target) }

func (e *Engine) names() (names []string) {
	for _, t := range e.order {
		names = append(names, t.Name)
	}
	return names
}

// target returns the target of a record. Precondition: it is not configured, or
// retired.
func (e *Engine) target(name string) (*target, error) {
	if t := e.targets[name]; t != nil {
		return t, nil
	}
	if e.isRetired(name) {
		return nil, errs.Errorf(errs.Precondition, "target %s is retired, and what was on it can only be deleted", name)
	}
	return nil, errs.Errorf(errs.Precondition, "target %s is not configured; known are %s. Add it again with this name, or with retired: true if it is gone for good", name, strings.Join(e.names(), ", "))
}
