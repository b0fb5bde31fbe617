package register

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// State is how far a registration has come.
type State string

const (
	// Absent: there is no socket, since it could not be made. It is tried again.
	Absent State = "absent"
	// Yielding: another live process serves a socket at that path. It is left
	// alone, and replaced when that process has gone.
	Yielding State = "yielding"
	// Waiting: the socket is in place, and nobody has asked yet.
	Waiting State = "waiting"
	// Silent: the same for too long. Nearly always nobody watches the directory.
	Silent State = "silent"
	// Asked: a host has asked who this is, and has not said what came of it.
	Asked State = "asked"
	// Registered: the host's last word was yes.
	Registered State = "registered"
	// Refused: the host's last word was no. It asks again by itself.
	Refused State = "refused"
)

// states are all of them.
func states() []State {
	return []State{Absent, Yielding, Waiting, Silent, Asked, Registered, Refused}
}

// Status is what is known of the registration.
type Status struct {
	State State `json:"state"`
	// Reason says what is wrong, what that usually means and what to do; empty
	// when nothing is.
	Reason string `json:"reason,omitempty"`
	// Error is what the host said when it refused.
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since"` // of the state

	Plugin
	Socket string    `json:"socket"`
	Placed time.Time `json:"placed,omitzero"` // when the socket that is there was made
	Asked  time.Time `json:"asked,omitzero"`  // last GetInfo on it
	Told   time.Time `json:"told,omitzero"`   // last NotifyRegistrationStatus on it

	Questions int `json:"questions"` // calls of GetInfo
	Refusals  int `json:"refusals"`  // hosts' words of refusal
	Losses    int `json:"losses"`    // sockets that somebody took away or replaced
}

// record is what has happened. It is plain data: no clock, no socket.
type record struct {
	changed time.Time // the latest of what follows
	missing error     // why there is no socket of ours; nil: there is one
	placed  time.Time
	asked   time.Time // zero until somebody has asked at this socket
	told    time.Time
	yes     bool   // the host's last word
	text    string // why not

	sought  time.Time // when who watches the directory was last looked for
	watched string    // who that is, as far as it can be seen

	questions, refusals, losses int
}

func (r *record) place(now time.Time) {
	r.missing, r.placed, r.changed = nil, now, now
	r.asked, r.told, r.yes, r.text = time.Time{}, time.Time{}, false, ""
}

// miss takes down why there is no socket; the same reason again changes
// nothing.
func (r *record) miss(now time.Time, why error) {
	if r.missing != nil && errors.Is(r.missing, unixsock.ErrLive) == errors.Is(why, unixsock.ErrLive) {
		r.missing = why
		return
	}
	r.missing, r.placed, r.changed = why, time.Time{}, now
	r.asked, r.told, r.yes, r.text = time.Time{}, time.Time{}, false, ""
}

func (r *record) lose(now time.Time, why error) {
	r.losses++
	r.miss(now, why)
}

func (r *record) question(now time.Time) {
	r.questions++
	if r.missing != nil {
		return
	}
	if r.asked.IsZero() {
		r.changed = now
	}
	r.asked = now
}

// answer takes down the host's word and reports whether it counts: one that
// nobody asked for at this socket is about an earlier one, which the host is
// about to notice.
func (r *record) answer(now time.Time, yes bool, text string) bool {
	if r.missing != nil || r.asked.IsZero() {
		return false
	}
	if r.told.IsZero() || r.yes != yes {
		r.changed = now
	}
	r.told, r.yes, r.text = now, yes, text
	if !yes {
		r.refusals++
	}
	return true
}

// slow is how long a host may take with what it was told: a kubelet gives a CSI
// driver 2 min for NodeGetInfo alone.
const slow = 150 * time.Second

// status is what the record means at a moment. A question changes nothing when
// the host has spoken already: it may be that of somebody who only looks, and a
// host that starts again speaks again.
func (r *record) status(now time.Time, silence time.Duration) Status {
	s := Status{
		Since: r.changed, Placed: r.placed, Asked: r.asked, Told: r.told,
		Questions: r.questions, Refusals: r.refusals, Losses: r.losses,
	}
	switch {
	case errors.Is(r.missing, unixsock.ErrLive):
		s.State = Yielding
		s.Reason = fmt.Sprintf("%v: it is another instance of this plugin, or a registrar that runs beside it; it is left alone, and this one takes over when it has gone. Run one of them per node", r.missing)
	case r.missing != nil:
		s.State, s.Reason = Absent, r.missing.Error()
	case !r.told.IsZero() && r.yes:
		s.State = Registered
	case !r.told.IsZero():
		s.State, s.Error, s.Reason = Refused, r.text, whyRefused(r.text)
	case !r.asked.IsZero():
		s.State = Asked
		if since := now.Sub(r.asked); since >= slow {
			s.Reason = fmt.Sprintf("a host asked %s ago and has not said what came of it: it still works on that, it got no answer within its time (a kubelet waits 1 s), or it only looked", since.Round(time.Second))
		}
	case now.Sub(r.placed) >= silence:
		s.State, s.Since = Silent, r.placed.Add(silence)
		s.Reason = fmt.Sprintf("nobody has called GetInfo for %s: nearly always no kubelet watches this directory. "+
			"A kubelet watches plugins_registry below its --root-dir: /var/lib/kubelet, but /var/snap/microk8s/common/var/lib/kubelet with microk8s and another where --root-dir says so. "+
			"In a container that directory must be mounted from the host, and the socket's path on the host may have %d bytes at most. "+
			"A kubelet that met a dead socket here before asks within 2 min%s",
			now.Sub(r.placed).Round(time.Second), unixsock.MaxPath, r.watched)
	default:
		s.State = Waiting
	}
	return s
}

// whyRefused adds to a host's text what it usually means.
func whyRefused(text string) string {
	const again = "; the host tries again by itself, with growing pauses (a kubelet's grow to 2 min)"
	for _, hint := range []struct{ word, means string }{
		{"already registered", "the host has this name from another socket: another instance of this plugin, or a registrar beside it; end that one"},
		{"no handler registered", "the host does not take plugins of this type"},
		{"no such file or directory", "the host does not find the endpoint: announce its path as the host sees it, which may differ from the one in a container"},
		{"connection refused", "nobody serves the endpoint as the host sees it: announce the path on the host, and serve it"},
		{"DeadlineExceeded", "the host reached no answer at the endpoint in its time"},
	} {
		if strings.Contains(text, hint.word) {
			return hint.means + again
		}
	}
	return "the host's own text says why" + again
}
