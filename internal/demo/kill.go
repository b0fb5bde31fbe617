package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/volume"
)

const (
	kills      = 3
	killedSize = 32 * mib
)

// kill ends the driver with SIGKILL again and again, while volumes are made,
// snapshots cut, volumes attached and detached, and one is written to.
func kill(ctx context.Context, w *walk) (string, error) {
	working, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	j, err := startJournal(working, fail, w.target(logs))
	if err != nil {
		return "", err
	}
	callers := w.startCallers(working, fail)
	cut, back, known, err := w.killOften(working, j, callers)
	for _, c := range callers {
		c.end()
	}
	j.end()
	if cause := context.Cause(working); cause != nil {
		err = cause // of all that went wrong, what came first
	}
	if err != nil {
		return "", err
	}
	if err := w.checkAcknowledged(ctx, j, callers); err != nil {
		return "", err
	}
	words := fmt.Sprintf("%d times; %d calls cut off, answered within %s, registered again within %s; the writer waited %s at most",
		kills, cut, short(back), short(known), short(j.longest))
	return words, errors.Join(os.Remove(j.path), w.forgetKilled(ctx, callers))
}

// caller makes one call after the other, up to the first that fails.
type caller struct {
	call            func(ctx context.Context, n int64) error
	asked, answered atomic.Int64
	ending          chan struct{}
	wait            sync.WaitGroup
}

func startCaller(ctx context.Context, fail context.CancelCauseFunc, call func(context.Context, int64) error) *caller {
	c := &caller{call: call, ending: make(chan struct{})}
	c.wait.Go(func() {
		for {
			select {
			case <-c.ending:
				return
			default:
			}
			n := c.asked.Add(1)
			if err := call(ctx, n); err != nil {
				fail(err)
				return
			}
			c.answered.Store(n)
		}
	})
	return c
}

// end lets the call at hand come to its end.
func (c *caller) end() {
	close(c.ending)
	c.wait.Wait()
}

func killedVolume(n int64) string   { return fmt.Sprintf("killed-%02d", n) }
func killedSnapshot(n int64) string { return fmt.Sprintf("killed-cut-%02d", n) }

// startCallers starts one that makes volumes, one that cuts snapshots of the
// volume that is written to, and one that takes a volume off and on.
func (w *walk) startCallers(ctx context.Context, fail context.CancelCauseFunc) []*caller {
	return []*caller{
		startCaller(ctx, fail, func(ctx context.Context, n int64) error {
			_, err := w.client.Create(ctx, client.CreateRequest{
				Name: killedVolume(n), Size: volume.SizeRange{Required: killedSize}, Capability: &client.Capability{FSType: "ext4"},
			})
			return err
		}),
		startCaller(ctx, fail, func(ctx context.Context, n int64) error {
			_, err := w.client.CreateSnapshot(ctx, killedSnapshot(n), logs, nil)
			return err
		}),
		startCaller(ctx, fail, func(ctx context.Context, _ int64) error {
			if err := detachFrom(ctx, w.client, restored); err != nil {
				return err
			}
			return w.attach(ctx, restored)
		}),
	}
}

// killOften kills the driver when every caller and the writer have got on
// since the last time, at a random instant of their work. It returns how many
// calls had no answer then, the longest time until all of them had one, and the
// longest until the host had registered the new process.
func (w *walk) killOften(ctx context.Context, j *journal, callers []*caller) (cut int, back, known time.Duration, err error) {
	for range kills {
		if err := waitForAll(ctx, j, callers, 1); err != nil {
			return cut, back, known, err
		}
		if err := pause(ctx, rand.N(20*time.Millisecond)); err != nil {
			return cut, back, known, err
		}
		if err := w.driver.kill(); err != nil {
			return cut, back, known, err
		}
		for _, c := range callers {
			if c.asked.Load() > c.answered.Load() {
				cut++
			}
		}
		killed := time.Now()
		if err := w.startDriver(); err != nil {
			return cut, back, known, err
		}
		if err := waitForAll(ctx, j, callers, 1); err != nil {
			return cut, back, known, err
		}
		back = max(back, time.Since(killed))
		again, err := w.awaitRegistered(ctx, killed)
		if err != nil {
			return cut, back, known, err
		}
		known = max(known, again.Since.Sub(killed))
	}
	if cut == 0 {
		err = fmt.Errorf("no call was cut off by %d kills, which proves nothing", kills)
	}
	return cut, back, known, err
}

// waitForAll waits until each caller has got n more answers than now, and the
// journal n more blocks. ctx ends when a caller or the writer fails.
func waitForAll(ctx context.Context, j *journal, callers []*caller, n int64) error {
	goals := make([]int64, len(callers))
	for i, c := range callers {
		goals[i] = c.answered.Load() + n
	}
	blocks := j.blocks.Load() + n
	return waitFor(ctx, func() bool {
		for i, c := range callers {
			if c.answered.Load() < goals[i] {
				return false
			}
		}
		return j.blocks.Load() >= blocks
	})
}

// waitFor looks again and again until something has come.
func waitFor(ctx context.Context, come func() bool) error {
	const bound = 45 * time.Second
	return retry.For(ctx, bound, func() (bool, error) {
		if come() {
			return false, nil
		}
		return true, fmt.Errorf("no progress within %s", bound)
	})
}

// pause lets a time go by.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkAcknowledged compares what the driver has with what it said that it has
// done: all of that, once, and nothing else.
func (w *walk) checkAcknowledged(ctx context.Context, j *journal, callers []*caller) error {
	want := map[string]bool{data: true, logs: true, restored: true, cloned: true, raw: true}
	for n := range callers[0].answered.Load() {
		want[killedVolume(n+1)] = true
	}
	volumes, err := w.client.List(ctx)
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if !want[v.Name] || v.State != "ready" {
			return fmt.Errorf("volume %s is %s, nobody was told that it was made: %+v", v.Name, v.State, v)
		}
		delete(want, v.Name)
	}
	snapshots, err := w.client.Snapshots(ctx, logs)
	if err != nil {
		return err
	}
	for n := range callers[1].answered.Load() {
		want[killedSnapshot(n+1)] = true
	}
	for _, s := range snapshots {
		if s.Group == "" && (!want[s.Name] || s.State != "ready") {
			return fmt.Errorf("snapshot %s is %s, nobody was told that it was cut: %+v", s.Name, s.State, s)
		}
		delete(want, s.Name)
	}
	if len(want) > 0 {
		return fmt.Errorf("acknowledged, and gone after the kills: %v", want)
	}
	if err := w.allWell(ctx, ""); err != nil {
		return err
	}
	return w.checkBytes(ctx, j, callers[0].answered.Load())
}

// checkBytes reads what was written all the while, and uses the last volume
// that was made.
func (w *walk) checkBytes(ctx context.Context, j *journal, last int64) error {
	got, err := sumOf(j.path)
	if err != nil {
		return err
	}
	if want := j.written(); got != want {
		return fmt.Errorf("%s holds %d bytes with checksum %x, written were %d with %x", j.path, got.size, got.hash[:6], want.size, want.hash[:6])
	}
	if err := w.files[restored].verify(ctx, w.target(restored)); err != nil {
		return err
	}
	name := killedVolume(last)
	if err := w.attach(ctx, name); err != nil {
		return err
	}
	if _, err := writeFile(filepath.Join(w.target(name), "file"), random(1), mib); err != nil {
		return err
	}
	return detachFrom(ctx, w.client, name)
}

// forgetKilled deletes what the callers made.
func (w *walk) forgetKilled(ctx context.Context, callers []*caller) error {
	for n := range callers[0].answered.Load() {
		if err := w.client.Delete(ctx, killedVolume(n+1)); err != nil {
			return err
		}
	}
	for n := range callers[1].answered.Load() {
		if err := w.client.DeleteSnapshot(ctx, killedSnapshot(n+1)); err != nil {
			return err
		}
	}
	return nil
}
