package ledger

import (
	"context"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Ending is a session that is being ended. It is on record before the end
// begins: a session may be gone from every list while its server still works
// off what it has read, so that after a crash nobody else would know of it.
type Ending struct {
	Enforcer string         `json:"enforcer"` // whose Fencer listed it
	Session  volume.Session `json:"session"`
}

// endings are kept by enforcer and session id.
func endings() store.Bucket[Ending] { return store.Bucket[Ending]{Name: "ending"} }

func endingKey(e Ending) string { return e.Enforcer + separator + e.Session.ID }

// RememberEnding keeps sessions on record, durably, in one transaction. Those
// that are there already are written anew.
func (l *Ledger) RememberEnding(ctx context.Context, list []Ending) error {
	return l.changeEnding(ctx, list, func(tx *store.Tx, e Ending) error { return endings().Put(tx, endingKey(e), e) })
}

// ForgetEnding removes sessions that have ended; those that are not there are
// no error.
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
				return errs.Errorf(errs.Internal, "a session %q of enforcer %q cannot be kept", e.Session.ID, e.Enforcer)
			}
			if err := change(tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// Ending returns the sessions on record, in the order of enforcers, then ids.
func (l *Ledger) Ending(ctx context.Context) (all []Ending, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		for e, err := range endings().Range(tx, "") {
			if err != nil {
				return err
			}
			all = append(all, e.Value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
