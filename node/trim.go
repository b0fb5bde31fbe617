package node

import (
	"context"
	"errors"
	"time"

	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/volume"
)

type trimmable struct {
	source
	path   string
	last   time.Time
	record func(ctx context.Context, at time.Time) error // commits a trim
}

// TrimIfDue discards the free blocks of a volume mounted for writing, if its
// interval has passed since the last trim or the mount. due reports whether it
// has.
func (m *Manager) TrimIfDue(ctx context.Context, id volume.ID, now time.Time) (due bool, err error) {
	t, ok, err := m.trimmable(ctx, id)
	if err != nil || !ok {
		return false, err
	}
	info, err := t.inspect(ctx)
	if err != nil || info.Device.IsZero() || info.TrimInterval == 0 || now.Before(t.last.Add(info.TrimInterval)) {
		return false, err
	}
	// Otherwise the file system below would be trimmed.
	if _, there, err := mountAt(ctx, t.path, info.Device); err != nil || !there {
		return false, ignoreForeign(err)
	}
	_, err = fstrim.Trim(ctx, t.path)
	if err != nil && !errors.Is(err, fstrim.ErrUnsupported) {
		return true, err
	}
	return true, errors.Join(t.record(ctx, now), err)
}

// trimmable finds a writable mount.
func (m *Manager) trimmable(ctx context.Context, id volume.ID) (trimmable, bool, error) {
	rec, staged, err := m.records.stage(ctx, id)
	if err != nil {
		return trimmable{}, false, err
	}
	if staged {
		if rec.Capability.Block || rec.ReadOnly || !m.isExpected(id, rec.State, rec.mounted) {
			return trimmable{}, false, nil
		}
		s, err := m.source(rec.Locator, rec.mounted)
		return trimmable{source: s, path: rec.Staging, last: rec.last(), record: func(ctx context.Context, at time.Time) error {
			rec.Trimmed = at
			return m.records.putStage(ctx, id, rec)
		}}, true, err
	}
	publishes, err := m.records.publishesOf(ctx, id)
	if err != nil {
		return trimmable{}, false, err
	}
	for _, p := range publishes {
		if p.Inline == nil || p.ReadOnly || !m.isExpected(id, p.State, p.mounted) {
			continue
		}
		s, _, err := m.sourceOf(ctx, p.publishRecord)
		return trimmable{source: s, path: p.Target, last: p.last(), record: func(ctx context.Context, at time.Time) error {
			p.Trimmed = at
			return m.records.putPublish(ctx, p.Target, p.publishRecord)
		}}, true, err
	}
	return trimmable{}, false, nil
}

func (m mounted) last() time.Time {
	if m.Trimmed.IsZero() {
		return m.Since
	}
	return m.Trimmed
}
