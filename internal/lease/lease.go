// Package lease elects one of several processes by a Lease of Kubernetes.
package lease

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/kubeobject"
)

var resource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// Config configures a Lease; all fields are required.
type Config struct {
	Client          dynamic.Interface
	Namespace, Name string
	Identity        string        // unique for each process
	Duration        time.Duration // how long a holder that is gone keeps others waiting; see CheckDuration
	Logger          *slog.Logger
}

// CheckDuration refuses what a Lease cannot say.
func CheckDuration(d time.Duration) error {
	if d < time.Second || d%time.Second != 0 {
		return fmt.Errorf("--lease-duration %s is not a positive number of seconds", d)
	}
	return nil
}

// Lease is a candidate for a Lease, and its holder between Acquire and the end of
// Keep. Clocks of different machines are not compared: a candidate takes over a Lease
// that has not changed for its duration while the candidate looked, and Keep ends that
// long after it sent its last renewal that was answered, less a third of it.
//
// client-go's election links the typed clients of every group.
type Lease struct {
	config Config
	read   atomic.Pointer[time.Time] // when the Lease was last read

	above atomic.Int64 // what the next acquired term exceeds
	term  int64        // leaseTransitions when the Lease was acquired
	sent  time.Time    // the last renewal that was answered
	// The Lease of another holder, as last seen, and since when.
	version string
	since   time.Time
}

// New makes no API call.
func New(c Config) *Lease { return &Lease{config: c} }

// Check fails unless the Lease was read within its duration, also as that of another
// process: a candidate that cannot read it cannot take over.
func (l *Lease) Check(context.Context) error {
	switch last := l.read.Load(); {
	case last == nil:
		return errs.Errorf(errs.Unavailable, "the Lease %s/%s has not been read yet", l.config.Namespace, l.config.Name)
	case time.Since(*last) > l.config.Duration:
		return errs.Errorf(errs.Unavailable, "the Lease %s/%s was last read %s ago", l.config.Namespace, l.config.Name, time.Since(*last).Round(time.Second))
	}
	return nil
}

// Term is larger than that of each earlier holder, once Acquire has returned, unless
// the Lease was deleted: see Exceed.
func (l *Lease) Term() int64 { return l.term }

// Exceed makes the next term larger than one that an earlier holder has written
// somewhere: a Lease that is deleted and created again counts from 1.
func (l *Lease) Exceed(term int64) { l.above.Store(term) }

func (l *Lease) pause() time.Duration { return l.config.Duration / 5 }

// Acquire waits until this process holds the Lease. Its error is that of ctx.
func (l *Lease) Acquire(ctx context.Context) error {
	for {
		sent := time.Now()
		held, err := l.acquire(ctx)
		if err != nil && ctx.Err() == nil {
			l.config.Logger.WarnContext(ctx, "lease not read or written, will retry", "lease", l.config.Name, "err", err)
		}
		if held {
			l.sent = sent
			l.config.Logger.InfoContext(ctx, "leading", "lease", l.config.Name, "identity", l.config.Identity)
			return nil
		}
		if !sleep(ctx, l.pause()) {
			return ctx.Err()
		}
	}
}

// Keep renews the Lease until ctx ends, or until it is lost. The error says which.
func (l *Lease) Keep(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lasts := func() time.Duration { return time.Until(l.sent.Add(l.config.Duration - l.config.Duration/3)) }
	deadline := time.AfterFunc(lasts(), func() {
		cancel(fmt.Errorf("the Lease %s/%s was not renewed in time", l.config.Namespace, l.config.Name))
	})
	defer deadline.Stop()
	for sleep(ctx, l.pause()) {
		sent := time.Now()
		switch held, err := l.acquire(ctx); {
		case err == nil && held:
			if !deadline.Stop() {
				continue // cancelled meanwhile
			}
			l.sent = sent
			deadline.Reset(lasts())
		case err == nil:
			cancel(fmt.Errorf("another process holds the Lease %s/%s", l.config.Namespace, l.config.Name))
		default:
			l.config.Logger.WarnContext(ctx, "lease not renewed, will retry", "lease", l.config.Name, "err", err)
		}
	}
	l.config.Logger.InfoContext(ctx, "not leading any more", "lease", l.config.Name, "err", context.Cause(ctx))
	return context.Cause(ctx)
}

// Release gives the Lease back, so that another process does not wait for its end.
// Call it after Keep, once this process does nothing more.
func (l *Lease) Release(ctx context.Context) error {
	found, err := l.get(ctx)
	if err != nil || found == nil || holderOf(found) != l.config.Identity {
		return err
	}
	found.Spec.HolderIdentity = nil
	return l.write(ctx, found)
}

// acquire takes or renews the Lease.
func (l *Lease) acquire(ctx context.Context) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.config.Duration/3)
	defer cancel()
	found, err := l.get(ctx)
	if err != nil {
		return false, err
	}
	now := metav1.NowMicro()
	l.read.Store(&now.Time)
	seconds := int32(l.config.Duration / time.Second)
	if found == nil {
		found = &coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
			ObjectMeta: metav1.ObjectMeta{Namespace: l.config.Namespace, Name: l.config.Name},
		}
	}
	transitions := int32(0)
	if before := found.Spec.LeaseTransitions; before != nil {
		transitions = *before
	}
	if holder := holderOf(found); holder != l.config.Identity {
		if holder != "" && !l.isExpired(found) {
			return false, nil
		}
		transitions++
		found.Spec.HolderIdentity, found.Spec.AcquireTime = &l.config.Identity, &now
	}
	// Both are greater only after the Lease was deleted.
	transitions = max(transitions, int32(l.above.Load())+1, int32(l.term))
	found.Spec.LeaseTransitions = &transitions
	found.Spec.RenewTime, found.Spec.LeaseDurationSeconds = &now, &seconds
	err = l.write(ctx, found)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return false, nil // another process was first
	}
	if err != nil {
		return false, err
	}
	l.term = int64(transitions)
	return true, nil
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// get returns nil if the Lease does not exist.
func (l *Lease) get(ctx context.Context) (*coordinationv1.Lease, error) {
	return kubeobject.Get[coordinationv1.Lease](ctx, l.config.Client, resource, l.config.Namespace, l.config.Name)
}

// write fails if the Lease was changed since it was read.
func (l *Lease) write(ctx context.Context, lease *coordinationv1.Lease) error {
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(lease)
	if err != nil {
		return err
	}
	leases := l.config.Client.Resource(resource).Namespace(l.config.Namespace)
	if lease.ResourceVersion == "" {
		_, err = leases.Create(ctx, &unstructured.Unstructured{Object: o}, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(ctx, &unstructured.Unstructured{Object: o}, metav1.UpdateOptions{})
	}
	return err
}

// isExpired: the Lease has not changed for its duration.
func (l *Lease) isExpired(found *coordinationv1.Lease) bool {
	duration := l.config.Duration
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
