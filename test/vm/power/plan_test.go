package power

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/vm/disk"
)

// outage is when a guest loses power: at a crash point of the driver, at an
// event of the disk, or at a random time.
type outage struct {
	point string // <name>=<count>, or empty
	order *disk.Trigger
	at    time.Duration // after the start of the workload
}

func (o outage) String() string {
	switch {
	case o.point != "":
		return o.point
	case o.order != nil:
		return "disk: " + o.order.String()
	}
	return fmt.Sprintf("random time, %.1f s", o.at.Seconds())
}

const (
	patience = 15 * time.Second // limit for reaching a crash point or a disk event
	shortest = time.Second
	longest  = 12 * time.Second
)

// kind is a type of pool.
type kind struct {
	name    string
	fsType  string // of the data disk
	reflink bool
	// always are crash points next to durable changes. Up to half of the
	// outages of each run use them, in this order of importance.
	always []string
	// not are prefixes of crash points that this kind of pool does not reach.
	not []string
}

func kinds() []kind {
	return []kind{
		{
			name: "reflink", fsType: "xfs", reflink: true,
			always: []string{"create.recorded", "snapshot.recorded", "delete.removed", "create.filled", "place.renamed", "snapshot.filled"},
			not:    []string{"image.", "copy."},
		},
		{
			name: "copy", fsType: "ext4",
			always: []string{"copy.finishing", "expand.grown", "stage.recorded", "delete-snapshot.removed", "modify.applied", "copy.filled"},
			not:    []string{"image.", "clone.", "snapshot.", "create.cloned", "recover.thawed"},
		},
	}
}

// plan chooses n outages: half of them at the points in always, the others at
// disk events, random times and seed-dependent crash points.
func (k kind) plan(points []string, n int, random *rand.Rand) ([]outage, error) {
	for _, p := range k.always {
		if !slices.Contains(points, p) {
			return nil, fmt.Errorf("crash point %s does not exist in the source; update this test", p)
		}
	}
	rest := slices.DeleteFunc(slices.Clone(points), func(p string) bool {
		return slices.Contains(k.always, p) || slices.ContainsFunc(k.not, func(beginning string) bool { return strings.HasPrefix(p, beginning) })
	})
	random.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	var all []outage
	for _, p := range k.always {
		all = append(all, outage{point: fmt.Sprintf("%s=%d", p, 1+random.IntN(8)), at: patience})
	}
	all = all[:min((n+1)/2, len(all))]
	for i := 0; len(all) < n; i++ {
		switch {
		case i%3 == 2 && len(rest) > 0:
			if before := workload.LeadsTo(rest[0]); before != "" {
				all = append(all, outage{point: before + "=1", at: patience})
			}
			all, rest = append(all, outage{point: rest[0] + "=1", at: patience}), rest[1:]
		case i%3 == 0:
			order := disk.Trigger{Event: disk.Flush, N: 1 + random.IntN(200), Moment: disk.Moment(random.IntN(3))}
			if random.IntN(3) == 0 {
				order.Event, order.N = disk.Write, 1+random.IntN(500)
			}
			all = append(all, outage{order: &order, at: patience})
		default:
			all = append(all, outage{at: shortest + time.Duration(random.Int64N(int64(longest-shortest)))})
		}
	}
	return shuffled(all[:n], random), nil
}

// shuffled shuffles the outages, but keeps a start-up crash point after the
// outage that leads to it.
func shuffled(all []outage, random *rand.Rand) []outage {
	var groups [][]outage
	for _, o := range all {
		name, _, _ := strings.Cut(o.point, "=")
		if last := len(groups) - 1; last >= 0 && workload.LeadsTo(name) != "" {
			groups[last] = append(groups[last], o)
			continue
		}
		groups = append(groups, []outage{o})
	}
	random.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	return slices.Concat(groups...)
}
