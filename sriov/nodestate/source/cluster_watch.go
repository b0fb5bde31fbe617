package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// steady is how long a watch must have run for its end to be an ordinary one.
const steady = 5 * time.Second

// maxAnswer bounds a list and an event, in bytes.
const maxAnswer = 16 << 20

// Run is Source's.
func (c *Cluster) Run(ctx context.Context, out chan<- Update) error {
	w := &watcher{cluster: c, out: out}
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := w.once(ctx)
		if time.Since(began) >= steady {
			pause = firstPause
		}
		if err == nil { // the API server ended a watch, as it does after its time
			err = errNothing
		}
		if ctx.Err() != nil {
			break
		}
		if !errors.Is(err, errNothing) && !errors.Is(err, errTooOld) {
			c.config.Logger.Warn("the API server cannot be asked for the node state", "object", c.String(), "error", err)
			w.send(ctx, Update{Err: err})
		} else if time.Since(began) >= steady {
			continue
		}
		sleep(ctx, pause/2+rand.N(pause/2+1))
		pause = min(2*pause, maxPause)
	}
	return context.Cause(ctx)
}

var (
	errNothing = errors.New("the watch ended")
	errTooOld  = errors.New("the version to watch from is too old")
)

// watcher is what one Run knows.
type watcher struct {
	cluster *Cluster
	out     chan<- Update
	version string // to watch from; "": list first

	told bool
	last Update // what was sent
	good Update // the last of them that the API server sent
	have bool   // good is set
}

// once lists if it must, and watches until that ends.
func (w *watcher) once(ctx context.Context) error {
	if w.version == "" {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	err := w.watch(ctx)
	// What the API server itself refuses may have to do with the version.
	if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
		w.version = ""
	}
	if tooOld(err) {
		return errTooOld
	}
	return err
}

func tooOld(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

func (w *watcher) list(ctx context.Context) error {
	c := w.cluster
	ctx, cancel := context.WithTimeout(ctx, c.config.Within)
	defer cancel()
	body, err := c.client.Get().AbsPath(c.path()...).Param("fieldSelector", "metadata.name="+c.config.Node).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the API server knows no %s: the SR-IOV network operator's definitions are not there: %w", nodestate.Resource, err)
	case err != nil:
		return fmt.Errorf("list %s: %w", c, err)
	}
	var answer struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("the API server's list of %s makes no sense: %w", nodestate.Resource, err)
	}
	update := Update{Gone: true}
	for _, item := range answer.Items {
		if u := object(item); u.State.Name == c.config.Node {
			update = u
		}
	}
	w.version = answer.Metadata.ResourceVersion
	if w.version == "" {
		return fmt.Errorf("the API server's list of %s has no resourceVersion", nodestate.Resource)
	}
	w.send(ctx, update)
	return nil
}

// event is one of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

func (w *watcher) watch(ctx context.Context) error {
	c := w.cluster
	long := 10*c.config.Within + rand.N(10*c.config.Within)
	// A server that is gone without a word does not end the watch.
	ctx, cancel := context.WithTimeout(ctx, long+c.config.Within)
	defer cancel()
	stream, err := c.client.Get().AbsPath(c.path()...).
		Param("fieldSelector", "metadata.name="+c.config.Node).
		Param("watch", "true").Param("resourceVersion", w.version).Param("allowWatchBookmarks", "true").
		Param("timeoutSeconds", strconv.Itoa(max(1, int(long/time.Second)))).
		Stream(ctx)
	if err != nil {
		return fmt.Errorf("watch %s: %w", c, err)
	}
	defer func() { _ = stream.Close() }()
	if w.told && w.last.Err != nil && w.have {
		w.send(ctx, w.good) // the API server is back, and nothing was missed
	}
	limited := &io.LimitedReader{R: stream, N: maxAnswer}
	for decoder := json.NewDecoder(limited); ; limited.N = maxAnswer {
		var e event
		switch err := decoder.Decode(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("the watch of %s broke: %w", c, err)
		}
		if err := w.take(ctx, e); err != nil {
			return err
		}
	}
}

func (w *watcher) take(ctx context.Context, e event) error {
	if e.Type == "ERROR" {
		return statusError(e.Object)
	}
	var meta struct {
		Metadata struct {
			Name            string `json:"name"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(e.Object, &meta); err != nil || meta.Metadata.ResourceVersion == "" {
		w.version = "" // what was missed is in a list
		return fmt.Errorf("an event %q of the API server has no version: %.200s", e.Type, e.Object)
	}
	w.version = meta.Metadata.ResourceVersion
	if meta.Metadata.Name != w.cluster.config.Node && e.Type != "BOOKMARK" {
		return nil
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		w.send(ctx, object(e.Object))
	case "DELETED":
		w.send(ctx, Update{Gone: true})
	}
	return nil
}

// statusError is the error that an event of type ERROR carries.
func statusError(object json.RawMessage) error {
	var s metav1.Status
	if err := json.Unmarshal(object, &s); err != nil || s.Code < http.StatusBadRequest {
		return fmt.Errorf("the API server ended the watch with an error: %.200s", object)
	}
	return &apierrors.StatusError{ErrStatus: s}
}

// object reads one. It has name, uid and generation also when the rest makes no
// sense.
func object(text json.RawMessage) Update {
	var meta struct {
		Metadata struct {
			Name, UID  string
			Generation int64
		}
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		return Update{Err: fmt.Errorf("the %s of the API server is no object: %w", nodestate.Kind, err)}
	}
	u := Update{State: nodestate.NodeState{Name: meta.Metadata.Name, UID: meta.Metadata.UID, Generation: meta.Metadata.Generation}}
	content := map[string]any{}
	err := decode(text, &content)
	if err == nil {
		var state nodestate.NodeState
		if state, u.Warnings, err = nodestate.FromObject(content); err == nil {
			u.State = state
			return u
		}
	}
	u.Err = fmt.Errorf("%s %s, generation %d: %w", nodestate.Kind, meta.Metadata.Name, meta.Metadata.Generation, err)
	return u
}

// send sends what is not known yet. The version of an object, and what others
// write beside spec and status, are no news.
func (w *watcher) send(ctx context.Context, u Update) {
	if w.told && equal(u, w.last) {
		return
	}
	select {
	case w.out <- u:
		w.told, w.last = true, u
		if u.Err == nil || u.State.Name != "" { // not an error of the connection
			w.good, w.have = u, true
		}
	case <-ctx.Done():
		// It is found again by the next list.
		w.version = ""
	}
}

func equal(a, b Update) bool {
	if a.Err != nil || b.Err != nil {
		return a.Err != nil && b.Err != nil && a.Err.Error() == b.Err.Error()
	}
	for _, s := range []*nodestate.NodeState{&a.State, &b.State} {
		s.ResourceVersion, s.Annotations = "", nil
	}
	return reflect.DeepEqual(a, b)
}

func sleep(ctx context.Context, long time.Duration) {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
