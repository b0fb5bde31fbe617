package register

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// State is a registration's state.
type State string

const (
	// Absent: the socket could not be created; retried.
	Absent State = "absent"
	// Yielding: another live process serves the path, which is replaced once
	// that process is gone.
	Yielding State = "yielding"
	// Waiting: no host has called GetInfo yet.
	Waiting State = "waiting"
	// Silent: Waiting for longer than Config.Silence; usually no host watches
	// the directory.
	Silent State = "silent"
	// Asked: a host has called GetInfo without a result yet.
	Asked State = "asked"
	// Registered: the last result was success.
	Registered State = "registered"
	// Refused: the last result was an error. The host retries.
	Refused State = "refused"
)

func states() []State {
	return []State{Absent, Yielding, Waiting, Silent, Asked, Registered, Refused}
}

// Status is a registration's observed state.
type Status struct {
	State State `json:"state"`
	// Problem, usual cause, and what to do; empty without a problem.
	Reason string `json:"reason,omitempty"`
	// The host's error.
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since"` // of the state

	Plugin
	Socket   string    `json:"socket"`
	Placed   time.Time `json:"placed,omitzero"` // creation of the socket
	Asked    time.Time `json:"asked,omitzero"`  // last GetInfo on this socket
	Notified time.Time `json:"told,omitzero"`   // last NotifyRegistrationStatus on this socket

	Questions int `json:"questions"` // GetInfo calls
	Refusals  int `json:"refusals"`  // error results
	Losses    int `json:"losses"`    // sockets that another process removed or replaced
}

// record is the history from which the state is derived.
type record struct {
	changed    time.Time
	missing    error // why there is no socket
	placed     time.Time
	askedAt    time.Time // on this socket
	notifiedAt time.Time
	accepted   bool
	refusal    string // of the last result
	// nameTaken: another plugin had the name when this socket was refused. The kubelet
	// deregisters that one by its name while it registers this one: the result can be
	// success, and the plugin is deregistered.
	nameTaken bool

	watchersFound time.Time // last search
	watchers      string

	questions, refusals, losses int
}

func (r *record) place(now time.Time) {
	r.missing, r.placed, r.changed = nil, now, now
	r.askedAt, r.notifiedAt, r.accepted, r.refusal, r.nameTaken = time.Time{}, time.Time{}, false, "", false
}

// Repeating the same reason changes nothing.
func (r *record) miss(now time.Time, why error) {
	if r.missing != nil && errors.Is(r.missing, unixsock.ErrLive) == errors.Is(why, unixsock.ErrLive) {
		r.missing = why
		return
	}
	r.missing, r.placed, r.changed = why, time.Time{}, now
	r.askedAt, r.notifiedAt, r.accepted, r.refusal, r.nameTaken = time.Time{}, time.Time{}, false, "", false
}

func (r *record) lose(now time.Time, why error) {
	r.losses++
	r.miss(now, why)
}

func (r *record) getInfo(now time.Time) {
	r.questions++
	if r.missing != nil {
		return
	}
	if r.askedAt.IsZero() {
		r.changed = now
	}
	r.askedAt = now
}

// notified ignores a result without a GetInfo on this socket: it is about an
// earlier one.
func (r *record) notified(now time.Time, accepted bool, text string) bool {
	if r.missing != nil || r.askedAt.IsZero() {
		return false
	}
	if r.notifiedAt.IsZero() || r.accepted != accepted {
		r.changed = now
	}
	r.notifiedAt, r.accepted, r.refusal = now, accepted, text
	if !accepted {
		r.refusals++
		r.nameTaken = r.nameTaken || strings.Contains(text, nameTaken)
	}
	return true
}

// isUnsure reports whether the plugin has to register again to know that it is
// registered.
func (r *record) isUnsure() bool { return r.accepted && r.nameTaken }

// nameTaken is in the kubelet's refusal of a CSI driver whose name is registered from
// another socket.
const nameTaken = "already registered"

// resultTimeout: a kubelet gives a CSI driver 2 min for NodeGetInfo alone.
const resultTimeout = 150 * time.Second

// status derives the state. GetInfo after a result changes nothing: it might be
// an inspection, and a restarted host reports again.
func (r *record) status(now time.Time, silence time.Duration) Status {
	s := Status{
		Since: r.changed, Placed: r.placed, Asked: r.askedAt, Notified: r.notifiedAt,
		Questions: r.questions, Refusals: r.refusals, Losses: r.losses,
	}
	switch {
	case errors.Is(r.missing, unixsock.ErrLive):
		s.State = Yielding
		s.Reason = fmt.Sprintf("%v: another instance of this plugin or a registrar sidecar. This instance takes over when that process ends; run only one of them per node", r.missing)
	case r.missing != nil:
		s.State, s.Reason = Absent, r.missing.Error()
	case r.isUnsure():
		s.State, s.Reason = Asked, "the plugin that had this name before was deregistered at the same time, and perhaps this one with it: it registers again"
	case !r.notifiedAt.IsZero() && r.accepted:
		s.State = Registered
	case !r.notifiedAt.IsZero():
		s.State, s.Error, s.Reason = Refused, r.refusal, whyRefused(r.refusal)
	case !r.askedAt.IsZero():
		s.State = Asked
		if since := now.Sub(r.askedAt); since >= resultTimeout {
			s.Reason = fmt.Sprintf("a host called GetInfo %s ago and has not reported a result: it is still registering the plugin, the call timed out on its side (a kubelet waits 1 s), or it only inspected the plugin", since.Round(time.Second))
		}
	case now.Sub(r.placed) >= silence:
		s.State, s.Since = Silent, r.placed.Add(silence)
		s.Reason = fmt.Sprintf("no host has called GetInfo for %s: usually no kubelet watches this directory. "+
			"A kubelet watches plugins_registry below its --root-dir: /var/lib/kubelet, or /var/snap/microk8s/common/var/lib/kubelet with MicroK8s. "+
			"In a container that directory must be mounted from the host, and the socket's path on the host is limited to %d bytes. "+
			"A kubelet that found a dead socket here before calls within 2 min%s",
			now.Sub(r.placed).Round(time.Second), unixsock.MaxPath, r.watchers)
	default:
		s.State = Waiting
	}
	return s
}

func whyRefused(text string) string {
	const again = "; the host retries by itself with exponential backoff (a kubelet's grows to 2 min)"
	for _, hint := range []struct{ word, means string }{
		{nameTaken, "the name is registered from another socket, by another instance of this plugin or a registrar sidecar; stop that one"},
		{"no handler registered", "the host does not handle plugins of this type"},
		{"no such file or directory", "the host does not find the endpoint: announce its path on the host, which can differ from the path in a container"},
		{"connection refused", "no process serves the endpoint on the host: announce its path on the host, and serve it"},
		{"DeadlineExceeded", "the host's call to the endpoint timed out"},
	} {
		if strings.Contains(text, hint.word) {
			return hint.means + again
		}
	}
	return "see the host's error" + again
}
