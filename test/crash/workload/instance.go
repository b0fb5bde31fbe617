package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config describes an instance.
type Config struct {
	Name    string
	Machine Machine
	Dir     string // of the workers, on the machine
	Seed    uint64 // of all random choices
	Workers int
	// Reflink says that the pool can snapshot a volume in use.
	Reflink bool
	// Patience is the timeout of a call.
	Patience time.Duration
	// Lean makes the workers prefer calls that reach the armed crash point:
	// where calls are slow, few other calls come in between.
	Lean bool
}

// Instance is one driver on one pool with its workers.
type Instance struct {
	config  Config
	machine Machine
	workers []*worker
}

// NewInstance returns an instance that owns nothing yet.
func NewInstance(c Config) *Instance {
	s := &Instance{config: c, machine: c.Machine}
	for i := range c.Workers {
		s.workers = append(s.workers, &worker{
			number: i, dir: filepath.Join(c.Dir, fmt.Sprintf("worker-%d", i)), machine: c.Machine, reflink: c.Reflink,
			patience: c.Patience, calls: map[string]int{}, rand: rand.New(rand.NewPCG(c.Seed, uint64(i)+2)),
		})
	}
	return s
}

// Calls counts the acknowledged calls by kind.
func (s *Instance) Calls() map[string]int {
	var all []map[string]int
	for _, w := range s.workers {
		all = append(all, w.calls)
	}
	return Sum(all...)
}

// launch starts the driver for all workers.
func (s *Instance) launch(ctx context.Context, point string) (Driver, error) {
	d, err := s.machine.Launch(ctx, point)
	if err != nil && !errors.Is(err, ErrAtPoint) {
		return nil, fmt.Errorf("instance %s: start: %w", s.config.Name, err)
	}
	if err != nil {
		s.killed()
		return nil, err
	}
	for _, w := range s.workers {
		w.conn, w.down = d.Conn(), d.Done()
	}
	return d, nil
}

// killed updates the workers' models after a kill.
func (s *Instance) killed() {
	if !s.machine.Reboots() {
		return
	}
	for _, w := range s.workers {
		w.rebooted()
	}
}

// Round starts the driver, armed if point is not empty, checks it, and runs the
// workload until the driver reaches the point, or for at most patience, and
// then kills it. It reports whether the point was hit.
func (s *Instance) Round(ctx context.Context, point string, patience time.Duration) (hit bool, err error) {
	d, err := s.launch(ctx, point)
	if errors.Is(err, ErrAtPoint) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if err := s.verifyUntil(ctx, d.Done()); err != nil && !d.Hit() {
		return false, s.fail(d, fmt.Sprintf("before the kill at %q", point), err)
	}
	work, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var wg sync.WaitGroup
	errs := make([]error, len(s.workers))
	for i, w := range s.workers {
		if s.config.Lean {
			w.lean, _, _ = strings.Cut(point, ".")
		}
		wg.Go(func() {
			if errs[i] = w.run(work); errs[i] != nil {
				stop()
			}
		})
	}
	select {
	case <-d.Done():
		if !d.Hit() {
			err = errors.New("the driver ended by itself")
		}
	case <-work.Done():
	}
	err = errors.Join(err, d.Kill())
	wg.Wait()
	if err := errors.Join(append(errs, err)...); err != nil {
		return false, fmt.Errorf("instance %s, killed at %q: %w\n%s", s.config.Name, point, err, tail(d.Log()))
	}
	s.killed()
	return d.Hit(), nil
}

// verifyUntil stops when the driver reaches its point, as its background work
// stops then.
func (s *Instance) verifyUntil(ctx context.Context, done <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer func() {
		cancel()
		wait.Wait()
	}()
	wait.Go(func() {
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	})
	return s.verify(ctx, false)
}

// Start starts the driver armed for a point of its start-up, or on a machine
// that is about to fail, and kills it if it serves. It reports whether the
// driver died before it served.
func (s *Instance) Start(ctx context.Context, point string) (hit bool, err error) {
	d, err := s.launch(ctx, point)
	if errors.Is(err, ErrAtPoint) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	err = d.Kill()
	s.killed()
	return false, err
}

// with runs fn on an unarmed driver, and stops the driver.
func (s *Instance) with(ctx context.Context, what string, fn func(d Driver) error) error {
	d, err := s.launch(ctx, "")
	if err != nil {
		return err
	}
	if err := fn(d); err != nil {
		return s.fail(d, what, err)
	}
	return d.Stop()
}

// fail kills the driver and adds its log to the error.
func (s *Instance) fail(d Driver, when string, err error) error {
	err = errors.Join(err, d.Kill())
	return fmt.Errorf("instance %s, %s: %w\n%s", s.config.Name, when, err, tail(d.Log()))
}

// each runs do for all workers concurrently.
func (s *Instance) each(do func(w *worker) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(s.workers))
	for i, w := range s.workers {
		wg.Go(func() { errs[i] = do(w) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Settle starts the driver unarmed, lets every worker complete its pending
// call, and verifies everything with all data.
func (s *Instance) Settle(ctx context.Context) error {
	return s.with(ctx, "settling", func(Driver) error {
		if err := s.verify(ctx, false); err != nil {
			return err
		}
		err := s.each(func(w *worker) error {
			for {
				if done, err := w.settle(); done || err != nil {
					return err
				}
			}
		})
		if err != nil {
			return err
		}
		return s.verify(ctx, true)
	})
}

// Read does Settle and then reads every byte of every volume and snapshot.
func (s *Instance) Read(ctx context.Context) error {
	if err := s.Settle(ctx); err != nil {
		return err
	}
	return s.with(ctx, "reading everything", func(Driver) error { return s.each((*worker).verifyRest) })
}

// Finish reads everything and deletes everything through the driver; the pool
// is then empty again.
func (s *Instance) Finish(ctx context.Context) error {
	if err := s.Read(ctx); err != nil {
		return err
	}
	return s.with(ctx, "emptying", func(d Driver) error {
		if err := s.each((*worker).leave); err != nil {
			return err
		}
		return errors.Join(s.verify(ctx, true), verifyMetrics(ctx, d))
	})
}

// leave undoes every use of the worker's volumes and deletes them.
func (w *worker) leave() error {
	var steps []func() error
	for range w.inline {
		steps = append(steps, w.unpublishInline)
	}
	for range w.groups {
		steps = append(steps, w.deleteGroup)
	}
	for _, p := range w.snapshots {
		if p.group == "" {
			steps = append(steps, func() error { return w.deleteSnapshot(p) })
		}
	}
	for _, d := range w.disks {
		if d.published {
			steps = append(steps, func() error { return w.unpublish(d) })
		}
		if d.staged {
			steps = append(steps, func() error { return w.unstage(d) })
		}
		if d.granted {
			steps = append(steps, func() error { return w.revoke(d) })
		}
		steps = append(steps, func() error { return w.remove(d) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// tail returns the end of a driver's log without successful calls.
func tail(log string) string {
	const most = 40
	lines := slices.DeleteFunc(strings.Split(log, "\n"), func(l string) bool { return strings.Contains(l, "code=OK") })
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// Sum adds up counts of calls.
func Sum(all ...map[string]int) map[string]int {
	sum := map[string]int{}
	for _, calls := range all {
		for what, n := range calls {
			sum[what] += n
		}
	}
	return sum
}
