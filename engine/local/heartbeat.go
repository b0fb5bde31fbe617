package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/volume"
)

const (
	// beatPause is how old the answer of a heartbeat may be, so that many who
	// ask cost the disk one small write a second.
	beatPause = time.Second
	// beatWait is how long one who asks waits for the disk, and beatBound how
	// long a disk may be busy before it is called silent.
	beatWait  = 2 * time.Second
	beatBound = 30 * time.Second
)

// heartbeat asks the pool's file system whether it still takes writes. Nothing
// else tells for certain: after an error of its disk ext4 refuses writes without
// being mounted read-only (since Linux 6.12, and in older ones kept up), and
// XFS shuts down without showing it in statfs.
type heartbeat struct {
	write func() error // makes a little durable

	mu    sync.Mutex
	done  chan struct{} // of the beat under way; nil: none is
	began time.Time     // the last beat
	ended time.Time
	err   error // of the last beat that ended
}

// beat returns what keeps the pool from taking writes, and for how long the
// disk has been silent if it is. running counts the write under way.
func (h *heartbeat) beat(ctx context.Context, running *sync.WaitGroup) (silent time.Duration, err error) {
	h.mu.Lock()
	if h.done == nil && time.Since(h.ended) >= beatPause {
		h.done, h.began = make(chan struct{}), time.Now()
		running.Go(h.run)
	}
	done, began, err := h.done, h.began, h.err
	h.mu.Unlock()
	if done == nil {
		return 0, err
	}
	timer := time.NewTimer(beatWait)
	defer timer.Stop()
	select {
	case <-done:
		h.mu.Lock()
		defer h.mu.Unlock()
		return 0, h.err
	case <-timer.C:
	case <-ctx.Done():
	}
	if silent = time.Since(began); silent < beatBound {
		silent = 0 // busy, so far
	}
	return silent, err
}

func (h *heartbeat) run() {
	err := h.write()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err, h.ended = err, time.Now()
	close(h.done)
	h.done = nil
}

// writeAndForget makes a block durable in a file without a name.
func (p *pool) writeAndForget() error {
	f, err := p.root.OpenFile(incomingDir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return nil // such a file system does not tell before it is asked to keep something
	}
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4096))
	return errors.Join(err, f.Sync(), f.Close())
}

// failure describes a pool that takes no writes; an empty reason is "well". A
// full pool is another matter, and a read-only one no failure.
func (e *Engine) failure(ctx context.Context) volume.Condition {
	if e.pool.readOnly {
		return volume.Condition{}
	}
	silent, err := e.heart.beat(ctx, &e.running)
	c := volume.Condition{Severity: volume.Inaccessible, Reason: reasonPoolFailed}
	switch {
	case silent > 0:
		c.Message = fmt.Sprintf("the disk of pool %s has not answered a write for %s; look into the kernel's log", e.pool.path, silent.Round(time.Second))
	case err == nil, errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return volume.Condition{}
	default:
		c.Message = fmt.Sprintf("the file system of pool %s takes no writes: %v; look into the kernel's log, mend or replace the disk, and mount it again", e.pool.path, err)
	}
	return c
}
