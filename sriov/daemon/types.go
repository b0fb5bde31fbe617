package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/sriov/control"
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

// ParseMode reads the word.
func ParseMode(word string) (Mode, error) {
	switch m := Mode(word); m {
	case Apply, Follow:
		return m, nil
	}
	return "", fmt.Errorf("mode %q is unknown; it is %s or %s", word, Apply, Follow)
}

// Gate lets the plugin offer its devices; control.Keeper is the real one.
type Gate interface {
	Enable(c control.Claim)
	Disable(ctx context.Context) (control.Withdrawal, error)
	Status() control.KeeperStatus
	Changed() <-chan struct{}
}

// Host is the machine; host.Host is the real one.
type Host interface {
	Read(ctx context.Context) (plan.State, error)
	Do(ctx context.Context, s plan.Step) error
}

// Pods is the kubelet's word; podresources.Client is the real one.
type Pods interface {
	Held(ctx context.Context) ([]podresources.Holder, error)
	Offered(ctx context.Context) (map[string][]string, error)
}

// Rules are what decisions follow.
type Rules struct {
	Mode   Mode
	Force  bool          // touch functions also when pods hold them, or nobody can tell
	Resync time.Duration // between two looks at a node that is as wanted; 0: 5 min
	Settle time.Duration // from the withdrawal to the first step
	// Unacknowledged is how long a plugin that cannot acknowledge gets. 0: 10 s.
	Unacknowledged time.Duration
	// Of the claims.
	Node        string
	Lease, Hold time.Duration
	// Spread keeps nodes from trying again together; nil: between half and all of
	// a pause.
	Spread func(time.Duration) time.Duration
}

// Phase is how far a daemon is.
type Phase string

// The phases. Devices may be offered in Serving only.
const (
	Waiting     Phase = "waiting"     // nothing is wanted
	Looking     Phase = "looking"     // what is to be done is not known yet
	Withdrawing Phase = "withdrawing" // the plugin takes its devices back
	Applying    Phase = "applying"
	Blocked     Phase = "blocked" // pods hold what would be touched, or nobody can tell
	Failed      Phase = "failed"  // tried again with pauses that grow
	Pending     Phase = "pending" // the operator is not done
	Serving     Phase = "serving" // the gate is open, as far as it is up to this daemon
	Away        Phase = "away"    // another has the gate
)

// Phases are all of them.
func Phases() []Phase {
	return []Phase{Waiting, Looking, Withdrawing, Applying, Blocked, Failed, Pending, Serving, Away}
}

// Record is what outlives a process.
type Record struct {
	// Managed are the PFs whose functions we make.
	Managed []string `json:"managed,omitempty"`
	// Applying: steps were begun and not known to have come to an end.
	Applying   bool      `json:"applying,omitempty"`
	UID        string    `json:"uid,omitempty"`
	Generation int64     `json:"generation"`
	Spec       string    `json:"spec,omitempty"` // its hash
	Since      time.Time `json:"since"`          // of Applying, or of its end
}

// Events of a machine.
type (
	// looked answers look.
	looked struct {
		state   plan.State
		err     error // of state; it is what could be read when partial is set
		partial []string
		hash    string // of the plugin's configuration
		guids   []plan.GUIDPool
		pods    podsSaid
	}
	// withdrawn answers withdraw.
	withdrawn struct {
		result control.Withdrawal
		err    error
	}
	noted struct{ err error } // answers note
	did   struct{ err error } // answers do
	// stirred: something on the node may have changed.
	stirred struct{}
	// told: the gate's status changed.
	told struct{ status control.KeeperStatus }
	tick struct{}
)

// podsSaid is what the kubelet knows.
type podsSaid struct {
	unasked bool // there is no kubelet to ask
	holders []podresources.Holder
	offered map[string][]string
	mute    bool // it does not tell what is offered
	err     error
}

// Actions of a machine. Each but open is answered.
type (
	look     struct{}
	withdraw struct{}
	note     struct{ record Record }
	do       struct{ step plan.Step }
	open     struct{ claim control.Claim }
)
