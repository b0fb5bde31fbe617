package placement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	// Reasons of events on claims.
	eventNamed    = "SourceNodeSelected"
	eventBlocked  = "SourceNodeUnavailable"
	eventRejected = "SourceNodeRejected"

	minBackoff = time.Second
	maxBackoff = 30 * time.Second
	// callTimeout of one reconciliation, which reads up to a few dozen objects.
	callTimeout = 30 * time.Second
)

// Config configures a Controller. Client and Driver are required.
type Config struct {
	// Client needs list and watch of claims and pods; get of claims, volumes,
	// nodes, classes, snapshots and their contents; patch of claims; create and
	// patch of events.
	Client  dynamic.Interface
	Driver  string // name of the CSI driver
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Controller names the nodes of sources. Run can be called once.
type Controller struct {
	config  Config
	claims  cache.SharedIndexInformer
	pods    cache.SharedIndexInformer // without a node
	queue   workqueue.TypedDelayingInterface[string]
	backoff workqueue.TypedRateLimiter[string]
	results *prometheus.CounterVec
	// attempts by claim; only the worker uses it.
	attempts map[string]attempt
}

// attempt is the last one to name a claim's node.
type attempt struct {
	version  string    // of the claim before the node was named; "": not named, or rejected
	earliest time.Time // for the next one
}

// New makes no API call.
func New(c Config) (*Controller, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Controller{
		config: c, attempts: map[string]attempt{},
		queue:   workqueue.NewTypedDelayingQueue[string](),
		backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, maxBackoff),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_csi_placements_total",
			Help: "Attempts to name the node of a claim's data source, by result: named, blocked (the node cannot take the pod), rejected (by the node) or error.",
		}, []string{"result"}),
	}
	if c.Metrics != nil {
		if err := c.Metrics.Register(p.results); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	var err error
	if p.claims, err = newInformer[corev1.PersistentVolumeClaim](c.Client, claimResource, "", nil); err != nil {
		return nil, err
	}
	p.pods, err = newInformer[corev1.Pod](c.Client, podResource, "spec.nodeName=", cache.Indexers{byClaim: indexByClaim})
	if err != nil {
		return nil, err
	}
	changed := func(o any) {
		for _, key := range keysOf(o) {
			p.queue.Add(key)
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed}
	for _, i := range []cache.SharedIndexInformer{p.claims, p.pods} {
		if _, err := i.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("watch objects: %w", err)
		}
	}
	return p, nil
}

// Run reconciles claims until ctx ends.
func (p *Controller) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(p.config.Logger.Handler())) // of client-go's lines
	var work sync.WaitGroup
	defer work.Wait()
	defer p.queue.ShutDown()
	for _, i := range []cache.SharedIndexInformer{p.claims, p.pods} {
		work.Go(func() { i.RunWithContext(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), p.claims.HasSynced, p.pods.HasSynced) {
		return context.Cause(ctx)
	}
	work.Go(func() {
		for p.next(ctx) {
		}
	})
	<-ctx.Done()
	return context.Cause(ctx)
}

// Check returns an error until claims and pods are known.
func (p *Controller) Check(context.Context) error {
	if !p.claims.HasSynced() || !p.pods.HasSynced() {
		return errors.New("claims and pods are not listed yet")
	}
	return nil
}

// next handles one claim, false after the end.
func (p *Controller) next(ctx context.Context) bool {
	key, ended := p.queue.Get()
	if ended {
		return false
	}
	defer p.queue.Done(key)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch done, err := p.reconcile(ctx, key); {
	case apierrors.IsConflict(err): // a newer version is about to arrive
		p.queue.AddAfter(key, minBackoff)
	case err != nil:
		p.results.WithLabelValues("error").Inc()
		p.config.Logger.WarnContext(ctx, "placement failed, will retry", "claim", key, "err", err)
		p.later(key)
	case done:
		p.backoff.Forget(key)
		delete(p.attempts, key)
	}
	return true
}

// later returns the delay, which grows until the claim needs nothing more.
func (p *Controller) later(key string) time.Duration {
	delay := p.backoff.When(key)
	p.queue.AddAfter(key, delay)
	return delay
}

// reconcile names a node for the claim if it needs one. done: it never does
// again.
func (p *Controller) reconcile(ctx context.Context, key string) (done bool, err error) {
	claim, exists, err := get[corev1.PersistentVolumeClaim](p.claims, key)
	if err != nil || !exists || !isPending(claim) {
		return err == nil, err
	}
	last := p.attempts[key]
	if claim.Annotations[selectedNode] != "" || last.version == claim.ResourceVersion || time.Now().Before(last.earliest) {
		return false, nil // the provisioner creates it; or this is the version before our own write
	}
	consumers := p.consumers(ctx, claim)
	if len(consumers) == 0 {
		return false, nil
	}
	s, err := p.sourceOf(ctx, claim)
	if err != nil {
		return false, err
	}
	if s.node == "" {
		p.later(key) // a snapshot that is being created; or not of this driver
		return false, nil
	}
	if last.version != "" {
		p.report(ctx, claim, "rejected", eventRejected, fmt.Sprintf("node %s, which has %s, did not create the volume; will ask it again. The events ProvisioningFailed say why", s.node, s.text))
		return false, nil
	}
	node, err := p.node(ctx, s.node)
	if err != nil {
		return false, err
	}
	if why := obstacle(s, node, consumers); why != "" {
		p.report(ctx, claim, "blocked", eventBlocked, "the volume can be created only where its data source is: "+why)
		return false, nil
	}
	if err := p.name(ctx, claim, s.node); err != nil {
		return false, err
	}
	p.attempts[key] = attempt{version: claim.ResourceVersion}
	p.results.WithLabelValues("named").Inc()
	p.event(ctx, claim, corev1.EventTypeNormal, eventNamed, fmt.Sprintf("%s is on node %s, so the volume is created there", s.text, s.node))
	p.config.Logger.InfoContext(ctx, "node of data source selected", "claim", key, "node", s.node, "source", s.text)
	return false, nil
}

// report explains why the claim waits, and delays the next attempt.
func (p *Controller) report(ctx context.Context, claim *corev1.PersistentVolumeClaim, result, reason, text string) {
	key := claim.Namespace + "/" + claim.Name
	p.results.WithLabelValues(result).Inc()
	p.event(ctx, claim, corev1.EventTypeWarning, reason, text)
	p.attempts[key] = attempt{earliest: time.Now().Add(p.later(key))}
	p.config.Logger.WarnContext(ctx, "claim with a data source waits", "claim", key, "reason", reason, "detail", text)
}
