package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

// card is a network card made of files, with a release of the chart that offers
// its functions. Its network device is real (a dummy or bridge), and so are the
// device nodes of its functions (the null device).
type card struct {
	*space
	release  string
	resource string
	dir      string // visible to the release's pods at the same path
	pf       sysfstest.Function
	tree     *sysfstest.Tree
	kubelet  *podresources.Client
	ports    [2]int // /status of plugin and daemon
	mtu      string // desired MTU

	mu      sync.Mutex
	changes []numVFs
}

// numVFs is a write to sriov_numvfs, with the number of functions offered at
// that time.
type numVFs struct{ Number, Offered int }

// look is the polling interval of the kubelet's device lists; its limit for all
// clients is 100 calls a second.
const look = 40 * time.Millisecond

// functionGroups is the first IOMMU group of virtual functions.
const functionGroups = 16

// newCard creates a card with this number of virtual functions.
func newCard(s *space, name string, port, functions int) *card {
	s.Helper()
	c := &card{
		space: s, release: "fn-" + name, resource: "example.com/" + name, dir: "/var/lib/cleat/fn-" + name, ports: [2]int{port, port + 1},
		pf: sysfstest.Function{
			Address: "0000:3b:00.0", Vendor: "8086", Device: "1592", Driver: "ice", Netdev: "fn" + name, NUMA: -1, IOMMUGroup: "10",
			TotalVFs: 8, VFDevice: "1889", VFDriver: "vfio-pci",
		},
		kubelet: podresources.New("/var/lib/kubelet/pod-resources/kubelet.sock"),
	}
	s.Cleanup(func() { _ = c.kubelet.Close() })
	s.Cleanup(func() { // for the next test with this name
		if err := os.RemoveAll(c.dir); err != nil {
			s.Error(err)
		}
	})
	testkit.Must(s, os.MkdirAll(c.dir, 0o755))
	c.tree = sysfstest.At(c.dir, s.T)
	c.tree.Add(c.pf)
	testkit.Must(s, c.tree.Write(c.numVFs(), strconv.Itoa(functions)))
	makeFunctionNodes(s.T)
	// Some kernels lack dummies; those that run pods have bridges.
	for _, args := range [][]string{{"add", c.pf.Netdev, "type", "bridge"}, {"set", c.pf.Netdev, "up"}} {
		if out, err := exec.Command("ip", append([]string{"link"}, args...)...).CombinedOutput(); err != nil {
			s.Fatalf("create a network device: %v: %s", err, out)
		}
	}
	s.Cleanup(func() {
		if out, err := exec.Command("ip", "link", "del", c.pf.Netdev).CombinedOutput(); err != nil {
			s.Errorf("remove a network device: %v: %s", err, out)
		}
	})
	c.watchNumVFs()
	return c
}

func makeFunctionNodes(t *testing.T) {
	t.Helper()
	names := []string{"vfio"}
	for i := range functionGroups {
		names = append(names, strconv.Itoa(1000+i))
	}
	for _, name := range names {
		err := unix.Mknod(filepath.Join("/dev/vfio", name), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			t.Fatal(err)
		}
	}
}

func (c *card) numVFs() string {
	return filepath.Join(c.tree.Sysfs, sysfstest.Device(c.pf.Address), "sriov_numvfs")
}

// watchNumVFs simulates the kernel: it handles writes to sriov_numvfs.
func (c *card) watchNumVFs() {
	w, err := inotify.New()
	if err == nil {
		_, err = w.Add(c.numVFs(), unix.IN_CLOSE_WRITE)
	}
	testkit.Must(c, err)
	ended := make(chan struct{})
	c.Cleanup(func() {
		_ = w.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		var events []inotify.Event
		for {
			var err error
			if events, err = w.Read(context.Background(), time.Time{}, events[:0]); err != nil {
				return // closed
			}
			if err := c.applyNumVFs(); err != nil {
				c.Error(err)
			}
		}
	}()
}

func (c *card) applyNumVFs() error {
	text, err := os.ReadFile(c.numVFs())
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n == len(c.tree.Virtual(c.pf.Address)) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	var offered []string // the kubelet's answer can be late
	if err := poll(ctx, func(ctx context.Context) (err error) {
		offered, err = c.offeredNow(ctx)
		return err
	}); err != nil {
		return err
	}
	c.mu.Lock()
	c.changes = append(c.changes, numVFs{n, len(offered)})
	c.mu.Unlock()
	return c.tree.Write(c.numVFs(), strconv.Itoa(n))
}

// numVFsWrites returns all writes to sriov_numvfs so far.
func (c *card) numVFsWrites() []numVFs {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.changes)
}

// values returns the values of a release with a plugin, and with a daemon
// unless mode is empty.
func (c *card) values(controlDir, mode string) string {
	return fmt.Sprintf(`
csi: {enabled: false}
sriov:
  controlDir: %[1]s
  plugin:
    enabled: true
    controlled: %[2]t
    resourcePrefix: example.com
    config: {resourceList: [{resourceName: %[3]s, selectors: [{rootDevices: [%[4]q], drivers: [vfio-pci]}]}]}
    stateDir: %[5]s/plugin
    metricsPort: %[6]d
    extraArgs: [--sysfs-root=%[5]s/sys, --rescan-interval=1s]
    extraVolumes: [{name: card, hostPath: {path: %[5]s/sys, type: Directory}}]
    extraVolumeMounts: [{name: card, mountPath: %[5]s/sys}]
  daemon:
    enabled: %[2]t
    mode: %[7]s
    namespace: %[8]s
    stateDir: %[5]s/daemon
    metricsPort: %[9]d
    extraArgs: [--sysfs-root=%[5]s/sys]
    extraVolumes: [{name: card, hostPath: {path: %[5]s/sys, type: Directory}}]
    extraVolumeMounts: [{name: card, mountPath: %[5]s/sys}]
`, controlDir, mode != "", strings.TrimPrefix(c.resource, "example.com/"), c.pf.Address, c.dir, c.ports[0], orElse(mode, "follow"), c.name, c.ports[1])
}

func orElse(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// install installs a release until the end of the test.
func (s *space) install(r release, args ...string) {
	s.Helper()
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if s.Failed() {
			s.Log(describePods(ctx, testCluster, system))
		}
		if err := r.uninstall(ctx, testCluster); err != nil {
			s.Error(err)
		}
	})
	testkit.Must(s, r.install(s.Context(), testCluster, args...))
}

// wanting returns a pod that requests functions of the card.
func (c *card) wanting(count int64) pod {
	return pod{change: func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(c.resource): *resource.NewQuantity(count, resource.DecimalSI)}
	}}
}

// functions returns the functions of a pod, from its environment.
func (c *card) functions(name string) []string {
	c.Helper()
	variable := strings.ToUpper(strings.ReplaceAll("PCIDEVICE_"+strings.ReplaceAll(c.resource, "/", "_"), ".", "_"))
	return strings.Split(c.exec(name, "printf %s \"$"+variable+"\""), ",")
}

// offeredNow returns the functions that the kubelet offers, including allocated
// ones.
func (c *card) offeredNow(ctx context.Context) ([]string, error) {
	all, err := c.kubelet.Offered(ctx)
	return all[c.resource], err
}

// holders returns pods of the test by function, from the kubelet.
func (c *card) holders() map[string]string {
	c.Helper()
	var held []podresources.Holder
	c.until("the kubelet's answer which pods have devices", func(ctx context.Context) (err error) {
		held, err = c.kubelet.Held(ctx)
		return err
	})
	all := map[string]string{}
	for _, h := range held {
		if h.Resource == c.resource {
			if other, twice := all[h.ID]; twice {
				c.Errorf("function %s is allocated to both %s and %s", h.ID, other, h.Pod)
			}
			all[h.ID] = h.Pod
		}
	}
	return all
}

// offers waits until the kubelet offers this number of functions, and returns
// the duration.
func (c *card) offers(want int) time.Duration {
	c.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.Context(), waitTimeout)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		have, err := c.offeredNow(ctx)
		if err == nil && len(have) == want {
			return time.Since(began)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.Fatalf("the kubelet offers %q of %s, want %d: %v", have, c.resource, want, err)
		}
	}
}

// allocatable waits until the node has this number of allocatable functions,
// and returns the duration.
func (c *card) allocatable(want int64) time.Duration {
	c.Helper()
	began := time.Now()
	c.until(fmt.Sprintf("%d allocatable", want), func(ctx context.Context) error {
		_, have, err := c.node(ctx)
		if err == nil && have != want {
			err = fmt.Errorf("got %d of %s", have, c.resource)
		}
		return err
	})
	return time.Since(began)
}

func (c *card) node(ctx context.Context) (capacity, allocatable int64, err error) {
	n, err := testCluster.Client.CoreV1().Nodes().Get(ctx, testCluster.Node, metav1.GetOptions{})
	if err != nil {
		return 0, 0, err
	}
	a, b := n.Status.Capacity[corev1.ResourceName(c.resource)], n.Status.Allocatable[corev1.ResourceName(c.resource)]
	return a.Value(), b.Value(), nil
}

// unschedulable waits until the scheduler reports why a pod is not scheduled.
func (s *space) unschedulable(name, why string) {
	s.Helper()
	s.until("pod "+name+" to be Pending", func(ctx context.Context) error {
		p, err := testCluster.Client.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonUnschedulable && strings.Contains(cond.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("phase %s on node %q: %v", p.Status.Phase, p.Spec.NodeName, p.Status.Conditions)
	})
}

// undisturbed checks that a pod runs and was not restarted.
func (s *space) undisturbed(name string) {
	s.Helper()
	p := testkit.Value(testCluster.Client.CoreV1().Pods(s.name).Get(s.Context(), name, metav1.GetOptions{}))(s)
	if p.Status.Phase != corev1.PodRunning || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].State.Running == nil || p.Status.ContainerStatuses[0].RestartCount > 0 {
		s.Errorf("pod %s was disturbed: phase %s (%s %s), %+v", name, p.Status.Phase, p.Status.Reason, p.Status.Message, p.Status.ContainerStatuses)
	}
}

func (c *card) argument(port int) string { return fmt.Sprintf("--metrics-address=127.0.0.1:%d", port) }

// kill kills the plugin or the daemon, and returns the process id.
func (c *card) kill(port int) int {
	c.Helper()
	pid := c.processOf(c.argument(port), 0)
	testkit.Must(c, unix.Kill(pid, unix.SIGKILL))
	return pid
}

// daemonStatus returns the status of the release's daemon.
func (c *card) daemonStatus(ctx context.Context) (s daemon.Status, err error) {
	var document struct{ SRIOV json.RawMessage }
	if err := server.Ask(ctx, fmt.Sprintf("127.0.0.1:%d", c.ports[1]), "/status", &document); err != nil {
		return s, err
	}
	return s, json.Unmarshal(document.SRIOV, &s)
}

// phase waits until the daemon is in a phase, with this text in the reason.
func (c *card) phase(want daemon.Phase, reason string) {
	c.Helper()
	c.until("the daemon to be "+string(want), func(ctx context.Context) error {
		s, err := c.daemonStatus(ctx)
		if err == nil && (s.Phase != want || !strings.Contains(s.Reason, reason)) {
			err = fmt.Errorf("phase %s: %s, want %s: %s", s.Phase, s.Reason, want, reason)
		}
		return err
	})
}

// gaps measures how long kubelet and API server report fewer than want
// functions, until stop is called.
func (c *card) gaps(want int) (stop func() (kubelet, api time.Duration)) {
	ctx, cancel := context.WithCancel(c.Context())
	type result struct{ kubelet, api time.Duration }
	done := make(chan result)
	go func() {
		var r result
		for last := time.Now(); ctx.Err() == nil; {
			have, err := c.offeredNow(ctx)
			_, allocatable, failed := c.node(ctx)
			now := time.Now()
			if err == nil && len(have) < want {
				r.kubelet += now.Sub(last)
			}
			if failed == nil && allocatable < int64(want) {
				r.api += now.Sub(last)
			}
			last = now
			select {
			case <-ctx.Done():
			case <-time.After(look):
			}
		}
		done <- r
	}()
	return func() (time.Duration, time.Duration) {
		cancel()
		r := <-done
		return r.kubelet.Round(10 * time.Millisecond), r.api.Round(10 * time.Millisecond)
	}
}
