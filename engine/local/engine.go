package local

import (
	"context"
	"fmt"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Get implements volume.Engine.
func (e *Engine) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	r, err := e.volumeRecord(ctx, id)
	if err != nil {
		return volume.Volume{}, err
	}
	return e.volume(id, r), nil
}

// List implements volume.Engine.
func (e *Engine) List(ctx context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	var all []volume.Volume
	err := e.store.View(ctx, func(tx *store.Tx) error {
		for entry, err := range volumeBucket.Range(tx, string(after)) {
			if err != nil {
				return err
			}
			if !entry.Value.State.visible() {
				continue
			}
			all = append(all, e.volume(volume.ID(entry.Key), entry.Value))
			if limit > 0 && len(all) == limit {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	return all, nil
}
