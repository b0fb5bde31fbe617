package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume"
)

const (
	rawSize    = 64 * mib
	baseBytes  = 24 * mib // what the device holds before the first snapshot
	rawBefore  = "raw-before"
	rawAfter   = "raw-after"
	perRange   = 128 << 10 // how much wider than a write its answer may be, in bytes
	fourKiB    = 4 << 10
	rawPattern = 77 // seed
)

// rawWrites are the changes between the two snapshots: over old data, across
// its end, on room never used, and up to the last byte.
func rawWrites() []volume.Range {
	return []volume.Range{
		{Offset: 1*mib + fourKiB, Length: 2 * fourKiB},
		{Offset: 10 * mib, Length: 256 << 10},
		{Offset: baseBytes - 16*fourKiB, Length: 32 * fourKiB},
		{Offset: 40 * mib, Length: 1 * mib},
		{Offset: rawSize - fourKiB, Length: fourKiB},
	}
}

// blocks writes to a device between two snapshots and takes an incremental
// backup: the ranges that changed, read from the second, laid over the first.
func blocks(ctx context.Context, w *walk) (string, error) {
	device, err := w.makeDevice(ctx)
	if err != nil {
		return "", err
	}
	if _, err := w.client.CreateSnapshot(ctx, rawBefore, raw, nil); err != nil {
		return "", err
	}
	backup := bytes.Clone(device)
	for _, r := range rawWrites() {
		if _, err := io.ReadFull(random(byte(r.Offset>>20)), device[r.Offset:r.End()]); err != nil {
			return "", err
		}
	}
	if err := writeDevice(w.target(raw), device, rawWrites()); err != nil {
		return "", err
	}
	if _, err := w.client.CreateSnapshot(ctx, rawAfter, raw, nil); err != nil {
		return "", err
	}
	changed, err := w.delta(ctx)
	if err != nil {
		return "", err
	}
	if err := checkDelta(rawWrites(), changed); err != nil {
		return "", err
	}
	if err := w.checkBackup(ctx, backup, device, changed); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s in %d ranges, of a device of %s; %s were written", cli.HumanBytes(total(changed)), len(changed),
		cli.HumanBytes(rawSize), cli.HumanBytes(total(rawWrites()))), nil
}

// makeDevice attaches a block volume with data in its first part, and returns
// what all of it holds.
func (w *walk) makeDevice(ctx context.Context) ([]byte, error) {
	_, err := w.client.Create(ctx, client.CreateRequest{Name: raw, Size: volume.SizeRange{Required: rawSize}, Capability: &client.Capability{Block: true}})
	if err != nil {
		return nil, err
	}
	if err := w.attach(ctx, raw); err != nil {
		return nil, err
	}
	device := make([]byte, rawSize)
	if _, err := io.ReadFull(random(rawPattern), device[:baseBytes]); err != nil {
		return nil, err
	}
	return device, writeDevice(w.target(raw), device, []volume.Range{{Length: baseBytes}})
}

// writeDevice writes parts of an image to a device, durably.
func writeDevice(path string, image []byte, parts []volume.Range) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	for _, r := range parts {
		if _, err := f.WriteAt(image[r.Offset:r.End()], r.Offset); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

func (w *walk) delta(ctx context.Context) ([]volume.Range, error) {
	var changed []volume.Range
	err := w.client.Delta(ctx, rawBefore, rawAfter, 0, func(page client.BlockPage) error {
		if page.Size != rawSize {
			return fmt.Errorf("the list of changed blocks is of a volume of %d bytes, want %d", page.Size, int64(rawSize))
		}
		changed = append(changed, page.Ranges...)
		return nil
	})
	return changed, err
}

// checkDelta wants each written range within the answer, and an answer that is
// hardly larger than what was written. Both are sorted.
func checkDelta(written, changed []volume.Range) error {
	for _, r := range written {
		at := r.Offset
		for _, c := range changed {
			if c.Offset <= at && at < c.End() {
				at = c.End()
			}
		}
		if at < r.End() {
			return fmt.Errorf("%s was written, and the list of changed blocks does not hold it: %v", r, changed)
		}
	}
	if most := total(written) + int64(len(written))*perRange; total(changed) > most {
		return fmt.Errorf("%d bytes were written, and the list of changed blocks holds %d, more than %d", total(written), total(changed), most)
	}
	return nil
}

func total(ranges []volume.Range) (n int64) {
	for _, r := range ranges {
		n += r.Length
	}
	return n
}

// checkBackup reads the second snapshot through a volume made from it, and
// compares it with the first plus the changes.
func (w *walk) checkBackup(ctx context.Context, backup, want []byte, changed []volume.Range) error {
	if err := w.copyOf(ctx, rawNow, rawAfter, 0); err != nil {
		return err
	}
	now, err := os.ReadFile(w.target(rawNow))
	if err != nil {
		return err
	}
	if !bytes.Equal(now, want) {
		return fmt.Errorf("the volume from snapshot %s does not hold what was written", rawAfter)
	}
	for _, r := range changed {
		copy(backup[r.Offset:r.End()], now[r.Offset:r.End()])
	}
	if !bytes.Equal(backup, now) {
		return fmt.Errorf("snapshot %s plus the changed blocks is not snapshot %s", rawBefore, rawAfter)
	}
	return w.discard(ctx, rawNow)
}
