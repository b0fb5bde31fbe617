package mkfs

import (
	"context"
	"os"
)

// GrowDevice is written to by a growth.
type GrowDevice = growDevice

// UndoGrowth undoes an interrupted growth.
func UndoGrowth(dev *os.File) error { return undoGrowth(growTarget{dev, context.Background()}) }

// ApplyGrowth writes a growth that resize2fs has made on a copy of the device.
func ApplyGrowth(ctx context.Context, dev GrowDevice, image *os.File, oldSize, size int64) error {
	g, err := newGrowth(ctx, dev, image, oldSize, size)
	if err != nil {
		return err
	}
	return g.apply(dev)
}
