package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
)

const (
	dataSnapshot = "before-the-mishap"
	restoredSize = 448 * mib
)

func snapshot(ctx context.Context, w *walk) (string, error) {
	took, err := timed(func() error {
		s, err := w.client.CreateSnapshot(ctx, dataSnapshot, data, nil)
		if err == nil && !s.Ready {
			err = fmt.Errorf("snapshot %s is not ready: %+v", dataSnapshot, s)
		}
		return err
	})
	return fmt.Sprintf("cut in %s while mounted", short(took)), err
}

// restore gets the deleted files back, in a volume that is larger than the one
// they were in.
func restore(ctx context.Context, w *walk) (string, error) {
	if err := w.copyOf(ctx, restored, dataSnapshot, restoredSize); err != nil {
		return "", err
	}
	if err := w.files[data].verify(ctx, w.target(restored)); err != nil {
		return "", err
	}
	w.files[restored] = w.files[data]
	delete(w.files, data)
	before, err := fsinfo.UsageOf(ctx, w.target(data))
	if err != nil {
		return "", err
	}
	after, err := fsinfo.UsageOf(ctx, w.target(restored))
	if err != nil {
		return "", err
	}
	if grown := after.Bytes.Total - before.Bytes.Total; grown < (restoredSize-volumeSize)*9/10 {
		return "", fmt.Errorf("the restored volume should be %d bytes larger, its file system is %d", int64(restoredSize-volumeSize), grown)
	}
	return fmt.Sprintf("%d files are back, all checksums equal, %s now", fileCount, cli.HumanBytes(restoredSize)), nil
}

// clone copies a volume that is in use, and then changes the copy.
func clone(ctx context.Context, w *walk) (string, error) {
	took, err := timed(func() error {
		_, err := w.client.Create(ctx, client.CreateRequest{Name: cloned, FromVolume: logs})
		return err
	})
	if err != nil {
		return "", err
	}
	if err := w.attach(ctx, cloned); err != nil {
		return "", err
	}
	if err := w.files[logs].verify(ctx, w.target(cloned)); err != nil {
		return "", err
	}
	names, err := filesIn(w.target(cloned))
	if err != nil {
		return "", err
	}
	if err := os.Truncate(filepath.Join(w.target(cloned), names[len(names)-1]), 1); err != nil {
		return "", err
	}
	if err := syncAll(w.target(cloned)); err != nil {
		return "", err
	}
	if err := w.files[logs].verify(ctx, w.target(logs)); err != nil {
		return "", fmt.Errorf("writing to the clone changed the original: %w", err)
	}
	return fmt.Sprintf("in %s, %d checksums equal, and it is a volume of its own", short(took), fileCount), nil
}
