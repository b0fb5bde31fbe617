package takeover

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/internal/kubeobject"
)

// lease elects one of the replicas. Clocks of different machines are not
// compared: a candidate takes over a Lease that has not changed for its duration
// while the candidate looked, and a holder stops that long after it sent its last
// renewal that was answered, less a margin.
//
// client-go's election links the typed clients of every group.
type lease struct {
	client          dynamic.Interface
	namespace, name string
	identity        string // unique for each process
	duration        time.Duration
	logger          *slog.Logger
	read            *atomic.Bool // set when the Lease was read

	term int64 // leaseTransitions when the Lease was acquired
	// The Lease of another holder, as last seen, and since when.
	version string
	since   time.Time
}

// run calls lead whenever this process holds the Lease, with a context that ends
// when the Lease is not renewed in time. It returns when ctx ends.
func (l *lease) run(ctx context.Context, lead func(ctx context.Context, term int64)) error {
	pause := l.duration / 5
	for {
		sent := time.Now()
		held, err := l.acquire(ctx)
		if err != nil && ctx.Err() == nil {
			l.logger.WarnContext(ctx, "lease not read or written, will retry", "lease", l.name, "err", err)
		}
		if held {
			l.lead(ctx, sent, pause, lead)
		}
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// lead renews the Lease while the function runs, and returns when both have ended.
func (l *lease) lead(ctx context.Context, sent time.Time, pause time.Duration, lead func(ctx context.Context, term int64)) {
	l.logger.InfoContext(ctx, "leading", "lease", l.name, "identity", l.identity)
	ctx, cancel := context.WithCancelCause(ctx)
	ended, term := make(chan struct{}), l.term
	go func() {
		defer close(ended)
		lead(ctx, term)
	}()
	defer func() { <-ended }()
	margin := l.duration / 3
	deadline := time.AfterFunc(time.Until(sent.Add(l.duration-margin)), func() {
		cancel(fmt.Errorf("the Lease %s/%s was not renewed in time", l.namespace, l.name))
	})
	defer deadline.Stop()
	for sleep(ctx, pause) {
		sent = time.Now()
		switch held, err := l.acquire(ctx); {
		case err == nil && held:
			if !deadline.Stop() {
				continue // cancelled meanwhile
			}
			deadline.Reset(time.Until(sent.Add(l.duration - margin)))
		case err == nil:
			cancel(fmt.Errorf("another process holds the Lease %s/%s", l.namespace, l.name))
		default:
			l.logger.WarnContext(ctx, "lease not renewed, will retry", "lease", l.name, "err", err)
		}
	}
	l.logger.InfoContext(ctx, "not leading any more", "lease", l.name, "err", context.Cause(ctx))
	cancel(nil)
}

// acquire takes or renews the Lease.
func (l *lease) acquire(ctx context.Context) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.duration/3)
	defer cancel()
	found, err := kubeobject.Get[coordinationv1.Lease](ctx, l.client, leaseResource, l.namespace, l.name)
	if err != nil {
		return false, err
	}
	l.read.Store(true)
	now := metav1.NowMicro()
	seconds := int32(l.duration / time.Second)
	if found == nil {
		found = &coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
			ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name},
		}
	}
	holder := ""
	if found.Spec.HolderIdentity != nil {
		holder = *found.Spec.HolderIdentity
	}
	if holder != l.identity {
		if holder != "" && !l.isExpired(found) {
			return false, nil
		}
		transitions := int32(1)
		if before := found.Spec.LeaseTransitions; before != nil {
			transitions += *before
		}
		found.Spec.HolderIdentity, found.Spec.AcquireTime, found.Spec.LeaseTransitions = &l.identity, &now, &transitions
	}
	found.Spec.RenewTime, found.Spec.LeaseDurationSeconds = &now, &seconds
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(found)
	if err != nil {
		return false, err
	}
	leases := l.client.Resource(leaseResource).Namespace(l.namespace)
	if found.ResourceVersion == "" {
		_, err = leases.Create(ctx, &unstructured.Unstructured{Object: o}, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(ctx, &unstructured.Unstructured{Object: o}, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return false, nil // another process was first
	}
	if err != nil {
		return false, err
	}
	l.term = int64(*found.Spec.LeaseTransitions)
	return true, nil
}

// isExpired: the Lease has not changed for its duration.
func (l *lease) isExpired(found *coordinationv1.Lease) bool {
	duration := l.duration
	if s := found.Spec.LeaseDurationSeconds; s != nil {
		duration = max(duration, time.Duration(*s)*time.Second)
	}
	if found.ResourceVersion != l.version {
		l.version, l.since = found.ResourceVersion, time.Now()
	}
	return time.Since(l.since) >= duration
}

// sleep returns false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
