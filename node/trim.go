package node

import (
	"context"
	"errors"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/volume"
)

// Run trims volumes when their time has come, until ctx ends. It is the one
// goroutine that does so.
func (m *Manager) Run(ctx context.Context) error {
	ticker := time.NewTicker(m.config.TrimCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := m.TrimDue(ctx); err != nil && ctx.Err() == nil {
				m.log.WarnContext(ctx, "periodic trim", "error", err)
			}
		}
	}
}

// trimmable is a mounted volume with the time of its last trim.
type trimmable struct {
	source
	path string
	last time.Time
	done func(ctx context.Context, at time.Time) error // records a trim
}

// TrimDue trims the volumes whose interval has passed since they were trimmed
// last, or else mounted. One that fails or is needed by somebody is left for
// the next time and does not keep the others from it.
func (m *Manager) TrimDue(ctx context.Context) error {
	ids, err := m.Volumes(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := m.trim(ctx, id, time.Now())
		if err != nil && !errors.Is(err, errs.Busy) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Trim gives the free blocks of a mounted volume back to its storage now, and
// returns how many bytes that were. NotFound: it is not mounted here. Busy:
// somebody else needs the volume.
func (m *Manager) Trim(ctx context.Context, id volume.ID) (int64, error) {
	return m.trim(ctx, id, time.Time{})
}

// trim trims a volume that is due at a time; zero: in any case.
func (m *Manager) trim(ctx context.Context, id volume.ID, now time.Time) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unlock, err := m.locks.Lock(ctx, "volume:"+string(id))
	if err != nil {
		return 0, err
	}
	defer unlock()
	if !m.trims.begin(id, cancel) {
		return 0, errs.Errorf(errs.Busy, "volume %s is in use by another call; try again", id)
	}
	defer m.trims.end(id)
	t, ok, err := m.trimmable(ctx, id)
	if err != nil {
		return 0, err
	}
	if !now.IsZero() {
		due, err := t.due(ctx, ok, now)
		if err != nil || !due {
			return 0, err
		}
	}
	if !ok {
		return 0, errs.Errorf(errs.NotFound, "volume %s is not mounted for writing on this node", id)
	}
	freed, err := fstrim.Trim(ctx, t.path)
	if err != nil && !errors.Is(err, fstrim.ErrUnsupported) {
		return freed, err
	}
	return freed, errors.Join(t.done(ctx, time.Now()), err)
}

func (t trimmable) due(ctx context.Context, mounted bool, now time.Time) (bool, error) {
	if !mounted {
		return false, nil
	}
	v, err := t.look(ctx)
	return err == nil && v.TrimInterval > 0 && !now.Before(t.last.Add(v.TrimInterval)), err
}

// trimmable finds where a volume is mounted for writing.
func (m *Manager) trimmable(ctx context.Context, id volume.ID) (trimmable, bool, error) {
	rec, ok, err := m.records.stage(ctx, id)
	if err != nil {
		return trimmable{}, false, err
	}
	if ok {
		if rec.Capability.Block || rec.ReadOnly || !m.counts(rec.State, rec.mounted) {
			return trimmable{}, false, nil
		}
		s, err := m.source(rec.Locator, rec.mounted)
		return trimmable{source: s, path: rec.Staging, last: rec.last(), done: func(ctx context.Context, at time.Time) error {
			rec.Trimmed = at
			return m.records.putStage(ctx, id, rec)
		}}.live(ctx, err)
	}
	publishes, err := m.records.publishesOf(ctx, id)
	if err != nil {
		return trimmable{}, false, err
	}
	for _, p := range publishes {
		if p.Ephemeral == nil || p.ReadOnly || !m.counts(p.State, p.mounted) {
			continue
		}
		s, err := m.sourceOf(ctx, p.publishRecord)
		return trimmable{source: s, path: p.Target, last: p.last(), done: func(ctx context.Context, at time.Time) error {
			p.Trimmed = at
			return m.records.putPublish(ctx, p.Target, p.publishRecord)
		}}.live(ctx, err)
	}
	return trimmable{}, false, nil
}

// live keeps a trim from the file system below a mount that is gone.
func (t trimmable) live(ctx context.Context, err error) (trimmable, bool, error) {
	if err != nil {
		return t, false, err
	}
	v, err := t.look(ctx)
	if err != nil || v.Device.IsZero() {
		return t, false, err
	}
	_, there, err := mountAt(ctx, t.path, v.Device)
	return t, there, ignoreForeign(err)
}

// last is when a volume was trimmed, or else mounted.
func (m mounted) last() time.Time {
	if m.Trimmed.IsZero() {
		return m.Since
	}
	return m.Trimmed
}
