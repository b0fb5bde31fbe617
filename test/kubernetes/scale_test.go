package kubernetes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// atOnce returns the number of claims and of pods in TestScale.
func atOnce() (claims, pods int) {
	return slices.Max(soak.Pick(1, []int{50, 500})), slices.Max(soak.Pick(1, []int{15, 30}))
}

// TestScale creates and deletes many claims at once, then pods with a volume
// each, without warnings or errors and within the memory limits of the
// release's containers. The output has the durations.
func TestScale(t *testing.T) {
	s := newSpace(t)
	before := s.poolFiles()
	began := metav1.Now()
	u := watchUsage(t, "local", "idle")
	s.idle(5 * time.Second)

	u.phase("claims")
	claims, pods := atOnce()
	s.createClaims(claims, volumeOfNode)
	if got := len(s.poolFiles()) - len(before); got != claims {
		t.Errorf("the pool has %d more volumes, want %d", got, claims)
	}
	u.phase("deletion")
	s.deleteClaims(claims)
	if left := s.poolFiles(); len(left) != len(before) {
		t.Errorf("the pool has %d volumes after the deletion, %d before the test", len(left), len(before))
	}
	u.phase("pods")
	s.manyPods(pods)
	u.end()
	s.checkNoComplaints("local", began)
}

// idle waits, to measure the usage without requests.
func (s *space) idle(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.Context().Done():
	}
}

// poolFiles returns the volumes in the pool of release local.
func (s *space) poolFiles() []os.DirEntry {
	s.Helper()
	files := testkit.Value(os.ReadDir(filepath.Join("/var/lib/cleat/csi.cleat.dev/storage/pool", "volumes")))(s)
	return files
}

// volumeOfNode sets the selected node of a claim. The scheduler does so only
// for pods, of which a node accepts fewer.
func volumeOfNode(p *corev1.PersistentVolumeClaim) {
	p.Annotations = map[string]string{"volume.kubernetes.io/selected-node": testCluster.Node}
}

// createClaims creates claims, half block and half ext4, waits until all are
// bound, and logs the duration.
func (s *space) createClaims(n int, change func(*corev1.PersistentVolumeClaim)) {
	s.Helper()
	bound := newTimestamps(n)
	s.follow(&corev1.PersistentVolumeClaim{}, cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
		if p := o.(*corev1.PersistentVolumeClaim); p.Status.Phase == corev1.ClaimBound {
			bound.saw(p.Name)
		}
	}})
	calls := s.driverCalls()
	began := time.Now()
	asked := s.makeClaims(n, change)
	made := time.Since(began)
	times := bound.all(s, "claims are bound")
	s.rate("claims are bound", began, times, func(name string) time.Time { return asked[name] })
	s.Logf("  the API server took the claims in %.1f s; CreateVolume %s", made.Seconds(), s.driverCalls().since(calls, "CreateVolume"))
	s.checkVolumes(n)
}

// follow calls a handler with all objects of a kind, in the namespace if they
// have one, until the end of the test.
func (s *space) follow(kind runtime.Object, handler cache.ResourceEventHandlerFuncs) {
	s.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(testCluster.Client, 0, informers.WithNamespace(s.name))
	var informer cache.SharedIndexInformer
	switch kind.(type) {
	case *corev1.PersistentVolumeClaim:
		informer = factory.Core().V1().PersistentVolumeClaims().Informer()
	case *corev1.PersistentVolume:
		informer = factory.Core().V1().PersistentVolumes().Informer()
	default:
		s.Fatalf("no informer for %T", kind)
	}
	testkit.Value(informer.AddEventHandler(handler))(s)
	ctx, cancel := context.WithCancel(s.Context())
	s.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		s.Fatalf("%T are not listed", kind)
	}
}

// timestamps are the times at which each of the objects was first seen.
type timestamps struct {
	lock sync.Mutex
	want int
	at   map[string]time.Time
	done chan struct{}
}

func newTimestamps(want int) *timestamps {
	return &timestamps{want: want, at: map[string]time.Time{}, done: make(chan struct{})}
}

func (m *timestamps) saw(name string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if _, seen := m.at[name]; !seen {
		m.at[name] = time.Now()
		if len(m.at) == m.want {
			close(m.done)
		}
	}
}

// all waits for every object.
func (m *timestamps) all(s *space, what string) map[string]time.Time {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 2*waitTimeout)
	defer cancel()
	select {
	case <-m.done:
	case <-ctx.Done():
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if len(m.at) < m.want {
		s.Fatalf("%d of %d %s after %s", len(m.at), m.want, what, 2*waitTimeout)
	}
	return maps.Clone(m.at)
}

// makeClaims creates claims concurrently and returns the time of each request.
func (s *space) makeClaims(n int, change func(*corev1.PersistentVolumeClaim)) map[string]time.Time {
	s.Helper()
	var group sync.WaitGroup
	var lock sync.Mutex
	var failed []error
	asked := map[string]time.Time{}
	turn := make(chan struct{}, 32)
	for i := range n {
		turn <- struct{}{}
		group.Go(func() {
			defer func() { <-turn }()
			p := scaleClaim(i)
			change(p)
			at := time.Now()
			_, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Create(s.Context(), p, metav1.CreateOptions{})
			lock.Lock()
			defer lock.Unlock()
			asked[p.Name], failed = at, append(failed, err)
		})
	}
	group.Wait()
	testkit.Must(s, errors.Join(failed...))
	return asked
}

func scaleClaim(i int) *corev1.PersistentVolumeClaim {
	class, mode, size := "local-ext4", corev1.PersistentVolumeFilesystem, "16Mi"
	if i%2 == 0 {
		mode, size = corev1.PersistentVolumeBlock, "64Mi"
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%03d", i)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeMode: &mode, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
}

// checkVolumes compares the volumes with the claims.
func (s *space) checkVolumes(n int) {
	s.Helper()
	all := testkit.Value(testCluster.Client.CoreV1().PersistentVolumes().List(s.Context(), metav1.ListOptions{}))(s)
	handles := map[string]bool{}
	for _, v := range all.Items {
		if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Namespace != s.name {
			continue
		}
		handles[v.Spec.CSI.VolumeHandle] = true
		i := testkit.Value(strconv.Atoi(strings.TrimPrefix(v.Spec.ClaimRef.Name, "claim-")))(s)
		want := scaleClaim(i).Spec
		got, size := v.Spec.Capacity[corev1.ResourceStorage], want.Resources.Requests[corev1.ResourceStorage]
		if got.Cmp(size) != 0 || *v.Spec.VolumeMode != *want.VolumeMode {
			s.Errorf("volume %s of %s has %s and is a %s, want %s and %s", v.Name, v.Spec.ClaimRef.Name, got.String(), *v.Spec.VolumeMode, size.String(), *want.VolumeMode)
		}
	}
	if len(handles) != n {
		s.Errorf("the claims have %d volumes, want %d", len(handles), n)
	}
}

// deleteClaims deletes all claims at once and waits until their volumes are
// gone.
func (s *space) deleteClaims(n int) {
	s.Helper()
	gone := newTimestamps(n)
	s.follow(&corev1.PersistentVolume{}, cache.ResourceEventHandlerFuncs{DeleteFunc: func(o any) {
		if last, missed := o.(cache.DeletedFinalStateUnknown); missed {
			o = last.Obj
		}
		if v := o.(*corev1.PersistentVolume); v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == s.name {
			gone.saw(v.Name)
		}
	}})
	calls := s.driverCalls()
	began := time.Now()
	testkit.Must(s, testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).DeleteCollection(s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	times := gone.all(s, "volumes are deleted")
	s.rate("volumes are deleted", began, times, func(string) time.Time { return began })
	s.Logf("  DeleteVolume %s", s.driverCalls().since(calls, "DeleteVolume"))
}

// manyPods starts and deletes pods with a claim each, all at once.
func (s *space) manyPods(n int) {
	s.Helper()
	began := time.Now()
	asked := map[string]time.Time{}
	for i := range n {
		name := fmt.Sprintf("pod-%02d", i)
		asked[name] = time.Now()
		s.claim(name, claim{class: "local-ext4", size: "16Mi"})
		s.start(name, pod{mounts: map[string]string{"/data": name}, command: "echo $HOSTNAME >/data/name && sync && exec sleep 3600"})
	}
	ready := newTimestamps(n)
	s.until("all pods", func(ctx context.Context) error {
		pods, err := testCluster.Client.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if isReady(&p) {
				ready.saw(p.Name)
			}
		}
		if len(ready.at) < n {
			return fmt.Errorf("%d of %d are ready", len(ready.at), n)
		}
		return nil
	})
	s.rate("pods with a volume are ready", began, ready.at, func(name string) time.Time { return asked[name] })
	began = time.Now()
	s.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait")
	took := time.Since(began)
	s.Logf("%d pods with a volume deleted after %.1f s, %.1f a second", n, took.Seconds(), float64(n)/took.Seconds())
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// rate logs the total duration and percentiles of single durations.
func (s *space) rate(what string, began time.Time, times map[string]time.Time, from func(string) time.Time) {
	s.Helper()
	var each []time.Duration
	last := began
	for name, at := range times {
		each = append(each, at.Sub(from(name)))
		if at.After(last) {
			last = at
		}
	}
	slices.Sort(each)
	took := last.Sub(began).Seconds()
	s.Logf("%d %s after %.1f s, %.1f a second; each after %.1f s (p50), %.1f s (p99), %.1f s (the longest)", len(each), what, took,
		float64(len(each))/took, percentile(each, 50).Seconds(), percentile(each, 99).Seconds(), each[len(each)-1].Seconds())
}

// calls are the driver's call metrics, by series.
type calls map[string]float64

var rpcSeries = regexp.MustCompile(`^(cleat_rpc_duration_seconds_(?:sum|count)\{[^}]*method="(?:[^"]*/)?([A-Za-z]+)"[^}]*\}) (\S+)$`)

// driverCalls reads the metrics of release local's driver.
func (s *space) driverCalls() calls {
	s.Helper()
	pods, err := testCluster.Client.CoreV1().Pods(system).List(s.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=local" + notPlacement})
	if err != nil || len(pods.Items) != 1 {
		s.Fatalf("got %d pods of release local (%v), want one", len(pods.Items), err)
	}
	request := testkit.Value(http.NewRequestWithContext(s.Context(), http.MethodGet, "http://"+pods.Items[0].Status.PodIP+":29801/metrics", nil))(s)
	answer := testkit.Value(http.DefaultClient.Do(request))(s)
	defer answer.Body.Close()
	all := calls{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if m := rpcSeries.FindStringSubmatch(lines.Text()); m != nil {
			kind := "count "
			if strings.HasPrefix(m[1], "cleat_rpc_duration_seconds_sum") {
				kind = "sum "
			}
			all[kind+m[2]] = testkit.Value(strconv.ParseFloat(m[3], 64))(s)
		}
	}
	testkit.Must(s, lines.Err())
	return all
}

// since formats the calls of a method since an earlier reading.
func (c calls) since(before calls, method string) string {
	n := c["count "+method] - before["count "+method]
	if n == 0 {
		return "was not called"
	}
	return fmt.Sprintf("took %.1f ms in the mean of %.0f calls", 1000*(c["sum "+method]-before["sum "+method])/n, n)
}

// complaint matches an error line in the log of a sidecar (klog) or the driver.
var complaint = regexp.MustCompile(`^E\d{4} |"level":"(ERROR|WARN)"`)

// repeated matches errors of normal retries: a sidecar acts on a stale cache
// and retries, for a volume that it has already deleted or an object that it
// has just written, or finds a claim in its queue that is deleted meanwhile. The
// kubelet requests statistics of volumes that it has just unmounted. The API server
// answers the renewal of a Lease late; a sidecar that loses its Lease ends.
var repeated = regexp.MustCompile(`error syncing volume .* persistentvolumes .* not found"|Error syncing PVC" err="PV .* bound to pvc .* not found"|Operation cannot be fulfilled on .*: the object has been modified; please apply your changes to the latest version and try again|"method":"/csi.v1.Node/NodeGetVolumeStats","code":"NotFound"|in work queue no longer exists"|leaderelection\.go:\d+\] "(Error retrieving lease lock|Failed to update l)`)

// early matches the kubelet's warning about a pod that the API server's node
// authorizer does not know yet, or a first read that takes longer than its
// timeout of one second. The kubelet retries.
var early = regexp.MustCompile(`is forbidden: User "system:node:.*": (node: )?no relationship found between node '.*' and this object|failed to sync (configmap|secret) cache: timed out waiting for the condition`)

// checkNoComplaints fails for each warning event of the claims and their
// volumes, and each error in the logs of the release's containers.
func (s *space) checkNoComplaints(release string, since metav1.Time) {
	s.Helper()
	for _, namespace := range []string{s.name, metav1.NamespaceDefault} { // events of volumes are in default
		events := testkit.Value(testCluster.Client.CoreV1().Events(namespace).List(s.Context(), metav1.ListOptions{FieldSelector: "type=Warning"}))(s)
		for _, e := range events.Items {
			if !e.LastTimestamp.Before(&since) && e.InvolvedObject.Kind != "Node" && e.Reason != "MissingClusterDNS" && !early.MatchString(e.Message) {
				s.Errorf("%s %s: %s: %s (%d times)", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message, e.Count)
			}
		}
	}
	again := 0
	running := testkit.Value(containersOf(s.Context(), release))(s)
	for _, c := range running {
		log := testkit.Value(testCluster.Client.CoreV1().Pods(system).GetLogs(c.pod, &corev1.PodLogOptions{Container: c.name, SinceTime: &since}).DoRaw(s.Context()))(s)
		for line := range strings.Lines(string(log)) {
			switch {
			case !complaint.MatchString(line):
			case repeated.MatchString(line):
				again++
			default:
				s.Errorf("%s: %s", c.name, strings.TrimSpace(line))
			}
		}
	}
	s.Logf("the sidecars retried %d times because of stale caches", again)
}
