package ledger

import (
	"context"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Ending is a session, recorded before it is ended: it can be gone from every
// list while its server still processes its last requests, and would be unknown
// after a crash.
type Ending struct {
	Enforcer string         `json:"enforcer"` // that listed the session
	Session  volume.Session `json:"session"`
}

// endings is keyed by enforcer and session ID.
func endings() store.Bucket[Ending] { return store.Bucket[Ending]{Name: "ending"} }

func endingKey(e Ending) string { return e.Enforcer + separator + e.Session.ID }

// RecordEnding records sessions durably, in one transaction.
func (l *Ledger) RecordEnding(ctx context.Context, list []Ending) error {
	return l.changeEnding(ctx, list, func(tx *store.Tx, e Ending) error { return endings().Put(tx, endingKey(e), e) })
}

// ForgetEnding removes records of ended sessions.
func (l *Ledger) ForgetEnding(ctx context.Context, list []Ending) error {
	return l.changeEnding(ctx, list, func(tx *store.Tx, e Ending) error { return endings().Delete(tx, endingKey(e)) })
}

func (l *Ledger) changeEnding(ctx context.Context, list []Ending, change func(tx *store.Tx, e Ending) error) error {
	if len(list) == 0 {
		return nil
	}
	return l.store.Update(ctx, func(tx *store.Tx) error {
		for _, e := range list {
			if isBadName(e.Enforcer) || e.Session.ID == "" {
				return errs.Errorf(errs.Internal, "session %q of enforcer %q has an invalid name", e.Session.ID, e.Enforcer)
			}
			if err := change(tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// Ending returns the recorded sessions, sorted by enforcer and ID.
func (l *Ledger) Ending(ctx context.Context) (all []Ending, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) (err error) {
		all, err = store.Values(endings().Range(tx, ""))
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
