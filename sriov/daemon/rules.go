package daemon

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Mode is who configures the node.
type Mode string

// The modes.
const (
	Apply  Mode = "apply"  // this daemon
	Follow Mode = "follow" // the operator's
)

// ParseMode reads the name of a mode.
func ParseMode(name string) (Mode, error) {
	switch m := Mode(name); m {
	case Apply, Follow:
		return m, nil
	}
	return "", fmt.Errorf("mode %q is unknown; it is %s or %s", name, Apply, Follow)
}

// Gate lets the plugin offer its devices; control.Renewer implements it.
type Gate interface {
	Enable(c gate.Claim)
	Disable(ctx context.Context) (control.Withdrawal, error)
	Status() control.RenewerStatus
	Changed() <-chan struct{}
}

// Host is the machine; host.Host implements it.
type Host interface {
	Read(ctx context.Context) (plan.State, error)
	Do(ctx context.Context, s plan.Step) error
}

// Pods is the kubelet; podresources.Client implements it.
type Pods interface {
	Held(ctx context.Context) ([]podresources.Holder, error)
	Offered(ctx context.Context) (map[string][]string, error)
}

// Rules are the settings of a daemon.
type Rules struct {
	Mode   Mode
	Force  bool          // change functions also when pods hold them, or when this is unknown
	Resync time.Duration // between two observations of a node in the desired state; 0: 5 min
	Settle time.Duration // from the withdrawal to the first step
	// Unacknowledged is how long a plugin that cannot acknowledge a withdrawal may
	// take for it. 0: 10 s.
	Unacknowledged time.Duration
	// Of the claims.
	Node        string
	Lease, Hold time.Duration
	// Spread keeps nodes from retrying at the same time; nil: between half and all
	// of a pause.
	Spread func(time.Duration) time.Duration
}

func (r Rules) withDefaults() Rules {
	r.Resync = cmp.Or(r.Resync, 5*time.Minute)
	r.Unacknowledged = cmp.Or(r.Unacknowledged, 10*time.Second)
	if r.Spread == nil {
		r.Spread = func(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
	}
	return r
}

// Phase is how far a daemon is.
type Phase string

// The phases. Devices may be offered in Serving only.
const (
	Waiting     Phase = "waiting"     // no node state exists
	Looking     Phase = "looking"     // the node was not observed yet
	Withdrawing Phase = "withdrawing" // the plugin withdraws its devices
	Applying    Phase = "applying"
	Blocked     Phase = "blocked" // pods hold functions that have to change, or this is unknown
	Failed      Phase = "failed"  // retried with backoff
	Pending     Phase = "pending" // the operator is not done
	Serving     Phase = "serving" // the gate is open, as far as it is up to this daemon
	Away        Phase = "away"    // another daemon has the gate
)

// Phases returns all of them.
func Phases() []Phase {
	return []Phase{Waiting, Looking, Withdrawing, Applying, Blocked, Failed, Pending, Serving, Away}
}
