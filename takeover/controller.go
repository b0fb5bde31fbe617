package takeover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"

	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/lease"
	"github.com/cleatproject/cleat/takeover/plan"
)

const (
	workers     = 8 // remediations at a time
	minBackoff  = 50 * time.Millisecond
	maxBackoff  = 15 * time.Second
	passTimeout = 4 * time.Minute
	readTimeout = 20 * time.Second // of a backend
	// resolveTimeout of a name. The next pass asks again.
	resolveTimeout = 5 * time.Second
	// fenceTimeout of a call, which a backend answers when sessions have ended. The
	// next pass continues it.
	fenceTimeout = 2 * time.Minute
)

// Config configures a Controller. Client, Namespace, Lease and Identity are
// required, and a Backend for each of Coverage.
type Config struct {
	Client    dynamic.Interface
	Namespace string // of the remediations and the Lease
	Lease     string // its name
	Identity  string // unique for each process
	Coverage  Coverage
	Backends  map[string]Backend
	// Resolve returns the addresses of a host; nil: by the resolver of this machine.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Interval at which a remediation is observed again without a change; zero is 3 s.
	Interval time.Duration
	// LeaseDuration is how long a leader that is gone keeps others waiting; zero is
	// 15 s.
	LeaseDuration time.Duration
	Logger        *slog.Logger
	Metrics       prometheus.Registerer
}

// Controller handles all remediations of a namespace while it is the leader.
type Controller struct {
	config  Config
	metrics *metrics
	lease   *lease.Lease
	begin   sync.Mutex // of passes that begin to fence: maxConcurrent counts those that have
}

// New makes no API call.
func New(c Config) (*Controller, error) {
	if c.Client == nil || c.Namespace == "" || c.Lease == "" || c.Identity == "" {
		return nil, errors.New("takeover: Client, Namespace, Lease and Identity are required")
	}
	for _, b := range c.Coverage.Backends {
		if c.Backends[b.Name] == nil {
			return nil, fmt.Errorf("takeover: no Backend %q", b.Name)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.Interval == 0 {
		c.Interval = 3 * time.Second
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration = 15 * time.Second
	}
	m, err := newMetrics(c.Metrics)
	l := lease.New(lease.Config{Client: c.Client, Namespace: c.Namespace, Name: c.Lease, Identity: c.Identity, Duration: c.LeaseDuration, Logger: c.Logger})
	return &Controller{config: c, metrics: m, lease: l}, err
}

// Run takes part in the election and handles remediations while it leads, until
// ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	for {
		if err := c.lease.Acquire(ctx); err != nil {
			return context.Cause(ctx)
		}
		leading, cancel := context.WithCancelCause(ctx)
		term := c.lease.Term()
		var lead sync.WaitGroup
		lead.Go(func() { cancel(c.lead(leading, term)) })
		cancel(c.lease.Keep(leading))
		lead.Wait()
	}
}

// Check fails unless the Lease was read a moment ago, whichever replica leads.
func (c *Controller) Check(ctx context.Context) error { return c.lease.Check(ctx) }

// lead handles remediations until ctx ends, or until it finds a later term.
func (c *Controller) lead(ctx context.Context, term int64) error {
	c.metrics.leader.Set(1)
	defer c.metrics.follow()
	queue := workqueue.NewTypedDelayingQueue[string]()
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, maxBackoff)
	rest := workqueue.NewTypedItemExponentialFailureRateLimiter[string](c.config.Interval, maxBackoff)
	var work sync.WaitGroup
	defer work.Wait()
	defer queue.ShutDown()
	for range workers {
		work.Go(func() {
			for {
				name, ended := queue.Get()
				if ended {
					return
				}
				c.handle(ctx, name, term, queue, backoff, rest)
				queue.Done(name)
			}
		})
	}
	// Nodes, pods and backends change as well: each pass reads all, so that the list
	// is the only trigger that is needed.
	known := map[types.UID]string{}
	reached := term - 1 // by earlier leaders
	for ctx.Err() == nil {
		all, err := list(ctx, c.config.Client, c.config.Namespace)
		if err != nil {
			c.metrics.failures.Inc()
			c.config.Logger.WarnContext(ctx, "remediations not listed, will retry", "err", err)
		} else {
			c.metrics.observe(all)
			if later := latestTerm(all); later > reached {
				c.lease.Exceed(later)
				return fmt.Errorf("a remediation has term %d, and the Lease %d: another process leads, or the Lease was deleted", later, term)
			}
			reached = term
			var names []string
			names, known = due(all, known, c.config.Coverage.planConfig().MaxConcurrent)
			for _, name := range names {
				queue.Add(name)
			}
		}
		select {
		case <-time.After(min(time.Second, c.config.Interval)):
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

func latestTerm(all []*Remediation) (term int64) {
	for _, r := range all {
		term = max(term, r.Status.Term)
	}
	return term
}

// due returns the remediations that a pass is due for: those that changed since
// known, and the oldest ones that wait for others, as many as can begin. The
// resourceVersions of all are the next known.
func due(all []*Remediation, known map[types.UID]string, maxConcurrent int) (names []string, now map[types.UID]string) {
	now = map[types.UID]string{}
	free := maxConcurrent
	for _, r := range all {
		if now[r.UID] = r.ResourceVersion; known[r.UID] != r.ResourceVersion {
			names = append(names, r.Name)
		}
		if r.Status.IsInProgress() {
			free--
		}
	}
	waiting := slices.DeleteFunc(slices.Clone(all), func(r *Remediation) bool { return !r.Status.IsQueued() })
	slices.SortFunc(waiting, func(a, b *Remediation) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, r := range waiting[:max(0, min(free, len(waiting)))] {
		names = append(names, r.Name)
	}
	return names, now
}

// handle makes one pass and schedules the next one.
func (c *Controller) handle(ctx context.Context, name string, term int64, queue workqueue.TypedDelayingInterface[string], backoff, rest workqueue.TypedRateLimiter[string]) {
	if ctx.Err() != nil {
		return
	}
	passCtx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	switch result, err := c.Pass(passCtx, name, plan.Lease{Held: ctx.Err() == nil, Term: term}); {
	case err != nil && ctx.Err() != nil:
	case apierrors.IsConflict(err) || errors.Is(err, errChanged):
		queue.AddAfter(name, minBackoff) // another writer was first
	case err != nil:
		c.metrics.failures.Inc()
		c.config.Logger.WarnContext(ctx, "takeover pass failed, will retry", "remediation", name, "err", err)
		queue.AddAfter(name, backoff.When(name))
	case result == Gone:
		backoff.Forget(name)
	case result == Written:
		backoff.Forget(name)
		queue.Add(name)
	case result == Acted: // what it waits for can take long, as a pod with a finalizer
		queue.AddAfter(name, backoff.When(name))
	case result == Resting: // each pass lists all nodes, and many can be lost at once
		backoff.Forget(name)
		queue.AddAfter(name, rest.When(name))
		return
	default:
		backoff.Forget(name)
		queue.AddAfter(name, c.config.Interval)
	}
	rest.Forget(name)
}

// Result is what a pass has done.
type Result int

// Results of a pass.
const (
	Waiting Result = iota // for a backend or an administrator
	Resting               // nothing is done until something else changes
	Written               // the status was written
	Acted                 // actions were performed
	Gone                  // the remediation does not exist
)

// Pass observes the cluster for one remediation and makes one step.
func (c *Controller) Pass(ctx context.Context, name string, lease plan.Lease) (Result, error) {
	o, err := c.observe(ctx, name, lease)
	if err != nil {
		return Waiting, err
	}
	if o == nil {
		return Gone, nil
	}
	crashpoint.Hit("takeover.observed")
	step := plan.Next(o.Observation)
	before := o.Remediation.Status
	if before.Intent == nil && step.Status.Intent != nil { // others can have begun since they were read
		c.begin.Lock()
		defer c.begin.Unlock()
		if err := c.readOthers(ctx, o); err != nil {
			return Waiting, err
		}
		step = plan.Next(o.Observation)
	}
	if !reflect.DeepEqual(step.Status, before) {
		if err := c.writeStatus(ctx, o, step.Status); err != nil {
			return Waiting, fmt.Errorf("write the status: %w", err)
		}
		crashpoint.Hit("takeover.status-written")
		c.report(ctx, o, step.Status)
		// Other texts of the same conditions do not let the actions wait: a message of
		// a backend can be another one each time.
		if !isSame(step.Status, before) {
			return Written, nil
		}
	}
	switch {
	case len(step.Actions) > 0:
	case step.Status.IsResting():
		return Resting, nil
	default:
		return Waiting, nil
	}
	err = c.act(ctx, o, step.Actions)
	crashpoint.Hit("takeover.acted")
	return Acted, err
}

// isSame compares all but the messages of conditions.
func isSame(a, b plan.Status) bool {
	for _, s := range []*plan.Status{&a, &b} {
		conditions := make([]plan.Condition, len(s.Conditions))
		for i, one := range s.Conditions {
			one.Message = ""
			conditions[i] = one
		}
		s.Conditions = conditions
	}
	return reflect.DeepEqual(a, b)
}

// report logs what is new, and records an event of it.
func (c *Controller) report(ctx context.Context, o *observation, s plan.Status) {
	before := o.Remediation.Status
	log := c.config.Logger.With("remediation", o.Remediation.Name, "node", o.Remediation.Node)
	if s.Intent != nil && (before.Intent == nil || before.Intent.Digest != s.Intent.Digest) {
		log.InfoContext(ctx, "fencing", "record", s.Intent.Record, "intent", s.Intent.Digest, "targets", s.Intent.Targets)
	}
	if s.Certificate != nil && (before.Certificate == nil || before.Certificate.Digest != s.Certificate.Digest) {
		log.InfoContext(ctx, "fence certified", "certificate", s.Certificate.Digest, "record", s.Certificate.Record, "intent", s.Certificate.Intent, "proofs", s.Certificate.Proofs)
		c.event(ctx, o, "Normal", "FenceCertified", fmt.Sprintf("node %s is fenced at %d backends, certificate %s", o.Remediation.Node, len(s.Certificate.Proofs), s.Certificate.Digest))
	}
	if s.Release != nil && before.Release == nil {
		log.InfoContext(ctx, "fence released", "machines", s.Release.Machines)
	}
	for _, now := range s.Conditions {
		if now.Type == plan.Blocked && now.Status == string(metav1.ConditionTrue) {
			log.WarnContext(ctx, "takeover blocked", "reason", now.Reason, "detail", now.Message)
			c.event(ctx, o, "Warning", now.Reason, now.Message)
		}
	}
}
