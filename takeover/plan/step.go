package plan

import "net/netip"

// Step is what to do after one observation. If Status differs from the status
// that was observed, it is written, and the actions have to wait for the next
// observation. Actions are independent of each other: they can run at the same
// time, and each can fail or be lost.
type Step struct {
	Status  Status
	Actions []Action
}

// Action is one of the types below.
type Action interface{ action() }

// AddFinalizer and RemoveFinalizer change the remediation.
type (
	AddFinalizer    struct{}
	RemoveFinalizer struct{}
)

// ClaimNode writes the claim and makes the node unschedulable, in one update.
type ClaimNode struct{ Claim Claim }

// Fence asks a backend to fence addresses for this remediation as owner.
type Fence struct {
	Backend   string
	Addresses []netip.Addr
}

// TaintNode adds the taint node.kubernetes.io/out-of-service:NoExecute with
// TaintValue.
type TaintNode struct{ Value string }

// DeletePods deletes pods with grace period 0 and their UIDs as precondition.
type DeletePods struct{ Pods []Pod }

// Unfence lifts the fences of this remediation at a backend, and no others.
type Unfence struct {
	Backend   string
	Addresses []netip.Addr
}

// Forget removes the proof that the fences at a backend are lifted: the status has it.
type Forget struct {
	Backend   string
	Addresses []netip.Addr
}

// LeaveNode writes a claim that has Left, and removes what the controller had
// set, in one update.
type LeaveNode struct {
	Claim                 Claim
	RemoveTaint, Uncordon bool
}

func (AddFinalizer) action()    {}
func (RemoveFinalizer) action() {}
func (ClaimNode) action()       {}
func (Fence) action()           {}
func (TaintNode) action()       {}
func (DeletePods) action()      {}
func (Unfence) action()         {}
func (Forget) action()          {}
func (LeaveNode) action()       {}
