package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// Restarts and crashes of kubelet, runtime, drivers and sidecars do not disturb
// writers, and no acknowledged record is lost. The cases share two writing
// pods; after each case drivers and node are as before.
func TestDisruption(t *testing.T) {
	w := newWorkload(newSpace(t))
	local := w.load("local", "xfs", "ext4")
	local.inline, local.targets["local-inline"] = "/scratch", "/scratch/records"
	w.add(local)
	w.add(w.load("single", "xfs"))
	for _, c := range []struct {
		name string
		run  func(*workload)
		soak bool // shown below, or by a harder case
	}{
		{"KubeletEnds", (*workload).kubeletEnds, true}, // KubeletKilled
		{"KubeletKilled", (*workload).kubeletKilled, false},
		{"RuntimeKilled", (*workload).runtimeKilled, false},
		{"DriversKilled", (*workload).driversKilled, false},
		{"SidecarsKilled", (*workload).sidecarsKilled, false},
		{"HungUnmount", (*workload).hungUnmount, false},
		{"Rollout", (*workload).rollout, false},
		{"Rollback", (*workload).rolledBack, true},           // test/csi TestUpgrade
		{"SecondInstance", (*workload).secondInstance, true}, // test/csi TestTwoDrivers
		{"Uninstalled", (*workload).uninstalled, false},
		{"PodForced", (*workload).podForced, false},
		{"Reboot", (*workload).reboot, false},
	} {
		if c.soak && !soak.Enabled {
			continue
		}
		if !t.Run(c.name, func(t *testing.T) { c.run(w.with(t)) }) {
			return // later cases would fail for the same reason
		}
	}
}

// mustNotDisturb runs undisturbed and fails the test on an error.
func (w *workload) mustNotDisturb(what func()) {
	w.Helper()
	testkit.Must(w, w.undisturbed(what))
}

func (w *workload) kubeletEnds() {
	w.mustNotDisturb(func() { testkit.Must(w, testCluster.RestartKubelet(w.Context(), false)) })
}

// The kubelet is killed during calls to the drivers.
func (w *workload) kubeletKilled() {
	w.mustNotDisturb(func() {
		w.startOthers("kubelet")
		testkit.Must(w, testCluster.RestartKubelet(w.Context(), true))
		w.finishOthers("kubelet")
		w.deleteOthers("kubelet")
		w.awaitOthersDeleted("kubelet")
	})
}

func (w *workload) runtimeKilled() {
	w.mustNotDisturb(func() { testkit.Must(w, testCluster.RestartRuntime(w.Context())) })
}

// Drivers are killed while they create, stage, publish, snapshot and delete.
func (w *workload) driversKilled() {
	w.mustNotDisturb(func() {
		for _, phase := range []struct {
			name        string
			begin, wait func(string)
		}{{"create", w.startOthers, w.finishOthers}, {"snapshot", w.startSnapshots, w.awaitSnapshots}, {"delete", w.deleteOthers, w.awaitOthersDeleted}} {
			phase.begin("killed")
			killed := w.killAtRandom(4)
			began := time.Now()
			phase.wait("killed")
			w.Logf("%s: %d kills, done %.1f s after the last", phase.name, killed, time.Since(began).Seconds())
		}
		w.allReady(nil)
	})
}

// killAtRandom kills drivers in turn at random times after their start, and
// returns the number of kills.
func (w *workload) killAtRandom(times int) (killed int) {
	w.Helper()
	all := driverProcesses()
	for i := range times {
		d := all[i%len(all)]
		moment := time.NewTimer(time.Duration(rand.IntN(700)) * time.Millisecond)
		select {
		case <-w.Context().Done():
			w.Fatal(w.Context().Err())
		case <-moment.C:
		}
		var pid int
		w.until("a process of "+d.name+" "+d.argument, func(context.Context) (err error) {
			pid, err = d.pid()
			return err
		})
		testkit.Must(w, killAll([]int{pid}))
		killed++
	}
	return killed
}

// Each kind of sidecar is killed while it has work.
func (w *workload) sidecarsKilled() {
	kill := func(name string) {
		// One that ended with its driver can wait for its restart.
		w.until(name+" runs", func(context.Context) error {
			all, err := processes(func(args []string) bool { return args[0] == name })
			if err == nil && len(all) == 0 {
				err = errors.New("it does not")
			}
			if err != nil {
				return err
			}
			return killAll(all)
		})
	}
	w.mustNotDisturb(func() {
		w.startOthers("sidecars")
		kill("csi-provisioner")
		kill("csi-attacher")
		w.finishOthers("sidecars")
		w.startSnapshots("sidecars")
		kill("csi-snapshotter")
		kill("csi-resizer")
		w.awaitSnapshots("sidecars")
		w.deleteOthers("sidecars")
		w.awaitOthersDeleted("sidecars")
		w.allReady(nil)
	})
}

// A pod is deleted by force, and another one uses its claims.
func (w *workload) podForced() {
	before := testkit.Value(takeInventory(w.Context()))(w)
	o := w.writers[1]
	w.kubectl("delete", "pod", o.name, "--force", "--grace-period=0")
	o.name, o.restarts = o.name+"-again", 0
	w.startWriter(o)
	w.running(o.name)
	w.advances()
	w.until("the same number of mounts and devices as before", func(ctx context.Context) error { return before.counts(ctx) })
	testkit.Must(w, w.intact(w.Context()))
}

// counts returns an error unless the numbers of mounts and devices are the
// same.
func (g inventory) counts(ctx context.Context) error {
	now, err := takeInventory(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{"mount", "device"} {
		if was, is := g.count(kind), now.count(kind); was != is {
			return fmt.Errorf("kind %[2]s: got %[3]d, want %[1]d: %[4]v", was, kind, is, g.compare(now))
		}
	}
	return nil
}

// The node crashes: processes and mounts are lost, pools and state stay.
func (w *workload) reboot() {
	w.advances()
	before := testkit.Value(takeInventory(w.Context()))(w)
	began := time.Now()
	testkit.Must(w, testCluster.Reboot(w.Context()))
	w.Logf("the node is ready %.1f s after the crash", time.Since(began).Seconds())
	for _, o := range w.writers {
		w.until("pod "+o.name+" after the crash", func(ctx context.Context) error { return startedAgain(ctx, w.name, o) })
	}
	w.advances()
	w.Logf("the writers continue %.1f s after the crash", time.Since(began).Seconds())
	w.allReady(nil)
	w.until("the same number of mounts and devices as before", func(ctx context.Context) error { return before.counts(ctx) })
	testkit.Must(w, w.intact(w.Context()))
}

// startedAgain returns an error until the container of a writer was restarted: at the
// first attempt, or after others that the runtime refused. Its check of all records
// is in its journal.
func startedAgain(ctx context.Context, namespace string, o *writer) error {
	p, err := testCluster.Client.CoreV1().Pods(namespace).Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var said []string
	for _, c := range p.Status.ContainerStatuses {
		if c.RestartCount > o.restarts && c.Ready {
			o.restarts = c.RestartCount
			return nil
		}
		said = append(said, fmt.Sprintf("%s: started again %d times, ready %t, %v", c.Name, c.RestartCount, c.Ready, c.State))
	}
	return fmt.Errorf("phase %s: %s", p.Status.Phase, strings.Join(said, ", "))
}
