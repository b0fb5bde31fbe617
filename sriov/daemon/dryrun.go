package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Preview is the result of DryRun.
type Preview struct {
	UID        string   `json:"uid,omitempty"`
	Generation int64    `json:"generation"`
	Warnings   []string `json:"warnings,omitempty"` // about the node state
	Steps      []string `json:"steps"`
	More       bool     `json:"more"`              // further steps depend on these
	Touches    []string `json:"touches,omitempty"` // functions that the steps disturb
	Problems   []string `json:"problems,omitempty"`
	Notes      []string `json:"notes,omitempty"`
	NotDone    []string `json:"notDone,omitempty"` // not supported
	// Functions of Touches that pods hold.
	Held []podresources.Holder `json:"held,omitempty"`
	// Why Held is unknown.
	Unknown string `json:"unknown,omitempty"`
}

// ErrNoState means that the SriovNetworkNodeState does not exist.
var ErrNoState = errors.New("the SriovNetworkNodeState does not exist")

// DryRun plans for the first state of the source, without changes. It needs
// Source and Host; with a Store, previously managed PFs are known.
func DryRun(ctx context.Context, c Config) (Preview, error) {
	u, err := firstUpdate(ctx, c.Source)
	if err != nil {
		return Preview{}, err
	}
	var saved Record
	var functions Functions
	if c.Store != nil {
		if saved, err = load(ctx, c.Store); err != nil {
			return Preview{}, err
		}
		if functions, err = loadFunctions(ctx, c.Store, saved); err != nil {
			return Preview{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	o := (&Daemon{config: c}).observe(ctx)
	if _, err := o.notRead(u.State.Spec, nil); err == nil {
		t := newTracker(functions)
		o.baselines, _ = t.observe(u.State.Spec, o)
		o.accepted = t.saved.Accepted
	}
	r := newReconciler(c.Rules, saved, time.Time{})
	r.desired.state, r.holders = u.State, o.pods.holders
	p, err := r.plan(o)
	if err != nil {
		return Preview{}, err
	}
	v := Preview{UID: u.State.UID, Generation: u.State.Generation, Warnings: all(u.Warnings), More: p.More,
		Steps: append([]string{}, all(p.Steps)...), Touches: p.Touches, Problems: all(p.Problems), Notes: all(p.Notes)}
	if c.Rules.Mode == Apply {
		v.NotDone = plan.NotDone(u.State.Spec)
	}
	if o.pods.err != nil {
		v.Unknown = o.pods.err.Error()
	}
	for _, h := range o.pods.holders {
		if slices.Contains(p.Touches, h.ID) {
			v.Held = append(v.Held, h)
		}
	}
	return v, nil
}

func firstUpdate(ctx context.Context, s source.Source) (u source.Update, err error) {
	received := errors.New("an update was received")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = s.Run(ctx, func(next source.Update) {
		if !errors.Is(context.Cause(ctx), received) {
			u = next
			stop(received)
		}
	})
	switch {
	case !errors.Is(err, received):
		return u, fmt.Errorf("read the node state: %w", err)
	case u.Gone:
		return u, ErrNoState
	case u.Err != nil:
		return u, u.Err
	}
	if err := u.State.Spec.CheckNode(); err != nil {
		return u, fmt.Errorf("node state, generation %d: %w", u.State.Generation, err)
	}
	return u, nil
}
