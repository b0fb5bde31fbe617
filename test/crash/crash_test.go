// Package crash kills cleat csi at crash points and at random instants under a
// concurrent workload of every mutating call. After each restart it checks that
// every acknowledged operation and every byte is there, and that no object is
// left without an owner.
package crash

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/crash/workload/site"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const (
	defaultKills = 100
	patience     = 2500 * time.Millisecond // to reach a crash point
	shortest     = 20 * time.Millisecond   // until a kill at a random instant
	longest      = 600 * time.Millisecond
)

// tally counts the kills of all instances.
type tally struct {
	mu     sync.Mutex
	hits   map[string]int
	tries  map[string]int
	kills  int
	budget int
	failed bool // an instance failed: the others stop
}

// next returns the crash point with the fewest hits, or "" for a random
// instant. ok is false when the budget is spent and every point was hit.
func (t *tally) next(number int) (point string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed {
		return "", false
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(t.hits)), func(n string) bool { return slices.Contains(workload.ImagePoints(), n) })
	least := slices.MinFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.hits[a], t.hits[b]), cmp.Compare(t.tries[a], t.tries[b]))
	})
	if t.kills >= t.budget && (t.hits[least] > 0 || t.kills >= 4*t.budget) {
		return "", false
	}
	if number%3 == 2 && t.kills < t.budget {
		return "", true
	}
	t.tries[least]++
	return least, true
}

// fail ends the campaign: points that only the failed instance reaches would
// never be hit.
func (t *tally) fail() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
}

func (t *tally) count(point string, hit bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kills++
	if hit {
		t.hits[point]++
	}
}

func TestAcknowledgedOperationsSurviveKills(t *testing.T) {
	t.Parallel()
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
	cleat := testkit.Build(t, testkit.Cleat, "-tags", "crashpoints")
	count := &tally{hits: map[string]int{}, tries: map[string]int{}, budget: budget}
	points := testkit.Value(workload.Points(testkit.Root(t)))(t)
	for _, p := range points {
		count.hits[p] = 0
	}
	// The second pool is on ext4, which has no reflinks: there the engine
	// copies.
	instances := []*instance{
		newInstance(t, cleat, "reflink", seed, true, "--pool-image", "4GiB"),
		newInstance(t, cleat, "copy", seed+1, false),
	}
	var wg sync.WaitGroup
	for _, s := range instances {
		wg.Go(func() {
			if err := s.campaign(t.Context(), count); err != nil {
				t.Error(err)
				count.fail()
			}
		})
	}
	wg.Wait()
	report(t, count, instances)
}

// instance is one driver on one pool of this machine, with its workers.
type instance struct {
	*workload.Instance
	local   *workload.Local
	rand    *rand.Rand
	reflink bool
}

func newInstance(t *testing.T, cleat, name string, seed uint64, reflink bool, flags ...string) *instance {
	t.Helper()
	dir := t.TempDir()
	pool, workers := filepath.Join(dir, "pool"), filepath.Join(dir, "workers")
	local := &workload.Local{
		Cleat: cleat, Dir: dir, Site: site.Site{Workers: workers, Pool: pool},
		Flags: append([]string{"--pool", pool, "--node-id", workload.NodeID, "--controller-publish", "--overprovision-ratio", "20", "--log-format", "text"}, flags...),
	}
	t.Cleanup(func() { driver.Sweep(t, dir) })
	if !reflink {
		driver.MountImage(t, pool, mkfs.Ext4, 4<<30)
	}
	return &instance{
		local: local, rand: rand.New(rand.NewPCG(seed, 1)), reflink: reflink,
		Instance: workload.NewInstance(workload.Config{
			Name: name, Machine: local, Dir: workers, Seed: seed, Workers: 5, Reflink: reflink, Patience: time.Minute,
		}),
	}
}

func (s *instance) campaign(ctx context.Context, count *tally) error {
	if s.reflink {
		if err := s.begin(ctx, count); err != nil {
			return err
		}
	}
	for number := 0; ; number++ {
		point, ok := count.next(number)
		if !ok {
			break
		}
		if before := workload.LeadsTo(point); before != "" {
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
			if err := s.Settle(ctx); err != nil {
				return err
			}
		}
	}
	return s.Finish(ctx)
}

// aim kills the driver when it reaches a point for the count-th time, or at a
// random instant if point is empty.
func (s *instance) aim(ctx context.Context, point string, count int) (hit bool, err error) {
	if point == "" {
		return s.Round(ctx, "", shortest+time.Duration(s.rand.Int64N(int64(longest-shortest))))
	}
	if workload.LeadsTo(point) != "" {
		count = 1
	}
	return s.Round(ctx, fmt.Sprintf("%s=%d", point, count), patience)
}

// begin kills the driver at every point of creating the pool's image, which
// only a first start, or one with a larger image, reaches.
func (s *instance) begin(ctx context.Context, count *tally) error {
	for _, point := range workload.ImagePoints() {
		if point == "image.grown" {
			s.local.Flags = append(s.local.Flags, "--pool-image", "5GiB")
		}
		hit, err := s.Start(ctx, point+"=1")
		if err == nil && !hit {
			err = fmt.Errorf("the first start did not reach %s", point)
		}
		if err != nil {
			return err
		}
		count.count(point, true)
	}
	return nil
}

func report(t *testing.T, count *tally, instances []*instance) {
	var calls []map[string]int
	for _, s := range instances {
		calls = append(calls, s.Calls())
	}
	fmt.Printf("REPORT: %d kills of the driver, acknowledged calls: %v\n", count.kills, workload.Sum(calls...))
	never := []string{}
	for _, p := range slices.Sorted(maps.Keys(count.hits)) {
		fmt.Printf("REPORT: %6d kills at %s\n", count.hits[p], p)
		if count.hits[p] == 0 {
			never = append(never, p)
		}
	}
	if len(never) > 0 && !t.Failed() {
		t.Errorf("these crash points were never hit: %v", never)
	}
}
