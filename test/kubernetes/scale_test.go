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

const podsAtOnce = 30

// claimsAtOnce is how many claims TestScale makes.
func claimsAtOnce() int { return slices.Max(soak.Pick(1, []int{100, 500})) }

// Very many claims at once are all bound and all deleted again without a word of
// complaint, and so are pods with a volume each; no container of the release
// needs more memory than it may have. The figures are in the output.
func TestScale(t *testing.T) {
	s := newSpace(t)
	before := s.poolFiles()
	began := metav1.Now()
	u := watchUsage(t, "local", "idle")
	s.idle(5 * time.Second)

	u.phase("claims")
	claims := claimsAtOnce()
	s.createClaims(claims, volumeOfNode)
	if got := len(s.poolFiles()) - len(before); got != claims {
		t.Errorf("the pool has %d more volumes, want %d", got, claims)
	}
	u.phase("deletion")
	s.deleteClaims(claims)
	if left := s.poolFiles(); len(left) != len(before) {
		t.Errorf("the pool holds %d volumes after the deletion, %d before the test", len(left), len(before))
	}
	u.phase("pods")
	s.manyPods(podsAtOnce)
	u.end()
	s.checkNoComplaints("local", began)
}

// idle waits, for what goes on when nothing is asked for to be seen.
func (s *space) idle(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.Context().Done():
	}
}

// poolFiles are the volumes in the pool of release local.
func (s *space) poolFiles() []os.DirEntry {
	s.Helper()
	files := testkit.Value(os.ReadDir(filepath.Join("/var/lib/cleat/csi.cleat.dev/storage/pool", "volumes")))(s)
	return files
}

// volumeOfNode makes a claim one that the scheduler has chosen the node for. It
// chooses for pods alone, of which a node takes fewer.
func volumeOfNode(p *corev1.PersistentVolumeClaim) {
	p.Annotations = map[string]string{"volume.kubernetes.io/selected-node": testCluster.Node}
}

// createClaims makes claims, half of them for raw blocks and half for an ext4,
// waits until all are bound, and says how long that took.
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

// follow has a handler called with all objects of a kind, in the space where
// they have one, until the test ends.
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
		s.Fatalf("nobody follows objects as %T", kind)
	}
	testkit.Value(informer.AddEventHandler(handler))(s)
	ctx, cancel := context.WithCancel(s.Context())
	s.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		s.Fatalf("objects as %T are not listed", kind)
	}
}

// timestamps are when something was first seen of each of so many objects.
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

// makeClaims makes claims at once and returns when each was asked for.
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

// checkVolumes compares the volumes with what was asked for.
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

// deleteClaims deletes all claims at once and waits until their volumes have gone.
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

// manyPods starts pods with a claim each, at once, and ends them.
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
	s.Logf("%d pods with a volume have ended after %.1f s, %.1f a second", n, took.Seconds(), float64(n)/took.Seconds())
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// rate prints how long something took in all, and each of it.
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

// calls are what the driver's own metrics say of its calls, by their series.
type calls map[string]float64

var rpcSeries = regexp.MustCompile(`^(cleat_rpc_duration_seconds_(?:sum|count)\{[^}]*method="(?:[^"]*/)?([A-Za-z]+)"[^}]*\}) (\S+)$`)

// driverCalls reads the metrics of release local's driver.
func (s *space) driverCalls() calls {
	s.Helper()
	pods, err := testCluster.Client.CoreV1().Pods(system).List(s.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=local"})
	if err != nil || len(pods.Items) != 1 {
		s.Fatalf("%d pods of release local (%v), want one", len(pods.Items), err)
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

// since tells of the calls of a method since an earlier reading.
func (c calls) since(before calls, method string) string {
	n := c["count "+method] - before["count "+method]
	if n == 0 {
		return "was not called"
	}
	return fmt.Sprintf("took %.1f ms in the mean of %.0f calls", 1000*(c["sum "+method]-before["sum "+method])/n, n)
}

// complaint is a line in which a sidecar (klog) or the driver tells of an error.
var complaint = regexp.MustCompile(`^E\d{4} |"level":"(ERROR|WARN)"`)

// repeated are complaints that are a sidecar's way to work. It acts on what it
// last read, hears that this is old, and looks again: a volume that it has
// deleted already, an object that it has itself just written. So does the
// kubelet, which asks for the figures of volumes that it has just unmounted.
var repeated = regexp.MustCompile(`error syncing volume .* persistentvolumes .* not found"|Operation cannot be fulfilled on .*: the object has been modified; please apply your changes to the latest version and try again|"method":"/csi.v1.Node/NodeGetVolumeStats","code":"NotFound"`)

// early is the kubelet's warning when it hears of a pod a moment before the API
// server's node authorizer knows what the pod's node may read, or when a first
// read takes longer than the second that it waits for one. It asks again.
var early = regexp.MustCompile(`is forbidden: User "system:node:.*": no relationship found between node '.*' and this object|failed to sync (configmap|secret) cache: timed out waiting for the condition`)

// checkNoComplaints fails the test for each warning about the claims and their
// volumes, and each error that a container of the release has logged.
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
	s.Logf("the sidecars looked again %d times because what they had read was old", again)
}
