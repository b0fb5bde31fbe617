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

const (
	Apply  Mode = "apply"  // this daemon
	Follow Mode = "follow" // the operator's daemon
)

func ParseMode(name string) (Mode, error) {
	switch m := Mode(name); m {
	case Apply, Follow:
		return m, nil
	}
	return "", fmt.Errorf("unknown mode %q, want %s or %s", name, Apply, Follow)
}

// Gate makes the plugin offer or withdraw its devices; control.Renewer
// implements it.
type Gate interface {
	Enable(c gate.Claim)
	Disable(ctx context.Context) (gate.Withdrawal, error)
	Status() control.RenewerStatus
	Changed() <-chan struct{}
}

// Host reads and changes the node; host.Host implements it.
type Host interface {
	Read(ctx context.Context) (plan.State, error)
	Do(ctx context.Context, s plan.Step) error
}

// Pods queries PodResources; podresources.Client implements it.
type Pods interface {
	Held(ctx context.Context) ([]podresources.Holder, error)
	Offered(ctx context.Context) (map[string][]string, error)
}

// Rules are a Daemon's settings.
type Rules struct {
	Mode  Mode
	Force bool // even if pods hold functions, or the holders are unknown
	// KeepResidue leaves what pods' networks left on functions.
	KeepResidue bool
	// Accept has kinds of plan.Unmet that do not close functions.
	Accept []string
	Resync time.Duration // observation interval in the desired state; 0: 5 min
	Settle time.Duration // between the withdrawal and the first step
	// Unacknowledged is the timeout if a plugin cannot acknowledge. 0: 10 s.
	Unacknowledged time.Duration
	// Used in claims.
	Node        string
	Lease, Hold time.Duration
	// Spread adds jitter to delays. Nil: between half and all.
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

// Phase is a daemon's phase.
type Phase string

// In mode Follow devices are offered in Serving only. In mode Apply the other
// phases are of the functions that the claim closes.
const (
	Waiting     Phase = "waiting" // no node state
	Observing   Phase = "looking" // not observed yet
	Withdrawing Phase = "withdrawing"
	Applying    Phase = "applying"
	Blocked     Phase = "blocked" // pods hold functions, or the holders are unknown
	Failed      Phase = "failed"  // retried with backoff
	Pending     Phase = "pending" // the operator has not finished
	Serving     Phase = "serving" // the gate is enabled
	Superseded  Phase = "away"    // another daemon holds the gate
)

func Phases() []Phase {
	return []Phase{Waiting, Observing, Withdrawing, Applying, Blocked, Failed, Pending, Serving, Superseded}
}
