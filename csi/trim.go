package csi

import (
	"context"
	"errors"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// RunTrims trims due volumes, one after the other, until ctx ends. A trim
// yields to every call on its volume.
func (s *Node) RunTrims(ctx context.Context) error {
	ticker := time.NewTicker(s.config.TrimCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		volumes, err := s.config.Manager.Volumes(ctx)
		if err != nil && ctx.Err() == nil {
			s.config.Logger.WarnContext(ctx, "list of volumes to trim failed, will retry", "err", err)
		}
		for _, id := range volumes {
			err := s.trim(ctx, id)
			if err != nil && ctx.Err() == nil && !errors.Is(err, errs.Busy) { // busy: due again
				s.config.Logger.WarnContext(ctx, "trim failed, will retry", "volume", id, "err", err)
			}
		}
	}
}

func (s *Node) trim(ctx context.Context, id volume.ID) error {
	r := op.Request{What: "Trim", Keys: []string{nodeVolumeKey(id)}, Yields: true}
	_, err := op.Do(ctx, s.config.Operations, r, func(ctx context.Context) (bool, error) {
		return s.config.Manager.TrimIfDue(ctx, id, time.Now())
	})
	return err
}
