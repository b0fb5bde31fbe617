package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

// health asks after volumes that are well, makes one sick as a kernel does
// that met an error, and asks again.
func health(ctx context.Context, w *walk) (string, error) {
	if err := w.allWell(ctx, ""); err != nil {
		return "", err
	}
	seen, err := w.whileReadOnly(ctx, restored)
	if err != nil {
		return "", err
	}
	if err := w.allWell(ctx, ""); err != nil {
		return "", fmt.Errorf("after %s was made well: %w", restored, err)
	}
	return fmt.Sprintf("all well; %s was made read-only: %s %s; well again", restored, seen.Severity, seen.Reason), nil
}

// whileReadOnly remounts a volume behind the driver's back and returns what the
// driver then reports of it.
func (w *walk) whileReadOnly(ctx context.Context, name string) (seen volume.Condition, err error) {
	at := w.target(name)
	if err := mount.Remount(ctx, at, true); err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, mount.Remount(context.WithoutCancel(ctx), at, false)) }()
	conditions, err := w.client.Health(ctx, name)
	if err != nil {
		return seen, err
	}
	if len(conditions) == 0 {
		return seen, fmt.Errorf("volume %s at %s became read-only, and the driver calls it well", name, at)
	}
	return conditions[0], w.allWell(ctx, name)
}

// allWell wants no condition of any volume, nor of the storage; but for one
// volume that may be sick.
func (w *walk) allWell(ctx context.Context, but string) error {
	conditions, err := w.client.StorageHealth(ctx)
	if err != nil {
		return err
	}
	if len(conditions) > 0 {
		return fmt.Errorf("the storage should be well, the driver reports %+v", conditions)
	}
	volumes, err := w.client.List(ctx)
	if err != nil {
		return err
	}
	for _, v := range volumes {
		conditions, err := w.client.Health(ctx, v.Name)
		if err != nil {
			return err
		}
		if all := slices.Concat(v.Conditions, conditions); v.Name != but && len(all) > 0 {
			return fmt.Errorf("volume %s should be well, the driver reports %+v", v.Name, all)
		}
	}
	return nil
}
