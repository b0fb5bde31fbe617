package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Preview is what a daemon would do.
type Preview struct {
	UID        string   `json:"uid,omitempty"`
	Generation int64    `json:"generation"`
	Warnings   []string `json:"warnings,omitempty"` // about the node state
	Steps      []string `json:"steps"`
	More       bool     `json:"more"`              // what follows depends on the outcome of the steps
	Touches    []string `json:"touches,omitempty"` // functions that the steps disturb
	Problems   []string `json:"problems,omitempty"`
	Notes      []string `json:"notes,omitempty"`
	NotDone    []string `json:"notDone,omitempty"` // asked for, and not done by the daemon
	// Held are the functions among Touches that pods hold.
	Held []podresources.Holder `json:"held,omitempty"`
	// Unknown is why nobody can tell what pods hold.
	Unknown string `json:"unknown,omitempty"`
}

// ErrNoState: there is no node state to plan for.
var ErrNoState = errors.New("there is no SriovNetworkNodeState")

// Look plans for what a source says first, and changes nothing. Of the config,
// Source and Host are needed; a Store tells which PFs were ours before.
func Look(ctx context.Context, c Config) (Preview, error) {
	c.Metrics = nil
	d, err := New(c)
	if err != nil {
		return Preview{}, err
	}
	u, err := first(ctx, c.Source)
	if err != nil {
		return Preview{}, err
	}
	m := newMachine(c.Rules, Record{}, d.status.Since)
	if c.Store != nil {
		if m.record, err = load(ctx, c.Store); err != nil {
			return Preview{}, err
		}
	}
	m.wish = u.State
	seen := d.look(ctx)
	if seen.err == nil {
		seen.err = m.missing(seen)
	}
	if seen.err != nil {
		return Preview{}, fmt.Errorf("read the node: %w", seen.err)
	}
	p := plan.Make(u.State.Spec, seen.state, plan.Options{Managed: m.managed(), Held: ids(seen.pods.holders), GUIDs: seen.guids})
	v := preview(u, p, seen.pods)
	if c.Rules.Mode == Apply {
		v.NotDone = plan.NotDone(u.State.Spec)
	}
	return v, nil
}

func preview(u source.Update, p plan.Plan, pods podsSaid) Preview {
	v := Preview{UID: u.State.UID, Generation: u.State.Generation, Warnings: all(u.Warnings), More: p.More,
		Steps: all(p.Steps), Touches: p.Touches, Problems: all(p.Problems), Notes: all(p.Notes)}
	if v.Steps == nil {
		v.Steps = []string{}
	}
	if pods.err != nil {
		v.Unknown = pods.err.Error()
	}
	for _, h := range pods.holders {
		if slices.Contains(p.Touches, h.ID) {
			v.Held = append(v.Held, h)
		}
	}
	return v
}

func all[T fmt.Stringer](list []T) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.String())
	}
	return out
}

// first is what a source says first.
func first(ctx context.Context, s source.Source) (u source.Update, err error) {
	got := errors.New("an update was received")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = s.Run(ctx, func(next source.Update) {
		if context.Cause(ctx) != got {
			u = next
			stop(got)
		}
	})
	if !errors.Is(err, got) {
		return u, fmt.Errorf("the node state was not read: %w", err)
	}
	switch {
	case u.Gone:
		return u, ErrNoState
	case u.Err != nil:
		return u, u.Err
	}
	return u, check(u.State)
}

func check(n nodestate.NodeState) error {
	if err := n.Spec.Check(); err != nil {
		return fmt.Errorf("the node state, generation %d: %w", n.Generation, err)
	}
	return nil
}
