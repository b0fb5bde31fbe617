package power

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk"
)

// The first start creates the pool, its image and the stores. After a power
// loss at any time, the next start completes it, and later volumes survive.
func TestFirstStartSurvivesPowerLoss(t *testing.T) {
	t.Parallel()
	seed := number(t, "POWER_SEED", uint64(time.Now().UnixNano()))
	t.Logf("POWER_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	m := newMachine(t, "first", testkit.Build(t, testkit.Cleat, "-tags", "crashpoints"), testkit.Build(t, "./test/vm/power/inside"), "ext4", seed, nil, "--pool-image", "2GiB")
	s := workload.NewInstance(workload.Config{
		Name: "first", Machine: m, Dir: workersDir, Seed: seed, Workers: 3, Reflink: true, Patience: time.Minute, Lean: true,
	})
	start := func(point string, early *disk.Trigger) {
		t.Helper()
		m.early = early
		m.drive.Survive([]disk.Survival{disk.SurviveSome, disk.SurviveNone}[random.IntN(2)])
		hit := testkit.Value(s.Start(t.Context(), point))(t)
		if point != "" && !hit {
			t.Fatalf("the start did not reach crash point %s", point)
		}
		t.Logf("power loss at %s%v (reached: %v): %v", point, early, hit, m.drive.Stats().LastLoss)
	}
	points := workload.ImagePoints()
	grown := points[len(points)-1]
	some := soak.Pick(1, random.Perm(len(points) - 1)[:2])
	slices.Sort(some) // completed steps are not repeated
	for _, i := range some {
		start(points[i]+"=1", nil)
	}
	for _, moment := range soak.Pick(1, random.Perm(3)[:2]) {
		start("", &disk.Trigger{Event: disk.Flush, N: 1 + random.IntN(20), Moment: disk.Moment(moment)}) // pool and stores take about twenty flushes
	}
	testkit.Value(s.Round(t.Context(), "", 2*time.Second))(t)
	m.flags = []string{"--pool-image", "3GiB"}
	start(grown+"=1", nil)
	testkit.Must(t, s.Finish(t.Context()))
	for _, argv := range [][]string{{"umount", poolDir}, {"xfs_repair", "-n", "-f", poolDir + ".img"}} {
		if _, err := m.up().Run(t.Context(), argv...); err != nil {
			t.Error(err)
		}
	}
	testkit.Must(t, m.shutdown(t.Context()))
	if err := m.checkDisk(t.Context()); err != nil {
		t.Error(err)
	}
}
