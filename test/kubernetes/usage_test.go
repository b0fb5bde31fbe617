package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// notPlacement selects the pods with the driver of a release.
const notPlacement = ",app.kubernetes.io/component notin (csi-placement,snapshot-controller)"

// usage samples the resource usage of a release's containers from their
// cgroups, which the kubelet reads only every ten seconds.
type usage struct {
	*testing.T
	release    string
	containers []*container
	phases     []string
	cancel     context.CancelFunc
	next       chan string // phase names
	done       chan error
}

// container is a watched container of a release.
type container struct {
	pod, name, id string
	restarts      int32
	request       int64 // bytes
	limit         int64 // bytes
	memory, cpu   string
	use           map[string]*use // by phase
}

// use is the usage of a container in a phase.
type use struct {
	anonymous  []int64 // bytes, per sample
	workingSet int64   // maximum, which the kubelet compares with limits
	resident   int64   // maximum of the processes, including shared pages of programs
	cpu        time.Duration
	began      time.Duration // CPU time before
	from, to   time.Time
}

const sampling = 250 * time.Millisecond

// watchUsage starts sampling the containers of a release.
func watchUsage(t *testing.T, release, phase string) *usage {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	u := &usage{T: t, release: release, cancel: cancel, next: make(chan string), done: make(chan error, 1), phases: []string{phase}}
	t.Cleanup(cancel)
	u.containers = testkit.Value(containersOf(ctx, release))(t)
	if len(u.containers) == 0 {
		t.Fatalf("release %s has no containers", release)
	}
	go func() { u.done <- u.sample(ctx, phase) }()
	return u
}

// containersOf returns the running containers of a release.
func containersOf(ctx context.Context, release string) ([]*container, error) {
	pods, err := testCluster.Client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release + notPlacement})
	if err != nil {
		return nil, err
	}
	var all []*container
	for _, p := range pods.Items {
		statuses := append(slices.Clone(p.Status.InitContainerStatuses), p.Status.ContainerStatuses...)
		for _, spec := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
			i := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == spec.Name })
			if i >= 0 && statuses[i].State.Terminated != nil && statuses[i].State.Terminated.ExitCode == 0 {
				continue // a container that only prepares
			}
			if i < 0 || statuses[i].State.Running == nil {
				return nil, fmt.Errorf("container %s of pod %s does not run", spec.Name, p.Name)
			}
			c := &container{pod: p.Name, name: spec.Name, restarts: statuses[i].RestartCount, use: map[string]*use{},
				request: spec.Resources.Requests.Memory().Value(), limit: spec.Resources.Limits.Memory().Value()}
			_, c.id, _ = strings.Cut(statuses[i].ContainerID, "://")
			if c.memory, err = groupOf(c.id, "memory"); err != nil {
				return nil, err
			}
			if c.cpu, err = groupOf(c.id, "cpuacct"); err != nil {
				return nil, err
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// groupOf returns the directory of a container's cgroup, in the hierarchy of a
// controller for version 1.
func groupOf(id, controller string) (string, error) {
	root := filepath.Join("/sys/fs/cgroup", controller)
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		root = "/sys/fs/cgroup"
	}
	found := ""
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed meanwhile
		case err == nil && e.IsDir() && e.Name() == id:
			found = path
			return fs.SkipAll
		}
		return err
	})
	if err == nil && found == "" {
		err = fmt.Errorf("container %s has no cgroup below %s", id, root)
	}
	return found, err
}

// phase starts another phase.
func (u *usage) phase(name string) {
	u.Helper()
	select {
	case u.next <- name:
		u.phases = append(u.phases, name)
	case err := <-u.done:
		u.Fatalf("sampling ended: %v", err)
	}
}

func (u *usage) sample(ctx context.Context, phase string) error {
	tick := time.NewTicker(sampling)
	defer tick.Stop()
	for {
		for _, c := range u.containers {
			if err := c.sample(phase); err != nil {
				return fmt.Errorf("container %s: %w", c.name, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case phase = <-u.next:
		case <-tick.C:
		}
	}
}

func (c *container) sample(phase string) error {
	anonymous, workingSet, err := memoryOf(c.memory)
	if err != nil {
		return err
	}
	cpu, err := cpuOf(c.cpu)
	if err != nil {
		return err
	}
	u := c.use[phase]
	if u == nil {
		u = &use{began: cpu, from: time.Now()}
		c.use[phase] = u
	}
	u.anonymous = append(u.anonymous, anonymous)
	u.workingSet = max(u.workingSet, workingSet)
	resident, err := residentOf(c.memory)
	u.resident = max(u.resident, resident)
	u.cpu, u.to = cpu-u.began, time.Now()
	return err
}

// memoryOf reads a cgroup's anonymous memory and its working set as the kubelet
// computes it, for either cgroup version.
func memoryOf(group string) (anonymous, workingSet int64, err error) {
	stat, err := numbers(filepath.Join(group, "memory.stat"))
	if err != nil {
		return 0, 0, err
	}
	file, anon, inactive := "memory.current", "anon", "inactive_file"
	if _, unified := stat[anon]; !unified {
		file, anon, inactive = "memory.usage_in_bytes", "total_rss", "total_inactive_file"
	}
	all, err := number(filepath.Join(group, file))
	return stat[anon], max(0, all-stat[inactive]), err
}

// residentOf returns the resident memory of a cgroup's processes.
func residentOf(group string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return 0, err
	}
	var all int64
	for line := range strings.Lines(string(text)) {
		statm, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(line), "statm"))
		if err != nil {
			continue // the process has ended
		}
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, err
			}
			all += pages * int64(os.Getpagesize())
		}
	}
	return all, nil
}

func cpuOf(group string) (time.Duration, error) {
	if stat, err := numbers(filepath.Join(group, "cpu.stat")); err == nil && stat["usage_usec"] > 0 {
		return time.Duration(stat["usage_usec"]) * time.Microsecond, nil
	}
	n, err := number(filepath.Join(group, "cpuacct.usage"))
	return time.Duration(n), err
}

func number(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// numbers parses a file of lines with a name and a number.
func numbers(path string) (map[string]int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				all[name] = n
			}
		}
	}
	return all, nil
}

// end stops sampling, logs the usage, and fails if a container exceeded its
// limit or was restarted.
func (u *usage) end() {
	u.Helper()
	u.cancel()
	if err := <-u.done; err != nil {
		u.Error(err)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "container\trequest, limit\tphase\tanonymous p50\tmost\tworking set\tresident\tCPU")
	for _, c := range u.containers {
		for _, name := range u.phases {
			p, ok := c.use[name]
			if !ok {
				continue
			}
			slices.Sort(p.anonymous)
			fmt.Fprintf(w, "%s\t%d, %d MiB\t%s\t%.1f MiB\t%.1f\t%.1f\t%.1f\t%.1f s of %.1f s\n", c.name, c.request>>20, c.limit>>20, name,
				inMiB(percentile(p.anonymous, 50)), inMiB(p.anonymous[len(p.anonymous)-1]), inMiB(p.workingSet), inMiB(p.resident), p.cpu.Seconds(), p.to.Sub(p.from).Seconds())
			if p.workingSet > c.limit {
				u.Errorf("%s used %d bytes with %s, its limit is %d", c.name, p.workingSet, name, c.limit)
			}
		}
	}
	w.Flush()
	u.Logf("containers of release %s:\n%s", u.release, b.String())
	u.unharmed()
}

// unharmed fails if a container was replaced.
func (u *usage) unharmed() {
	u.Helper()
	now := testkit.Value(containersOf(u.Context(), u.release))(u)
	for _, old := range u.containers {
		i := slices.IndexFunc(now, func(c *container) bool { return c.pod == old.pod && c.name == old.name })
		if i < 0 || now[i].id != old.id || now[i].restarts != old.restarts {
			u.Errorf("container %s of pod %s was replaced", old.name, old.pod)
			continue
		}
		// A process in the container can be killed without ending the
		// container.
		kills, err := numbers(filepath.Join(old.memory, "memory.events"))
		if err != nil {
			kills, err = numbers(filepath.Join(old.memory, "memory.oom_control"))
		}
		if n, known := kills["oom_kill"]; err != nil || !known || n > 0 {
			u.Errorf("the OOM killer killed %d processes of container %s (%v)", n, old.name, err)
		}
	}
}

func inMiB(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// percentile returns a percentile of a sorted, non-empty list.
func percentile[T any](sorted []T, percent int) T {
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}
