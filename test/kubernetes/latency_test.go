//go:build soak

package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/test/testkit"
)

// TestLatency measures the life cycle of volumes, one after the other, and
// kills and replaces the driver. CLEAT_ROUNDS sets the number of volumes.
func TestLatency(t *testing.T) {
	rounds := 1
	if text := os.Getenv("CLEAT_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("CLEAT_ROUNDS is %q, want a number of at least 1", text)
		}
	}
	s := newSpace(t)
	l := latencies{space: s, all: map[string][]time.Duration{}}
	defer l.print()
	for range rounds {
		l.volume("local-xfs", "320Mi", "352Mi")
		l.volume("local-ext4", "16Mi", "") // online expansion is not possible everywhere
	}
	for range min(rounds, 5) {
		l.killed()
		l.exchanged()
	}
}

// latencies are durations by step name.
type latencies struct {
	*space
	steps []string
	all   map[string][]time.Duration
}

func (l *latencies) add(step string, since time.Time) {
	if l.all[step] == nil {
		l.steps = append(l.steps, step)
	}
	l.all[step] = append(l.all[step], time.Since(since))
}

func (l *latencies) print() {
	var b strings.Builder
	for _, step := range l.steps {
		each := l.all[step]
		slices.Sort(each)
		fmt.Fprintf(&b, "%-56s %5.2f s (p50), %5.2f s (the longest of %d)\n", step, percentile(each, 50).Seconds(), each[len(each)-1].Seconds(), len(each))
	}
	l.Logf("latencies:\n%s", b.String())
}

// soon polls every few milliseconds; until is too slow for measurements.
func (l *latencies) soon(what string, ask func(context.Context) (bool, error)) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), waitTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := ask(ctx)
		if yes && err == nil {
			return
		}
		select {
		case <-ctx.Done():
			l.Fatalf("timed out waiting for %s after %s (%v)", what, waitTimeout, err)
		case <-tick.C:
		}
	}
}

// claimed returns the claim of the current round.
func (l *latencies) claimed(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	return testCluster.Client.CoreV1().PersistentVolumeClaims(l.name).Get(ctx, "one", metav1.GetOptions{})
}

// volume runs a volume's life cycle, with online expansion if grown is set.
func (l *latencies) volume(class, size, grown string) {
	l.Helper()
	began := time.Now()
	l.claim("one", claim{class: class, size: size})
	l.start("one", pod{mounts: map[string]string{"/data": "one"}, command: "echo $HOSTNAME >/data/name && sync && exec sleep 3600"})
	l.soon("the volume", func(ctx context.Context) (bool, error) {
		p, err := l.claimed(ctx)
		return err == nil && p.Status.Phase == corev1.ClaimBound, err
	})
	l.add(class+": claim and pod created until bound", began)
	l.soon("the pod", func(ctx context.Context) (bool, error) {
		p, err := testCluster.Client.CoreV1().Pods(l.name).Get(ctx, "one", metav1.GetOptions{})
		return err == nil && isReady(p), err
	})
	l.add(class+": ... until the pod is ready", began)
	l.snapshotOf("one", class)
	if grown != "" {
		l.grow(class, grown)
	}
	began = time.Now()
	l.kubectl("delete", "volumesnapshot", "one", "--wait")
	l.drop("one")
	l.add(class+": snapshot and pod deleted until both have gone", began)
	v := l.bound("one")
	began = time.Now()
	l.kubectl("delete", "pvc", "one", "--wait")
	l.forgotten(v)
	l.add(class+": claim deleted until the volume has gone", began)
}

func (l *latencies) snapshotOf(claim, class string) {
	l.Helper()
	began := time.Now()
	l.createSnapshot("one", "local", claim)
	l.soon("the snapshot", func(ctx context.Context) (bool, error) {
		err := l.snapshotReady(ctx, "one")
		return err == nil, err
	})
	l.add(class+": snapshot of a volume in use until ready", began)
}

func (l *latencies) grow(class, size string) {
	l.Helper()
	began := time.Now()
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	testkit.Value(testCluster.Client.CoreV1().PersistentVolumeClaims(l.name).Patch(l.Context(), "one", types.MergePatchType, patch, metav1.PatchOptions{}))(l)
	want := resource.MustParse(size)
	l.soon("the growth", func(ctx context.Context) (bool, error) {
		p, err := l.claimed(ctx)
		return err == nil && p.Status.Capacity.Storage().Cmp(want) == 0, err
	})
	l.add(class+": volume in use grown", began)
}

// killed kills the driver.
func (l *latencies) killed() {
	l.Helper()
	old := l.driver()
	text := testkit.Value(os.ReadFile(filepath.Join(old.memory, "cgroup.procs")))(l)
	began := time.Now()
	for line := range strings.Lines(string(text)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err != nil || unix.Kill(pid, unix.SIGKILL) != nil {
			l.Fatalf("kill process %q: %v", line, err)
		}
	}
	l.succeeded(old)
	l.add("driver killed until its pod is ready again", began)
}

// exchanged deletes the driver's pod, as an update does.
func (l *latencies) exchanged() {
	l.Helper()
	old := l.driver()
	began := time.Now()
	testkit.Must(l, testCluster.Client.CoreV1().Pods(system).Delete(l.Context(), old.pod, metav1.DeleteOptions{}))
	l.succeeded(old)
	l.add("driver's pod deleted until the next one is ready", began)
}

// driver returns the container of release local's driver.
func (l *latencies) driver() *container {
	l.Helper()
	all := testkit.Value(containersOf(l.Context(), "local"))(l)
	i := slices.IndexFunc(all, func(c *container) bool { return c.name == "driver" })
	if i < 0 {
		l.Fatal("release local has no driver")
	}
	return all[i]
}

// succeeded waits until a new container of the driver runs and the pod is
// ready.
func (l *latencies) succeeded(old *container) {
	l.Helper()
	l.until("the driver", func(ctx context.Context) error {
		pods, err := testCluster.Client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=local" + notPlacement})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			now := slices.IndexFunc(p.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool {
				return s.Name == "driver" && s.State.Running != nil && !strings.HasSuffix(s.ContainerID, old.id)
			})
			if now >= 0 && isReady(&p) {
				return nil
			}
		}
		return fmt.Errorf("container %s of pod %s has no ready successor", old.name, old.pod)
	})
}
