package node

import (
	"context"
	"errors"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/volume"
)

// Waiting returns what a call on a staged volume waits for: calls that the kernel
// has not finished, and storage that cannot be reached. nil: neither is known.
func (m *Manager) Waiting(ctx context.Context, id volume.ID) error {
	var waits []error
	if calls := kernelcall.Running(string(id)); calls != "" {
		waits = append(waits, errs.Errorf(errs.Unavailable, "the kernel has not finished %s", calls))
	}
	rec, staged, err := m.records.stage(ctx, id)
	if err != nil || !staged {
		return errors.Join(append(waits, err)...)
	}
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return errors.Join(append(waits, err)...)
	}
	info, err := s.inspect(ctx)
	if err == nil && info.Presence == Unreachable {
		err = info.Problem
	}
	return errors.Join(append(waits, err)...)
}
