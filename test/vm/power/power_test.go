// Package power runs the workload of the crash test in guests that lose power:
// their disk loses unflushed data like a real one. After each boot every
// acknowledged operation must be present, all data correct, and no foreign or
// left-over objects exist.
package power

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/disk"
)

// defaultPowerLosses is the number of power losses of one run, over both guests; make
// soak sets POWER_CUTS.
const defaultPowerLosses = 6

// fewPowerLosses is the number of power losses of one guest below which all data is
// read only after the last one.
const fewPowerLosses = 6

func TestNothingAcknowledgedIsLost(t *testing.T) {
	powerLosses := int(number(t, "POWER_CUTS", defaultPowerLosses))
	seed := number(t, "POWER_SEED", uint64(time.Now().UnixNano()))
	t.Logf("POWER_SEED=%d", seed)
	points := testkit.Value(workload.Points(testkit.Root(t)))(t)
	cleat, inside := testkit.Build(t, testkit.Cleat, "-tags", "crashpoints"), testkit.Build(t, "./test/vm/power/inside")
	slots := vm.ReserveSlots(t, 2)
	var campaigns []*campaign
	for i, k := range kinds() {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		plan := testkit.Value(k.plan(points, max(powerLosses/2, 1), random))(t)
		m := newMachine(t, k.name, cleat, inside, k.fsType, seed+uint64(i), slots)
		campaigns = append(campaigns, &campaign{
			kind: k, machine: m, plan: plan, random: random,
			work: workload.NewInstance(workload.Config{
				Name: k.name, Machine: m, Dir: workersDir, Seed: seed + uint64(i), Workers: 5, Reflink: k.reflink, Patience: time.Minute, Lean: true,
			}),
		})
	}
	var wg sync.WaitGroup
	for _, c := range campaigns {
		wg.Go(func() {
			if err := c.run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var calls []map[string]int
	for _, c := range campaigns {
		calls = append(calls, c.work.Calls())
	}
	fmt.Printf("REPORT: acknowledged calls: %v\n", workload.Sum(calls...))
}

// number parses an environment variable.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, s)
	}
	return n
}

// campaign runs all outages of one guest.
type campaign struct {
	kind    kind
	machine *machine
	work    *workload.Instance
	plan    []outage
	random  *rand.Rand
}

func (c *campaign) run(ctx context.Context) error {
	read := len(c.plan) < fewPowerLosses
	for i, o := range c.plan {
		name, _, _ := strings.Cut(o.point, "=")
		if !read && i >= len(c.plan)/2 && workload.LeadsTo(name) == "" {
			if err := c.work.Read(ctx); err != nil {
				return err
			}
			read = true
		}
		begun := time.Now()
		c.machine.order = o.order
		c.machine.drive.Survive([]disk.Survival{disk.SurviveSome, disk.SurviveSome, disk.SurviveNone}[c.random.IntN(3)])
		hit, err := c.work.Round(ctx, o.point, o.at)
		if err != nil {
			return fmt.Errorf("outage %d (%v): %w", i+1, o, err)
		}
		where := o.String()
		if !hit && (o.point != "" || o.order != nil) {
			where = "random time (not reached: " + where + ")"
		}
		fmt.Printf("REPORT: %s: power loss %2d after %4.1f s at %s: %v\n", c.kind.name, i+1, time.Since(begun).Seconds(), where, c.machine.drive.Stats().LastLoss)
	}
	begun := time.Now()
	if err := c.work.Finish(ctx); err != nil {
		return err
	}
	if err := c.machine.shutdown(ctx); err != nil {
		return err
	}
	fmt.Printf("REPORT: %s: verified all data and shut down in %.1f s\n", c.kind.name, time.Since(begun).Seconds())
	return c.machine.checkDisk(ctx)
}
