package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/actor"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
)

const (
	observeTimeout = time.Minute
	// withdrawTimeout: a withdrawal is retried after it.
	withdrawTimeout = time.Minute
)

// Config configures a Daemon. Store, Source, Gate and Host are required.
type Config struct {
	Rules  Rules
	Store  *store.Store // of Role and Version
	Source source.Source
	Gate   Gate
	Host   Host
	Pods   Pods // nil: no kubelet, no pod holds a function
	// PluginConfig is the plugin's configuration file, whose hash is part of
	// each claim. Empty: no hash.
	PluginConfig string
	// GUIDFile is the operator's file of static InfiniBand GUIDs; empty or
	// missing: none.
	GUIDFile string
	// Watch calls changed when functions or links might have changed;
	// inventory.Watch implements it. Nil: the node is only polled.
	Watch func(ctx context.Context, changed func()) error
	// Report writes an object's status. Nil: not written.
	Report  func(ctx context.Context, uid string, s nodestate.Status) error
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Daemon is the config daemon. Run can be called once; other methods are safe
// for concurrent use.
type Daemon struct {
	config  Config
	loop    *actor.Actor[event, action]
	metrics *metrics
	reports *reporter
	work    sync.WaitGroup

	// Used by the running observation.
	tracker *tracker
	unsaved bool // the record of functions

	mu     sync.Mutex
	status Status
	polled polls
}

// New reads and changes nothing.
func New(c Config) (*Daemon, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{config: c, polled: polls{held: map[string]bool{}}, loop: actor.New[event, action](), status: initialStatus(c.Rules.Mode, time.Now()),
		reports: &reporter{write: c.Report, logger: c.Logger, newest: make(chan report, 1)}}
	var err error
	d.metrics, err = newMetrics(c.Metrics, d.Status)
	return d, err
}

// Run reconciles until ctx ends, waits for running actions, and returns ctx's
// cause. A step is interrupted if possible, a record is written. The gate stays
// open: its owner releases it, so that a hold time covers a restart.
func (d *Daemon) Run(ctx context.Context) error {
	saved, err := load(ctx, d.config.Store)
	if err != nil {
		return err
	}
	functions, err := loadFunctions(ctx, d.config.Store, saved)
	if err != nil {
		return err
	}
	d.tracker = newTracker(functions)
	r := newReconciler(d.config.Rules, saved, time.Now())
	if saved.Applying && r.rules.Mode == Apply {
		d.config.Logger.Warn("previous process was interrupted while applying", "generation", saved.Generation, "since", saved.Since)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer d.work.Wait()
	defer stop(nil)
	d.watch(ctx, stop)
	return d.loop.Run(ctx, func(now time.Time, e event) []action {
		actions := r.handle(now, e)
		if at := r.deadline(); at.IsZero() {
			d.loop.Clear("deadline")
		} else {
			d.loop.Set("deadline", at, timeout{})
		}
		return append(actions, publish{r}) // last: the phase is published after its actions started
	}, func(a action) { a.run(ctx, d) })
}

func (d *Daemon) watch(ctx context.Context, stop context.CancelCauseFunc) {
	var queued atomic.Bool // node changes come in bursts
	changed := func() {
		if !queued.Swap(true) {
			d.loop.Send(nodeChanged{&queued})
		}
	}
	d.work.Go(func() {
		err := d.config.Source.Run(ctx, func(u source.Update) { d.loop.Send(desiredReported{u}) })
		stop(fmt.Errorf("watch the node state: %w", err))
	})
	d.work.Go(func() { d.reports.run(ctx) })
	d.work.Go(func() {
		for {
			select {
			case <-d.config.Gate.Changed():
				d.loop.Send(gateChanged{d.config.Gate.Status()})
			case <-ctx.Done():
				return
			}
		}
	})
	if d.config.Pods != nil {
		d.work.Go(func() { d.pollPods(ctx, changed) })
	}
	if d.config.Watch != nil {
		d.work.Go(func() {
			if err := d.config.Watch(ctx, changed); ctx.Err() == nil {
				d.config.Logger.Warn("function watch failed, polling", "err", err)
			}
		})
	}
	if d.config.PluginConfig != "" {
		d.work.Go(func() { _ = source.Watch(ctx, d.config.PluginConfig, d.config.Logger, changed) })
	}
}

func (a observe) run(ctx context.Context, d *Daemon) {
	d.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, observeTimeout)
		defer cancel()
		began := time.Now()
		polled := d.takePolled()
		o := d.observe(ctx)
		d.track(ctx, a.spec, polled, &o)
		d.metrics.observations.Observe(time.Since(began).Seconds())
		d.loop.Send(observed{o, a.revision})
	})
}

func (withdraw) run(ctx context.Context, d *Daemon) {
	d.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
		defer cancel()
		began := time.Now()
		result, err := d.config.Gate.Disable(ctx)
		took := time.Since(began)
		d.metrics.withdrawals.Observe(took.Seconds())
		switch {
		case err != nil:
			d.config.Logger.Warn("withdrawal failed", "duration", took, "err", err)
		case !result.Acknowledged:
			d.config.Logger.Warn("withdrawal not acknowledged", "duration", took, "reason", result.Reason)
		default:
			d.config.Logger.Info("devices withdrawn", "duration", took, "confirmed", result.Confirmed, "in_use", len(result.InUse))
		}
		d.loop.Send(withdrawn{result, err})
	})
}

func (a record) run(ctx context.Context, d *Daemon) {
	// Save even if ctx has ended: otherwise the next process withdraws the
	// devices.
	d.work.Go(func() { d.loop.Send(recorded{save(context.WithoutCancel(ctx), d.config.Store, a.Record)}) })
}

func (a apply) run(ctx context.Context, d *Daemon) {
	d.work.Go(func() {
		began := time.Now()
		err := d.config.Host.Do(ctx, a.Step)
		took := time.Since(began)
		d.metrics.applied(a.Step, took, err)
		if err != nil {
			d.config.Logger.Error("step failed", "step", a.String(), "function", a.Function(), "duration", took, "err", err)
		} else {
			d.config.Logger.Info("step done", "step", a.String(), "function", a.Function(), "duration", took)
		}
		d.loop.Send(applied{err})
	})
}

func (a enable) run(_ context.Context, d *Daemon) { d.config.Gate.Enable(a.Claim) }

type publish struct{ r *reconciler }

func (p publish) run(_ context.Context, d *Daemon) {
	s := p.r.snapshot()
	d.mu.Lock()
	before := d.status
	d.status = s
	d.mu.Unlock()
	if reflect.DeepEqual(before, s) {
		return
	}
	d.log(before, s)
	if d.config.Rules.Mode == Apply && d.config.Report != nil && p.r.desired.presence == present && p.r.last != nil {
		d.reports.offer(reportOf(p.r))
	}
}

func (d *Daemon) log(before, s Status) {
	log := d.config.Logger
	if before.UID != s.UID || before.Generation != s.Generation {
		for _, w := range s.Warnings {
			log.Warn("node state has unknown fields", "generation", s.Generation, "warning", w)
		}
	}
	if len(s.NotDone) > 0 && !slices.Equal(s.NotDone, before.NotDone) {
		log.Warn("desired state has settings that are not supported", "generation", s.Generation, "not_done", s.NotDone)
	}
	if len(s.Notes) > 0 && !slices.Equal(s.Notes, before.Notes) {
		log.Info("notes about the desired state", "generation", s.Generation, "notes", s.Notes)
	}
	if s.Source != before.Source && s.Source != "" {
		log.Error("invalid node state, keeping the previous one", "err", s.Source)
	}
	if s.Unacknowledged != before.Unacknowledged && s.Unacknowledged != "" {
		log.Warn("plugin cannot acknowledge the withdrawal", "reason", s.Unacknowledged)
	}
	for _, c := range s.Conditions {
		if !slices.Contains(before.Conditions, c) {
			log.Warn("function drifted or could not be repaired", "function", c.Function, "count", c.Count, "cause", c.Cause, "until", c.Until)
		}
	}
	d.logClosed(before.Closed, s.Closed)
	if s.Phase == before.Phase && s.Reason == before.Reason {
		return
	}
	level := slog.LevelInfo
	if s.Phase == Failed || s.Phase == Blocked || s.Phase == Superseded {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("phase", string(s.Phase)), slog.Int64("generation", s.Generation), slog.String("uid", s.UID)}
	if s.Reason != "" {
		attrs = append(attrs, slog.String("reason", s.Reason))
	}
	if !s.Next.IsZero() && s.Phase != Observing && s.Phase != Withdrawing {
		attrs = append(attrs, slog.Time("next", s.Next))
	}
	log.LogAttrs(context.Background(), level, "phase changed", attrs...)
}

func (d *Daemon) logClosed(before, now gate.Closed) {
	for _, address := range slices.Sorted(maps.Keys(now)) {
		if _, was := before[address]; !was {
			d.config.Logger.Warn("function closed", "function", address, "reason", now[address])
		}
	}
	for _, address := range slices.Sorted(maps.Keys(before)) {
		if _, is := now[address]; !is {
			d.config.Logger.Info("function opened", "function", address)
		}
	}
}

// Status returns the current status.
func (d *Daemon) Status() Status {
	d.mu.Lock()
	s := d.status
	d.mu.Unlock()
	s.Gate = gateStatus(d.config.Gate.Status())
	return s
}

// Check returns an error while the node is not known to be in the desired state. A
// node that cannot be read is not, although it stays offered.
func (d *Daemon) Check(context.Context) error {
	s := d.Status()
	switch {
	case s.Phase == Serving && s.Reason == "":
		return nil
	case s.Reason == "":
		return errors.New(string(s.Phase))
	}
	return fmt.Errorf("%s: %s", s.Phase, s.Reason)
}
