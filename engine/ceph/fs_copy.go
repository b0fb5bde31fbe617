//go:build ceph

package ceph

import (
	"context"
	"maps"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
)

// startCopy has the manager copy a source to a new subvolume. A volume is
// copied from a temporary snapshot.
func (e *FS) startCopy(ctx context.Context, from *fsOrigin, p fsPlan, size int64) (*fsCopy, error) {
	c := from.At
	if c.Snap == "" {
		c.Snap = cloneSnapName(hash(p.Name))
		// What another call left can be older than this request.
		if err := whileBusy(ctx, func() error { return e.manager.removeSnapshot(c.Dir, c.Snap) }); err != nil {
			return nil, err
		}
		if err := e.manager.snapshot(c.Dir, c.Snap); err != nil {
			return nil, err
		}
		crashpoint.Hit("create.frozen")
	}
	total, err := e.mount.used(c.path())
	if err != nil {
		return nil, err
	}
	target := imageName(hash(p.Name))
	if err := whileBusy(ctx, func() error { return e.manager.clone(c.Dir, c.Snap, target, p.settings.pool) }); err != nil {
		return nil, err
	}
	return &fsCopy{From: c.Dir, Snap: c.Snap, Size: size, Total: total}, nil
}

// copyJob is a copy that was started. What it names does not have to exist.
type copyJob struct{ target, from, snap string }

// copies completes copies: Ceph's manager makes them without notice of their
// end.
type copies struct {
	e       *FS
	stop    func()
	changed chan struct{} // has an element after a change of jobs

	mu   sync.Mutex
	jobs map[copyJob]*copyAttempts
}

// copyAttempts of a job. A job that is added again has new ones.
type copyAttempts struct{ lastErr string }

func newCopies(e *FS, interval time.Duration) *copies {
	if interval == 0 {
		interval = time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &copies{e: e, changed: make(chan struct{}, 1), jobs: map[copyJob]*copyAttempts{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(ctx, interval)
	}()
	c.stop = func() {
		cancel()
		<-done
	}
	return c
}

func (c *copies) add(j copyJob) {
	c.mu.Lock()
	c.jobs[j] = &copyAttempts{}
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *copies) list() map[copyJob]*copyAttempts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.jobs)
}

// run polls all copies at each interval, while there are any.
func (c *copies) run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		wait := ticker.C
		if len(c.list()) == 0 {
			wait = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
			continue
		case <-wait:
		}
		for j, attempts := range c.list() {
			c.try(ctx, j, attempts)
		}
	}
}

func (c *copies) try(ctx context.Context, j copyJob, attempts *copyAttempts) {
	locks := []string{"name:" + strings.TrimPrefix(j.target, volumePrefix), "name:" + strings.TrimPrefix(j.from, volumePrefix)}
	done, err := mutate(ctx, c.e.Connection, "complete the copy to subvolume "+j.target, locks, func() (bool, error) { return c.e.completeCopy(j) })
	if ctx.Err() != nil {
		return
	}
	c.tried(j, attempts, done, err)
}

// tried leaves a job that was added again since the attempt began: another copy
// has begun, which that attempt has not seen.
func (c *copies) tried(j copyJob, attempts *copyAttempts, done bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.jobs[j] != attempts:
	case done:
		delete(c.jobs, j)
	case err == nil:
		attempts.lastErr = ""
	case err.Error() != attempts.lastErr:
		attempts.lastErr = err.Error()
		c.e.logger.Warn("completing a copy failed, will retry", "subvolume", j.target, "err", err)
	}
}

// completeCopy gives a copied volume its size, and removes the temporary
// snapshot when the copy has ended or does not exist.
func (e *FS) completeCopy(j copyJob) (done bool, err error) {
	s, err := e.mount.inspect(j.target)
	if ignoreMissing(err) != nil {
		return false, err
	}
	if s != nil && s.record != nil && s.record.Copy != nil && s.record.Copy.From == j.from && s.record.Copy.Snap == j.snap && !s.record.hasFailed() {
		if ended, err := e.endCopy(s); err != nil || !ended {
			return false, err
		}
	}
	crashpoint.Hit("copy.completed")
	if !strings.HasPrefix(j.snap, clonePrefix) {
		return true, nil
	}
	err = e.manager.removeSnapshot(j.from, j.snap)
	if is(err, syscall.EAGAIN) {
		return false, nil
	}
	return err == nil, err
}

// endCopy records the end of a copy.
func (e *FS) endCopy(s *subvolume) (ended bool, err error) {
	status, err := e.manager.cloneStatus(s.name)
	if err != nil {
		return false, err
	}
	r := *s.record
	switch status.State {
	case cloneComplete:
		if err := e.manager.grow(s.name, r.Copy.Size); err != nil {
			return false, err
		}
		crashpoint.Hit("copy.grown")
		r.Copy = nil
	case cloneFailed, cloneCanceled:
		failed := *r.Copy
		failed.Failed = "the copy by Ceph's manager has " + status.State + ": " + errs.Clip(status.Failure.Message, 200)
		if status.State == cloneCanceled {
			failed.Failed = "the copy by Ceph's manager was canceled"
		}
		r.Copy = &failed
		e.logger.Warn("copy failed", "volume", e.volume(s).ID, "err", failed.Failed)
	default:
		return false, nil
	}
	if err := e.mount.setRecord(s.name, r); err != nil {
		return false, err
	}
	now, err := e.mount.inspect(s.name)
	if err == nil && now.record != nil {
		e.index.put(e.volume(now))
	}
	return true, err
}
