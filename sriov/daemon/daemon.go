package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
)

// Config says what a Daemon works with. Store, Source, Gate and Host are
// needed.
type Config struct {
	Rules  Rules
	Store  *store.Store // of Role and Version
	Source source.Source
	Gate   Gate
	Host   Host
	Pods   Pods // nil: there is no kubelet to ask, and nobody holds a function
	// PluginConfig is the path of the plugin's configuration, whose hash is told
	// with each claim; "": none is.
	PluginConfig string
	// GUIDFile is the operator's file of static GUIDs for InfiniBand; "" or one that
	// is not there: none.
	GUIDFile string
	// Watch kicks when functions or links may have changed, until its context
	// ends; inventory.Watch does. nil: Resync alone tells.
	Watch func(ctx context.Context, kick func()) error
	// Report takes how far the wish came true; nil: nobody does.
	Report  func(ctx context.Context, uid string, s nodestate.Status) error
	Logger  *slog.Logger          // nil: no log
	Metrics prometheus.Registerer // nil: none
}

// Daemon runs once. Status and Check may be called by many.
type Daemon struct {
	config  Config
	events  chan any
	metrics *metrics
	reports *reporter
	work    sync.WaitGroup

	mu     sync.Mutex
	status Status
}

// New makes a Daemon. Nothing is read or changed.
func New(c Config) (*Daemon, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{config: c, events: make(chan any, 64), status: Status{Mode: c.Rules.Mode, Phase: Waiting}}
	d.reports = newReporter(c.Report, c.Logger)
	var err error
	d.metrics, err = newMetrics(c.Metrics, d.Status)
	return d, err
}

// Run works until ctx ends, and returns its cause; a step that is under way
// then is cut short where it can be, and waited for; so is what is being put on
// record. The gate is not closed: who holds it lets go, and so a hold time
// covers the restart.
func (d *Daemon) Run(ctx context.Context) error {
	record, err := load(ctx, d.config.Store)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer d.work.Wait()
	defer stop(nil)
	d.work.Go(func() { d.listen(ctx, stop) })
	d.work.Go(func() { d.reports.run(ctx) })
	d.work.Go(func() { d.gate(ctx) })
	if d.config.Watch != nil {
		d.work.Go(func() { d.watch(ctx) })
	}
	if d.config.PluginConfig != "" {
		d.work.Go(func() {
			_ = source.Watch(ctx, d.config.PluginConfig, d.config.Logger, func() { d.post(ctx, stirred{}) })
		})
	}
	m := newMachine(d.config.Rules, record, time.Now())
	if m.shutFirst {
		d.config.Logger.Warn("a process before this one did not finish its work", "generation", record.Generation, "since", record.Since)
	}
	return d.loop(ctx, m)
}

func (d *Daemon) loop(ctx context.Context, m *machine) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		d.publish(m)
		if at := m.deadline(); at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(at))
		}
		var event any
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event = <-d.events:
		case <-timer.C:
			event = tick{}
		}
		for _, a := range m.step(time.Now(), event) {
			d.act(ctx, a)
		}
	}
}

// post leaves an event for the loop.
func (d *Daemon) post(ctx context.Context, event any) {
	select {
	case d.events <- event:
	case <-ctx.Done():
	}
}

// listen passes on what the source reports. A source that ends ends the daemon.
func (d *Daemon) listen(ctx context.Context, stop context.CancelCauseFunc) {
	if err := d.config.Source.Run(ctx, func(u source.Update) { d.post(ctx, u) }); ctx.Err() == nil {
		stop(fmt.Errorf("the source of the node state ended: %w", err))
	}
}

func (d *Daemon) gate(ctx context.Context) {
	for {
		select {
		case <-d.config.Gate.Changed():
			d.post(ctx, told{d.config.Gate.Status()})
		case <-ctx.Done():
			return
		}
	}
}

// watch brings many kicks together.
func (d *Daemon) watch(ctx context.Context) {
	kicked := make(chan struct{}, 1)
	var hand sync.WaitGroup
	defer hand.Wait()
	hand.Go(func() {
		for {
			select {
			case <-kicked:
				d.post(ctx, stirred{})
			case <-ctx.Done():
				return
			}
			timer := time.NewTimer(stir / 4)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
	})
	err := d.config.Watch(ctx, func() {
		select {
		case kicked <- struct{}{}:
		default:
		}
	})
	if ctx.Err() == nil {
		d.config.Logger.Warn("changes of functions are not heard of any more, only looked for now and then", "error", err)
	}
}

// publish shows the machine's status to the others, and logs what is new in it.
func (d *Daemon) publish(m *machine) {
	s := m.snapshot()
	d.mu.Lock()
	before := d.status
	d.status = s
	d.mu.Unlock()
	d.log(before, s)
	if d.config.Rules.Mode == Apply && d.config.Report != nil && m.wished && m.last != nil {
		d.reports.offer(m)
	}
}

func (d *Daemon) log(before, s Status) {
	for _, w := range s.Warnings {
		if before.UID != s.UID || before.Generation != s.Generation {
			d.config.Logger.Warn("the node state has what is not known", "generation", s.Generation, "warning", w)
		}
	}
	if len(s.NotDone) > 0 && !slices.Equal(s.NotDone, before.NotDone) {
		d.config.Logger.Warn("desired state asks for what this daemon does not do", "generation", s.Generation, "not_done", s.NotDone)
	}
	if len(s.Notes) > 0 && !slices.Equal(s.Notes, before.Notes) {
		d.config.Logger.Info("notes about the desired state", "generation", s.Generation, "notes", s.Notes)
	}
	if s.Source != before.Source && s.Source != "" {
		d.config.Logger.Error("a node state cannot be used; the one before stays in force", "error", s.Source)
	}
	if s.Unacknowledged != before.Unacknowledged && s.Unacknowledged != "" {
		d.config.Logger.Warn("the plugin cannot acknowledge that nothing is offered", "reason", s.Unacknowledged)
	}
	if s.Phase == before.Phase && s.Reason == before.Reason {
		return
	}
	level := slog.LevelInfo
	if s.Phase == Failed || s.Phase == Blocked || s.Phase == Away {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("phase", string(s.Phase)), slog.Int64("generation", s.Generation), slog.String("uid", s.UID)}
	if s.Reason != "" {
		attrs = append(attrs, slog.String("reason", s.Reason))
	}
	if !s.Next.IsZero() && s.Phase != Looking && s.Phase != Withdrawing {
		attrs = append(attrs, slog.Time("next", s.Next))
	}
	d.config.Logger.LogAttrs(context.Background(), level, "SR-IOV functions", attrs...)
}

// Status tells how it is.
func (d *Daemon) Status() Status {
	d.mu.Lock()
	s := d.status
	d.mu.Unlock()
	s.Gate = gated(d.config.Gate.Status())
	return s
}

// Check is an error while the node is not as wanted, as far as that is known.
func (d *Daemon) Check(context.Context) error {
	s := d.Status()
	if s.Phase == Serving {
		return nil
	}
	if s.Reason == "" {
		return errors.New(string(s.Phase))
	}
	return fmt.Errorf("%s: %s", s.Phase, s.Reason)
}
