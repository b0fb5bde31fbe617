package configmap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/internal/backoff"
)

const (
	firstPause = time.Second // between watches that fail
	maxPause   = time.Minute
	// minWatch is the duration of a watch that did not fail.
	minWatch = 5 * time.Second
	// metadataOnly keeps the state, which is large, out of the events.
	metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)

// Watch follows the versions of the ConfigMap, for RecentState, until ctx ends. It
// reports each failure, and tries again.
func (o *Object) Watch(ctx context.Context, report func(error)) {
	pause := backoff.Backoff{First: firstPause, Most: maxPause, Jitter: true}
	for ctx.Err() == nil {
		begun := time.Now()
		err := o.watch(ctx)
		o.observe("") // changes are not seen until the next watch
		if err != nil && ctx.Err() == nil {
			report(err)
		}
		if time.Since(begun) >= minWatch {
			pause.Reset()
			if err == nil {
				continue
			}
		}
		_ = pause.Wait(ctx)
	}
}

// watch makes one request, and returns nil when the API server ends it. The first event
// has the present version: a watch cannot begin with the version of an object that has
// not changed for a while, as the API server does not know later events of others then.
func (o *Object) watch(ctx context.Context) error {
	long := 30*o.config.Timeout + rand.N(30*o.config.Timeout)
	// The deadline detects a connection that is lost without notice.
	ctx, cancel := context.WithTimeout(ctx, long+o.config.Timeout)
	defer cancel()
	stream, err := o.client.Get().Namespace(o.config.Namespace).Resource(resource).SetHeader("Accept", metadataOnly).
		Param("watch", "true").Param("fieldSelector", "metadata.name="+o.config.Name).
		Param("timeoutSeconds", fmt.Sprint(max(1, int64(long/time.Second)))).Stream(ctx)
	if err != nil {
		return o.explain(ctx, "watch", err)
	}
	defer stream.Close()
	for events := json.NewDecoder(stream); ; {
		var event struct {
			Type   string
			Object struct {
				Metadata        struct{ ResourceVersion string }
				Reason, Message string
				Code            int32
			}
		}
		switch err := events.Decode(&event); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return o.explain(ctx, "watch", err)
		case event.Type == "ERROR":
			status := metav1.Status{Code: event.Object.Code, Reason: metav1.StatusReason(event.Object.Reason), Message: event.Object.Message}
			return o.explain(ctx, "watch", &apierrors.StatusError{ErrStatus: status})
		}
		o.observe(event.Object.Metadata.ResourceVersion)
	}
}

// observe notes the version of the last event; "": none is known.
func (o *Object) observe(version string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.watched = version
}

// RecentState returns the state of the last read or write, without a request, while
// Watch has seen no other version since. A change that has just been made is perhaps
// not in it: it serves to find out that there is nothing to do, not to admit or prove.
func (o *Object) RecentState() (entries map[string][]byte, ok bool) {
	o.mu.Lock()
	s, watched := o.last, o.watched
	o.mu.Unlock()
	if s == nil || s.generation == 0 || watched == "" || s.object.version() != watched {
		return nil, false
	}
	return s.copied(), true
}
