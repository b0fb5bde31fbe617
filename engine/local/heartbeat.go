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
	// heartbeatInterval is the maximum age of a result: many callers cost one
	// small write per second.
	heartbeatInterval = time.Second
	// A caller waits heartbeatWait; without an answer for heartbeatTimeout the
	// disk has failed.
	heartbeatWait    = 2 * time.Second
	heartbeatTimeout = 30 * time.Second
)

// heartbeat writes to the pool's file system. No flag is reliable: after a disk
// error ext4 refuses writes without a read-only mount (since Linux 6.12, or if
// remounting is disabled), and XFS shuts down without a sign in statfs.
type heartbeat struct {
	write func() error

	mu    sync.Mutex
	done  chan struct{} // nil: no write is in flight
	began time.Time
	ended time.Time
	err   error // of the last complete write
}

// beat returns the error of the last write, or for how long the disk has been
// silent after the timeout. running counts the write in flight.
func (h *heartbeat) beat(ctx context.Context, running *sync.WaitGroup) (silent time.Duration, err error) {
	h.mu.Lock()
	if h.done == nil && time.Since(h.ended) >= heartbeatInterval {
		h.done, h.began = make(chan struct{}), time.Now()
		running.Go(h.run)
	}
	done, began, err := h.done, h.began, h.err
	h.mu.Unlock()
	if done == nil {
		return 0, err
	}
	timer := time.NewTimer(heartbeatWait)
	defer timer.Stop()
	select {
	case <-done:
		h.mu.Lock()
		defer h.mu.Unlock()
		return 0, h.err
	case <-timer.C:
	case <-ctx.Done():
	}
	if silent = time.Since(began); silent < heartbeatTimeout {
		silent = 0 // busy, not failed yet
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

func (p *pool) writeAndForget() error {
	f, err := p.root.OpenFile(incomingDir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return nil // failures then show only on later writes
	}
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4096))
	return errors.Join(err, f.Sync(), f.Close())
}

// failure returns the condition of a pool that does not accept writes; an empty
// reason means it does. Full and read-only pools are reported elsewhere.
func (e *Engine) failure(ctx context.Context) volume.Condition {
	if e.pool.readOnly {
		return volume.Condition{}
	}
	what := ""
	switch silent, err := e.heart.beat(ctx, &e.running); {
	case silent > 0:
		what = fmt.Sprintf("%s has not answered a write for %s", e.pool.path, silent.Round(time.Second))
	case err == nil, errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return volume.Condition{}
	default:
		what = fmt.Sprintf("%s does not accept writes: %v", e.pool.path, err)
	}
	return volume.NewCondition(volume.Inaccessible, volume.ReasonPoolFailed, what)
}

// isFull reports whether the pool has no space for another file. It can lack inodes
// while it has bytes.
func (e *Engine) isFull(ctx context.Context) bool {
	_, err := e.heart.beat(ctx, &e.running)
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
