package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/sriov/nodestate"
)

const (
	initialBackoff = 500 * time.Millisecond
	maxBackoff     = 30 * time.Second
	// minWatch is the duration of a successful watch.
	minWatch = 5 * time.Second
)

// Run implements Source.
func (c *Cluster) Run(ctx context.Context, send func(Update)) error {
	w := &watcher{Cluster: c, out: send}
	pause := backoff.Backoff{First: initialBackoff, Most: maxBackoff, Jitter: true}
	for ctx.Err() == nil {
		began := time.Now()
		err := w.listAndWatch(ctx)
		if ctx.Err() != nil {
			break
		}
		// The server regularly ends watches and expires versions.
		if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			c.config.Logger.Warn("failed to read node state from the API server, will retry", "object", c.String(), "err", err)
			w.send(Update{Err: err})
		}
		if time.Since(began) >= minWatch {
			pause.Reset()
			if err == nil {
				continue
			}
		}
		_ = pause.Wait(ctx)
	}
	return context.Cause(ctx)
}

type watcher struct {
	*Cluster
	out      func(Update)
	version  string // "": list first
	sent     *Update
	received *Update // from the API server
}

func (w *watcher) listAndWatch(ctx context.Context) error {
	if w.version == "" {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	err := w.watch(ctx)
	if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
		w.version = "" // might be refused
	}
	return err
}

func (w *watcher) options() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "metadata.name=" + w.config.Node}
}

func (w *watcher) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()
	list, err := w.objects.List(ctx, w.options())
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the API server does not serve %s, the SR-IOV network operator's CRDs are not installed: %w", nodestate.Resource, err)
	case err != nil:
		return fmt.Errorf("list %s: %w", w, err)
	}
	update := Update{Gone: true}
	for i := range list.Items {
		if list.Items[i].GetName() == w.config.Node {
			update = updateOf(&list.Items[i])
		}
	}
	w.version = list.GetResourceVersion()
	w.receive(update)
	return nil
}

func (w *watcher) watch(ctx context.Context) error {
	long := 10*w.config.Timeout + rand.N(10*w.config.Timeout)
	// The deadline detects a lost connection.
	ctx, cancel := context.WithTimeout(ctx, long+w.config.Timeout)
	defer cancel()
	options, seconds := w.options(), max(1, int64(long/time.Second))
	options.ResourceVersion, options.TimeoutSeconds, options.AllowWatchBookmarks = w.version, &seconds, true
	stream, err := w.objects.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch %s: %w", w, err)
	}
	defer stream.Stop()
	// For client-go a timeout or lost connection is an empty watch.
	if _, ok := stream.(*watch.StreamWatcher); !ok {
		return fmt.Errorf("watch %s: no response from the API server", w)
	}
	if w.received != nil {
		w.send(*w.received) // ends a connection error
	}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch %s: %w", w, context.Cause(ctx))
		case event, ok := <-stream.ResultChan():
			if !ok {
				return nil
			}
			if err := w.handle(event); err != nil {
				return err
			}
		}
	}
}

func (w *watcher) handle(event watch.Event) error {
	if event.Type == watch.Error {
		return fmt.Errorf("watch %s: %w", w, apierrors.FromObject(event.Object))
	}
	o, ok := event.Object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("watch %s: event %s with a %T", w, event.Type, event.Object)
	}
	w.version = o.GetResourceVersion()
	switch {
	case event.Type == watch.Bookmark || o.GetName() != w.config.Node:
	case event.Type == watch.Deleted:
		w.receive(Update{Gone: true})
	default:
		w.receive(updateOf(o))
	}
	return nil
}

// Name, uid and generation are set even for an invalid object.
func updateOf(o *unstructured.Unstructured) Update {
	state, warnings, err := nodestate.FromObject(o.Object)
	if err != nil {
		return Update{
			State: nodestate.NodeState{Name: o.GetName(), UID: string(o.GetUID()), Generation: o.GetGeneration()},
			Err:   fmt.Errorf("%s %s, generation %d: %w", nodestate.Kind, o.GetName(), o.GetGeneration(), err),
		}
	}
	return Update{State: state, Warnings: warnings}
}

func (w *watcher) receive(u Update) {
	w.received = &u
	w.send(u)
}

func (w *watcher) send(u Update) {
	if w.sent == nil || !equal(u, *w.sent) {
		w.sent = &u
		w.out(u)
	}
}

// equal ignores resource version and annotations.
func equal(a, b Update) bool {
	if a.Err != nil || b.Err != nil {
		return a.Err != nil && b.Err != nil && a.Err.Error() == b.Err.Error()
	}
	for _, s := range []*nodestate.NodeState{&a.State, &b.State} {
		s.ResourceVersion, s.Annotations = "", nil
	}
	return reflect.DeepEqual(a, b)
}
