package daemon

import (
	"fmt"
	"time"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/podresources"
)

const maxTexts = 64

// Status is a daemon's status.
type Status struct {
	Mode  Mode      `json:"mode"`
	Phase Phase     `json:"phase"`
	Since time.Time `json:"since"` // of Phase
	// Reason is what Phase waits for, or the current problem.
	Reason string `json:"reason,omitempty"`
	// Newest valid node state.
	UID        string   `json:"uid,omitempty"`
	Generation int64    `json:"generation"`
	Warnings   []string `json:"warnings,omitempty"`
	// Why a newer node state is not valid.
	Source string `json:"source,omitempty"`

	// Of the last plan, at most 64 each.
	Steps    []string `json:"steps,omitempty"`
	Problems []string `json:"problems,omitempty"`
	Notes    []string `json:"notes,omitempty"`
	// Unsupported settings; in mode Follow the operator applies them.
	NotDone []string `json:"notDone,omitempty"`
	Step    string   `json:"step,omitempty"` // running
	Done    uint64   `json:"done"`           // completed since the start
	// Functions that are not offered, with the reason; other functions are while the
	// gate is held.
	Closed gate.Closed `json:"closed,omitempty"`
	// PFs that drifted, or whose repair failed.
	Conditions []Condition `json:"conditions,omitempty"`
	// Functions that must be changed and that pods hold.
	Held []podresources.Holder `json:"held,omitempty"`
	// Why the plugin could not acknowledge the last withdrawal.
	Unacknowledged string `json:"unacknowledged,omitempty"`
	// Why the last withdrawal failed.
	Withdrawal string    `json:"withdrawal,omitempty"`
	Next       time.Time `json:"next,omitzero"`   // observation
	Looked     time.Time `json:"looked,omitzero"` // start of the last observation

	Gate GateStatus `json:"gate"`
}

// GateStatus is the gate's status.
type GateStatus struct {
	State      control.RenewerState `json:"state,omitempty"`
	Since      time.Time            `json:"since,omitzero"`
	Reason     string               `json:"reason,omitempty"`
	Generation int64                `json:"generation,omitempty"` // accepted by the plugin
	Plugin     string               `json:"plugin,omitempty"`     // of the plugin
	Resources  int                  `json:"resources,omitempty"`
	Devices    int                  `json:"devices,omitempty"` // devices that pods can get
}

func gateStatus(s control.RenewerStatus) GateStatus {
	g := GateStatus{State: s.State, Since: s.Since, Reason: s.Reason}
	if s.Held != nil {
		g.Generation, g.Plugin, g.Resources, g.Devices = s.Held.Generation, fmt.Sprint(s.Plugin.State), s.Plugin.Pools, s.Plugin.Devices
	}
	return g
}

func initialStatus(m Mode, now time.Time) Status {
	return Status{Mode: m, Phase: Waiting, Since: now, Reason: "the node state was not read yet"}
}

func (r *reconciler) snapshot() Status {
	s := r.status
	if r.desired.err != nil {
		s.Source = r.desired.err.Error()
	}
	s.Next, s.Looked = r.due, r.observedAt
	if s.Conditions = r.conditionsNow(); r.gate.position == gateOpen {
		s.Closed = r.gate.claim.Closed
	}
	return s
}

func all[T fmt.Stringer](list []T) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.String())
	}
	return out
}

// texts returns the first strings and the number of the others.
func texts[T fmt.Stringer](list []T) []string {
	out := all(list[:min(len(list), maxTexts)])
	if n := len(list) - maxTexts; n > 0 {
		out = append(out, fmt.Sprintf("and %d more", n))
	}
	return out
}
