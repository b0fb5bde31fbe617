package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/driver"
)

const (
	defaultKills = 220
	patience     = 2500 * time.Millisecond // to reach a named point
	shortest     = 20 * time.Millisecond   // until a kill at a random instant
	longest      = 600 * time.Millisecond
)

// tally counts the kills of all stations.
type tally struct {
	mu     sync.Mutex
	hits   map[string]int
	tries  map[string]int
	kills  int
	budget int
}

// next is the point that was hit least, or "" for a random instant, or ok
// false when the budget is spent and every point was hit.
func (t *tally) next(number int) (point string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(t.hits)), func(n string) bool { return slices.Contains(imagePoints, n) })
	least := slices.MinFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.hits[a], t.hits[b]), cmp.Compare(t.tries[a], t.tries[b]))
	})
	if t.kills >= t.budget && (t.hits[least] > 0 || t.kills >= 2*t.budget) {
		return "", false
	}
	if number%3 == 2 && t.kills < t.budget {
		return "", true
	}
	t.tries[least]++
	return least, true
}

func (t *tally) count(point string, hit bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kills++
	if hit {
		t.hits[point]++
	}
}

func TestNothingAcknowledgedIsLost(t *testing.T) {
	budget := defaultKills
	if s := os.Getenv("SOAK_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("SOAK_KILLS=%q is not a number", s)
		}
		budget = n
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("CRASH_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("CRASH_SEED=%d", seed)
	cleat := driver.Build(t, "-tags", "crashpoints")
	count := &tally{hits: map[string]int{}, tries: map[string]int{}, budget: budget}
	for _, p := range points(t) {
		count.hits[p] = 0
	}
	// The second pool is on ext4, which cannot share blocks: there the engine copies.
	stations := []*station{
		newStation(t, cleat, "reflink", seed, true, "--pool-image", "4GiB"),
		newStation(t, cleat, "copy", seed+1, false),
	}
	var wg sync.WaitGroup
	for _, s := range stations {
		wg.Go(func() {
			if err := s.campaign(t.Context(), count); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	report(t, count, stations)
}

func (s *station) campaign(ctx context.Context, count *tally) error {
	if s.workers[0].reflink {
		if err := s.begin(ctx, count); err != nil {
			return err
		}
	}
	for number := 0; ; number++ {
		point, ok := count.next(number)
		if !ok {
			break
		}
		if before := leadsTo[point]; before != "" {
			hit, err := s.aim(ctx, before, 1)
			if err != nil {
				return err
			}
			count.count(before, hit)
		}
		hit, err := s.aim(ctx, point, 1+s.rand.IntN(2))
		if err != nil {
			return err
		}
		count.count(point, hit)
		if number%10 == 9 {
			if err := s.settle(ctx); err != nil {
				return err
			}
		}
	}
	return s.finish(ctx)
}

// leadsTo says at which point a driver has to die so that the next one comes by
// a point of its start-up.
var leadsTo = map[string]string{
	"recover.thawed":   "cut.frozen",
	"recover.incoming": "create.filled",
	"recover.volume":   "delete.marked",
	"recover.snapshot": "delete-snapshot.marked",
	"recover.group":    "delete-group.marked",
}

// aim kills the driver at the count-th time that it comes by a point, or at a
// random instant when there is no point.
func (s *station) aim(ctx context.Context, point string, count int) (hit bool, err error) {
	if point == "" {
		return s.round(ctx, "", shortest+time.Duration(s.rand.Int64N(int64(longest-shortest))))
	}
	if leadsTo[point] != "" {
		count = 1
	}
	return s.round(ctx, fmt.Sprintf("%s=%d", point, count), patience)
}

// begin kills the driver at every point of making the pool's image, which only
// a first start, or one with a larger image, comes by.
func (s *station) begin(ctx context.Context, count *tally) error {
	for _, point := range imagePoints {
		if point == "image.grown" {
			s.flags = append(s.flags, "--pool-image", "5GiB")
		}
		_ = os.Remove(s.hits)
		p, died, err := s.launch(ctx, point+"=1")
		if err != nil {
			return err
		}
		if !died {
			return errors.Join(fmt.Errorf("the first start did not come by %s", point), p.Kill())
		}
		count.count(point, true)
	}
	return nil
}

// imagePoints are in the order in which a first start comes by them, the last
// one in a start with a larger image.
var imagePoints = []string{"image.allocated", "image.filled", "image.renamed", "image.attached", "image.mounted", "image.grown"}

// finish settles, reads every byte of every volume and snapshot, and takes
// everything down.
func (s *station) finish(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	p, _, err := s.launch(ctx, "")
	if err != nil {
		return err
	}
	for _, w := range s.workers {
		if err := w.verifyRest(); err != nil {
			_ = p.Kill()
			return fmt.Errorf("station %s: %w\n%s", s.name, err, tail(p.Log()))
		}
	}
	if err := p.Stop(); err != nil {
		return err
	}
	return s.empty(ctx)
}

func report(t *testing.T, count *tally, stations []*station) {
	calls := map[string]int{}
	for _, s := range stations {
		for _, w := range s.workers {
			for method, n := range w.calls {
				calls[method] += n
			}
		}
	}
	fmt.Printf("REPORT: %d kills of the driver, acknowledged calls: %v\n", count.kills, calls)
	never := []string{}
	for _, p := range slices.Sorted(maps.Keys(count.hits)) {
		fmt.Printf("REPORT: %6d kills at %s\n", count.hits[p], p)
		if count.hits[p] == 0 {
			never = append(never, p)
		}
	}
	if len(never) > 0 && !t.Failed() {
		t.Errorf("these points were never hit, so nothing is proved about them: %v", never)
	}
}

var hit = regexp.MustCompile(`crashpoint\.Hit\("([^"]+)"\)`)

// points are all crash points of the source, so that none can be forgotten.
func points(t *testing.T) []string {
	t.Helper()
	var all []string
	root := driver.Root(t)
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, filepath.Join(root, "test")) {
			return err
		}
		data, err := os.ReadFile(path)
		for _, m := range hit.FindAllSubmatch(data, -1) {
			all = append(all, string(m[1]))
		}
		return err
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("no crash points found in the source: %v", err)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
