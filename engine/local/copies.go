package local

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// parallelCopies limits concurrent copies; more of them would only add disk
// seeks.
const parallelCopies = 2

// copies are the background copies by the id of the destination.
type copies struct {
	slots chan struct{}
	mu    sync.Mutex
	jobs  map[string]*copyJob
}

type copyJob struct {
	source string // path in the pool
	total  int64
	done   atomic.Int64
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // set before ended is closed
}

func newCopies() *copies {
	return &copies{slots: make(chan struct{}, parallelCopies), jobs: map[string]*copyJob{}}
}

// startCopy runs a copy until it is complete, fails or is cancelled. Close
// waits for it.
func (e *Engine) startCopy(id, source string, p volume.Progress, run func(ctx context.Context, job *copyJob) error) {
	ctx, cancel := context.WithCancel(e.base)
	job := &copyJob{source: source, total: p.Total, cancel: cancel, ended: make(chan struct{})}
	job.done.Store(p.Done)
	e.copies.mu.Lock()
	e.copies.jobs[id] = job
	e.copies.mu.Unlock()
	e.running.Go(func() {
		defer cancel()
		job.err = e.copies.run(ctx, job, run)
		e.copies.mu.Lock()
		delete(e.copies.jobs, id)
		e.copies.mu.Unlock()
		close(job.ended)
	})
}

func (c *copies) run(ctx context.Context, job *copyJob, run func(ctx context.Context, job *copyJob) error) error {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
		return run(ctx, job)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *copies) job(id string) *copyJob {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jobs[id]
}

func (c *copies) wait(ctx context.Context, id string) error {
	job := c.job(id)
	if job == nil {
		return nil
	}
	select {
	case <-job.ended:
		return job.err
	case <-ctx.Done():
		return errs.Errorf(errs.Unavailable, "the copy into %s is in progress (%d bytes so far); retry later: %w", id, job.done.Load(), ctx.Err())
	}
}

// stop waits until the copy's files are closed.
func (c *copies) stop(ctx context.Context, id string) error {
	job := c.job(id)
	if job == nil {
		return nil
	}
	job.cancel()
	select {
	case <-job.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// progress returns the progress of a copy; durable is the recorded progress.
func (c *copies) progress(id string, durable, total int64) volume.Progress {
	if job := c.job(id); job != nil {
		durable = max(durable, job.done.Load())
	}
	return volume.Progress{Done: min(durable, total), Total: total}
}

// readerOf returns the destination of a copy of the file, or "".
func (c *copies) readerOf(source string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, job := range c.jobs {
		if job.source == source {
			return id
		}
	}
	return ""
}

// progressOfAll is keyed by the id of the destination.
func (c *copies) progressOfAll() map[string]volume.Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]volume.Progress{}
	for id, job := range c.jobs {
		all[id] = volume.Progress{Done: min(job.done.Load(), job.total), Total: job.total}
	}
	return all
}

func (c *copies) progressFrom(source string) (sum volume.Progress, running bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, job := range c.jobs {
		if job.source == source {
			sum.Done += min(job.done.Load(), job.total)
			sum.Total += job.total
			running = true
		}
	}
	return sum, running
}
