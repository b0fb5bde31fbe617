package crash

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/driver"
)

// station is one driver on one pool with its workers.
type station struct {
	name    string
	cleat   string
	dir     string // the driver's and the workers' files
	flags   []string
	workers []*worker
	rand    *rand.Rand
	hits    string // file to which an armed driver writes the point it dies at
	served  int    // starts that came to serve
}

const workersPerStation = 5

func newStation(t *testing.T, cleat, name string, seed uint64, reflink bool, flags ...string) *station {
	dir := t.TempDir()
	s := &station{
		name: name, cleat: cleat, dir: dir, rand: rand.New(rand.NewPCG(seed, 1)), hits: filepath.Join(dir, "hits"),
		flags: append([]string{"--pool", filepath.Join(dir, "pool"), "--node-id", nodeID, "--controller-publish", "--overprovision-ratio", "20", "--log-format", "text"}, flags...),
	}
	for i := range workersPerStation {
		home := filepath.Join(dir, fmt.Sprintf("worker-%d", i))
		if err := os.MkdirAll(home, 0o750); err != nil {
			t.Fatal(err)
		}
		s.workers = append(s.workers, &worker{number: i, dir: home, reflink: reflink, calls: map[string]int{},
			rand: rand.New(rand.NewPCG(seed, uint64(i)+2))})
	}
	t.Cleanup(func() { driver.Sweep(t, dir) })
	if !reflink {
		driver.MountImage(t, filepath.Join(dir, "pool"), mkfs.Ext4, 4<<30)
	}
	return s
}

// launch starts the driver, armed to die at a point if there is one. A point
// in start-up kills it before it serves: then process is nil and died is true.
func (s *station) launch(ctx context.Context, point string) (process *driver.Process, died bool, err error) {
	var env []string
	if point != "" {
		env = []string{"CLEAT_CRASHPOINT=" + point, "CLEAT_CRASHPOINT_LOG=" + s.hits}
	}
	p, err := driver.Launch(ctx, s.cleat, s.dir, "driver", env, s.flags...)
	if err != nil && point != "" && s.hitCount() > 0 {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("station %s: %w", s.name, err)
	}
	s.served++
	for _, w := range s.workers {
		w.conn = p.Conn
	}
	return p, false, nil
}

// hitCount is how many points the last armed driver died at (0 or 1).
func (s *station) hitCount() int {
	data, err := os.ReadFile(s.hits)
	if err != nil || len(data) == 0 {
		return 0
	}
	return 1
}

// round runs the workload on an armed driver until it dies at its point, or
// for at most patience, and then kills it. It reports whether the point was
// hit.
func (s *station) round(ctx context.Context, point string, patience time.Duration) (hit bool, err error) {
	_ = os.Remove(s.hits)
	p, died, err := s.launch(ctx, point)
	if err != nil || died {
		return died, err
	}
	if err := s.verify(ctx, false); err != nil {
		_ = p.Kill()
		return false, fmt.Errorf("station %s, before the kill at %q: %w\n%s", s.name, point, err, tail(p.Log()))
	}
	work, stop := context.WithTimeout(ctx, patience)
	defer stop()
	errs := make([]error, len(s.workers))
	var wg sync.WaitGroup
	for i, w := range s.workers {
		wg.Go(func() { errs[i] = w.run(work) })
	}
	select {
	case <-p.Done():
	case <-work.Done():
	}
	if err := p.Kill(); err != nil {
		return false, err
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return false, fmt.Errorf("station %s, killed at %q: %w\n%s", s.name, point, err, tail(p.Log()))
		}
	}
	return s.hitCount() > 0, nil
}

// settle starts the driver unarmed, lets every worker have its open call
// answered, and checks everything down to the bytes.
func (s *station) settle(ctx context.Context) error {
	p, _, err := s.launch(ctx, "")
	if err != nil {
		return err
	}
	fail := func(err error) error {
		_ = p.Kill()
		return fmt.Errorf("station %s, settling: %w\n%s", s.name, err, tail(p.Log()))
	}
	if err := s.verify(ctx, false); err != nil {
		return fail(err)
	}
	for _, w := range s.workers {
		for w.open != nil {
			if err := w.step(); err != nil {
				return fail(err)
			}
		}
	}
	if err := s.verify(ctx, true); err != nil {
		return fail(err)
	}
	return p.Stop()
}

// empty takes everything down through the driver, and checks that the pool is
// as empty as at the beginning.
func (s *station) empty(ctx context.Context) error {
	p, _, err := s.launch(ctx, "")
	if err != nil {
		return err
	}
	defer func() { _ = p.Stop() }()
	for _, w := range s.workers {
		if err := w.leave(); err != nil {
			return fmt.Errorf("station %s, emptying: %w\n%s", s.name, err, tail(p.Log()))
		}
	}
	if err := s.verify(ctx, true); err != nil {
		return fmt.Errorf("station %s, emptied: %w", s.name, err)
	}
	return nil
}

// leave lets go of everything the worker holds.
func (w *worker) leave() error {
	var steps []func() error
	for range w.inline {
		steps = append(steps, w.unpublishInline)
	}
	for range w.albums {
		steps = append(steps, w.removeAlbum)
	}
	for _, p := range w.pictures {
		if p.group == "" {
			steps = append(steps, func() error { return w.removePicture(p) })
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

// tail is the end of a driver's log without the calls that went well.
func tail(log string) string {
	const most = 40
	lines := slices.DeleteFunc(strings.Split(log, "\n"), func(l string) bool { return strings.Contains(l, "code=OK") })
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// files lists the plain files of a directory of the pool.
func files(dir string) ([]string, error) {
	var names []string
	entries, err := fs.ReadDir(os.DirFS(dir), ".")
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
