package daemon

import (
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// maxTexts bounds each list of a Status.
const maxTexts = 64

// Status is how a daemon is, as a JSON document.
type Status struct {
	Mode  Mode      `json:"mode"`
	Phase Phase     `json:"phase"`
	Since time.Time `json:"since"` // of Phase
	// Reason is why it is not further, or what is wrong meanwhile.
	Reason string `json:"reason,omitempty"`
	// Of the newest wish that makes sense.
	UID        string   `json:"uid,omitempty"`
	Generation int64    `json:"generation"`
	Warnings   []string `json:"warnings,omitempty"` // about it
	// Source is why a newer wish is not known.
	Source string `json:"source,omitempty"`

	// What was left to do at the last look, each with at most 64 entries.
	Steps    []string `json:"steps,omitempty"`
	Problems []string `json:"problems,omitempty"`
	Notes    []string `json:"notes,omitempty"`
	// NotDone is what the desired state asks for and this daemon does not do; with
	// Follow the operator does it.
	NotDone []string `json:"notDone,omitempty"`
	Step    string   `json:"step,omitempty"` // under way
	Done    uint64   `json:"done"`           // steps since the start
	// Held are the functions in the way that pods hold.
	Held []podresources.Holder `json:"held,omitempty"`
	// Unacknowledged is why the plugin could not acknowledge the last
	// withdrawal.
	Unacknowledged string `json:"unacknowledged,omitempty"`
	// Withdrawal is why the devices could not be taken back.
	Withdrawal string    `json:"withdrawal,omitempty"`
	Next       time.Time `json:"next,omitzero"` // look at the node
	Looked     time.Time `json:"looked,omitzero"`

	Gate Gated `json:"gate"`

	err error
}

// Gated is how the gate is.
type Gated struct {
	State      control.KeeperState `json:"state,omitempty"`
	Since      time.Time           `json:"since,omitzero"`
	Reason     string              `json:"reason,omitempty"`
	Generation int64               `json:"generation,omitempty"` // that the plugin has accepted
	Plugin     string              `json:"plugin,omitempty"`     // state that it told
	Resources  int                 `json:"resources,omitempty"`
	Devices    int                 `json:"devices,omitempty"` // that pods may get
}

func gated(s control.KeeperStatus) Gated {
	g := Gated{State: s.State, Since: s.Since, Reason: s.Reason}
	if s.Held != nil {
		g.Generation, g.Plugin, g.Resources, g.Devices = s.Held.Generation, fmt.Sprint(s.Plugin.State), s.Plugin.Pools, s.Plugin.Devices
	}
	return g
}

func (s *Status) plan(p plan.Plan) {
	s.Steps, s.Problems, s.Notes = texts(p.Steps), texts(p.Problems), texts(p.Notes)
}

// snapshot is the machine's status at a moment.
func (m *machine) snapshot() Status {
	s := m.status
	if m.source != nil {
		s.Source = m.source.Error()
	}
	s.Next, s.Looked = m.due, m.lookedAt
	s.Held = slices.Clone(s.Held)
	return s
}

func texts[T fmt.Stringer](all []T) []string {
	var out []string
	for _, t := range all[:min(len(all), maxTexts)] {
		out = append(out, t.String())
	}
	if n := len(all) - maxTexts; n > 0 {
		out = append(out, fmt.Sprintf("and %d more", n))
	}
	return out
}
