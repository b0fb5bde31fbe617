package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/volume"
)

const expandedSize = 640 * mib

func thick() map[string]string { return map[string]string{"provisioning": "thick"} }
func thin() map[string]string  { return map[string]string{"provisioning": "thin"} }

// expand grows a mounted volume and takes the new room: a file that did not
// fit before gets its blocks.
func expand(ctx context.Context, w *walk) (string, error) {
	dir := w.target(logs)
	before, err := fsinfo.UsageOf(ctx, dir)
	if err != nil {
		return "", err
	}
	if _, err := w.client.Expand(ctx, logs, volume.SizeRange{Required: expandedSize}); err != nil {
		return "", err
	}
	after, err := fsinfo.UsageOf(ctx, dir)
	if err != nil {
		return "", err
	}
	if grown := after.Bytes.Available - before.Bytes.Available; grown < (expandedSize-volumeSize)*9/10 {
		return "", fmt.Errorf("the volume grew by %d bytes, but what is free in it by %d", int64(expandedSize-volumeSize), grown)
	}
	if err := occupy(filepath.Join(dir, "large"), before.Bytes.Available+(expandedSize-volumeSize)/2); err != nil {
		return "", err
	}
	if err := w.files[logs].verify(ctx, dir); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s were free, %s are now", cli.HumanBytes(before.Bytes.Available), cli.HumanBytes(after.Bytes.Available)), nil
}

// occupy gives a file its blocks, and takes it away again.
func occupy(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if err != nil {
		err = fmt.Errorf("a file of %d bytes in the room that is new: %w", size, err)
	}
	return errors.Join(err, f.Close(), os.Remove(path))
}

// modify turns an attached volume thick and thin again, and counts the blocks
// that it has in the pool.
func modify(ctx context.Context, w *walk) (string, error) {
	before, err := w.allocated(ctx, logs)
	if err != nil {
		return "", err
	}
	if _, err := w.client.Modify(ctx, logs, thick()); err != nil {
		return "", err
	}
	full, err := w.allocated(ctx, logs)
	if err != nil {
		return "", err
	}
	if full < expandedSize {
		return "", fmt.Errorf("thick, the volume of %d bytes has %d bytes of blocks in the pool", int64(expandedSize), full)
	}
	if _, err := w.client.Modify(ctx, logs, thin()); err != nil {
		return "", err
	}
	after, err := w.thinned(ctx, logs, full-(expandedSize-before)/2)
	if err != nil {
		return "", err
	}
	if err := w.files[logs].verify(ctx, w.target(logs)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s of the pool, thick %s, thin again %s", cli.HumanBytes(before), cli.HumanBytes(full), cli.HumanBytes(after)), nil
}

// thinned waits until a volume has given blocks back, down to most. Some
// kernels let a device do that only when it is attached anew.
func (w *walk) thinned(ctx context.Context, name string, most int64) (int64, error) {
	after, err := w.settles(ctx, name, most, 100*time.Millisecond)
	if err != nil || after <= most {
		return after, err
	}
	if err := detachFrom(ctx, w.client, name); err != nil {
		return 0, err
	}
	if err := w.attach(ctx, name); err != nil {
		return 0, err
	}
	if _, err := fstrim.Trim(ctx, w.target(name)); err != nil {
		return 0, err
	}
	if after, err = w.settles(ctx, name, most, 5*time.Second); err == nil && after > most {
		err = fmt.Errorf("thin again, volume %s still has %d bytes of blocks in the pool, at most %d were expected", name, after, most)
	}
	return after, err
}

// settles counts blocks until they are few; file systems free them with some
// delay.
func (w *walk) settles(ctx context.Context, name string, most int64, bound time.Duration) (now int64, err error) {
	err = retry.For(ctx, bound, func() (bool, error) {
		now, err = w.allocated(ctx, name)
		return err == nil && now > most, err
	})
	return now, err
}

// allocated tells how many bytes of blocks the file behind an attached volume
// has in the pool.
func (w *walk) allocated(ctx context.Context, name string) (int64, error) {
	e, mounted, err := mount.At(ctx, w.target(name))
	if err != nil || !mounted {
		return 0, errors.Join(err, fmt.Errorf("volume %s is not mounted at %s", name, w.target(name)))
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return 0, err
	}
	for _, d := range devices {
		if int(d.Major) != e.Major || int(d.Minor) != e.Minor {
			continue
		}
		path, _, err := loop.BackingName(d)
		if err != nil {
			return 0, err
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return 0, fmt.Errorf("file of volume %s: stat %s: %w", name, path, err)
		}
		return st.Blocks * 512, nil
	}
	return 0, fmt.Errorf("volume %s at %s is on no loop device: %+v", name, w.target(name), e)
}
