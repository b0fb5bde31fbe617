package placement

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleatproject/cleat/internal/kubeobject"
	"github.com/cleatproject/cleat/test/testkit"
)

const driver = "csi.cleat.dev"

// cluster is client-go's API double, with versions: it has none of its own.
type cluster struct {
	*testing.T
	client *fake.FakeDynamicClient
	mu     sync.Mutex
	last   int
}

var eventResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}

func newCluster(t *testing.T) *cluster {
	kinds := map[schema.GroupVersionResource]string{
		claimResource: "PersistentVolumeClaimList", podResource: "PodList", volumeResource: "PersistentVolumeList", nodeResource: "NodeList",
		eventResource: "EventList", classResource: "StorageClassList", snapshotResource: "VolumeSnapshotList", contentResource: "VolumeSnapshotContentList",
	}
	c := &cluster{T: t, client: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)}
	c.client.PrependReactor("patch", "persistentvolumeclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p, _ := a.(clienttesting.PatchAction)
		var body struct{ Metadata metav1.ObjectMeta }
		testkit.Must(t, json.Unmarshal(p.GetPatch(), &body))
		if now := c.claim(p.GetName()); body.Metadata.ResourceVersion != now.ResourceVersion {
			return true, nil, apierrors.NewConflict(claimResource.GroupResource(), p.GetName(), errors.New("other version"))
		}
		c.choose(p.GetName(), body.Metadata.Annotations[selectedNode])
		return true, c.object(c.claim(p.GetName()), "v1", "PersistentVolumeClaim"), nil
	})
	immediate, waits := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	c.put(classResource, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: driver, VolumeBindingMode: &waits}, "storage.k8s.io/v1", "StorageClass")
	c.put(classResource, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "immediate"}, Provisioner: driver, VolumeBindingMode: &immediate}, "storage.k8s.io/v1", "StorageClass")
	c.put(classResource, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Provisioner: "other", VolumeBindingMode: &waits}, "storage.k8s.io/v1", "StorageClass")
	c.put(nodeResource, testNode(), "v1", "Node")
	c.put(snapshotResource, &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "s", "namespace": "apps"}, "status": map[string]any{"boundVolumeSnapshotContentName": "content"}}}, snapshotGroup+"/v1", "VolumeSnapshot")
	c.put(contentResource, &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "content", "labels": map[string]any{managedBy: "a"}}, "spec": map[string]any{"driver": driver}}}, snapshotGroup+"/v1", "VolumeSnapshotContent")
	return c
}

func (c *cluster) object(o runtime.Object, version, kind string) *unstructured.Unstructured {
	u, is := o.(*unstructured.Unstructured)
	if !is {
		u = &unstructured.Unstructured{Object: testkit.Value(runtime.DefaultUnstructuredConverter.ToUnstructured(o))(c)}
	}
	u.SetAPIVersion(version)
	u.SetKind(kind)
	return u
}

// put creates or replaces an object, with a new version.
func (c *cluster) put(of schema.GroupVersionResource, o runtime.Object, version, kind string) {
	c.Helper()
	c.mu.Lock()
	c.last++
	n := c.last
	c.mu.Unlock()
	u := c.object(o, version, kind)
	u.SetResourceVersion(strconv.Itoa(n))
	err := c.client.Tracker().Add(u)
	if err == nil {
		return
	}
	testkit.Must(c, c.client.Tracker().Update(of, u, u.GetNamespace()))
}

func (c *cluster) claim(name string) *corev1.PersistentVolumeClaim {
	u := testkit.Value(c.client.Tracker().Get(claimResource, "apps", name))(c)
	return testkit.Value(kubeobject.Convert[corev1.PersistentVolumeClaim](u.(*unstructured.Unstructured)))(c) //nolint:forcetypeassert // the double's type
}

func (c *cluster) putClaim(p *corev1.PersistentVolumeClaim) {
	c.put(claimResource, p, "v1", "PersistentVolumeClaim")
}

// choose is what the scheduler does, and with "" what a provisioner does that
// rejects the claim.
func (c *cluster) choose(name, node string) {
	p := c.claim(name)
	p.Annotations = map[string]string{selectedNode: node}
	if node == "" {
		p.Annotations = nil
	}
	c.putClaim(p)
}

func (c *cluster) selected(name string) string {
	synctest.Wait()
	return c.claim(name).Annotations[selectedNode]
}

func (c *cluster) events(reason string) (texts []string) {
	list := testkit.Value(c.client.Resource(eventResource).Namespace("apps").List(c.Context(), metav1.ListOptions{}))(c)
	for _, e := range list.Items {
		if r, _, _ := unstructured.NestedString(e.Object, "reason"); r == reason {
			text, _, _ := unstructured.NestedString(e.Object, "message")
			texts = append(texts, text)
		}
	}
	return texts
}

func restored(name, class string) *corev1.PersistentVolumeClaim {
	group := snapshotGroup
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "apps", UID: "uid"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, DataSource: &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}}}
}

func (c *cluster) putPod(name string, claims ...string) {
	p := testPod(name)
	for _, claim := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	c.put(podResource, p, "v1", "Pod")
}

func (c *cluster) start() {
	p := testkit.Value(New(Config{Client: c.client, Driver: driver, Logger: testkit.NewLog(c).Logger()}))(c)
	ctx, cancel := context.WithCancel(c.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	time.Sleep(time.Second) // of the bubble: client-go polls whether the caches are filled
	synctest.Wait()
	testkit.Must(c, p.Check(ctx))
	c.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			c.Errorf("Run: %v", err)
		}
	})
}

func bubble(t *testing.T, test func(c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newCluster(t)) })
}

// The issue's own case: the scheduler is first and selects the wrong node.
func TestClaimIsNamedAfterTheWrongNodeRejectedIt(t *testing.T) {
	bubble(t, func(c *cluster) {
		c.start()
		c.putClaim(restored("data", "local"))
		if got := c.selected("data"); got != "" {
			t.Fatalf("without a pod the claim is for %q", got)
		}
		c.choose("data", "b")
		c.putPod("p", "data")
		if got := c.selected("data"); got != "b" {
			t.Fatalf("the scheduler's choice was replaced by %q", got)
		}
		c.choose("data", "")
		if got := c.selected("data"); got != "a" {
			t.Errorf("the claim is for %q", got)
		}
		if got := c.events(eventNamed); !slices.Equal(got, []string{"snapshot s is on node a, so the volume is created there"}) {
			t.Errorf("events: %q", got)
		}
	})
}

func TestClaimIsNamedWhenItsPodWaits(t *testing.T) {
	bubble(t, func(c *cluster) {
		clone := restored("clone", "local")
		clone.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "bound"}
		bound := restored("bound", "local")
		bound.Spec.VolumeName = "pv"
		c.putClaim(bound)
		c.put(volumeResource, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver}},
			NodeAffinity:           &corev1.VolumeNodeAffinity{Required: inPool("a")}}}, "v1", "PersistentVolume")
		foreign, now, plain := restored("foreign", "other"), restored("now", "immediate"), restored("plain", "local")
		plain.Spec.DataSource = nil
		claims := []*corev1.PersistentVolumeClaim{clone, foreign, now, plain}
		for _, p := range claims {
			c.putClaim(p)
			c.putPod("uses-"+p.Name, p.Name)
		}
		gated := testPod("gated", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "later"}}
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		})
		c.putClaim(restored("gated-data", "local"))
		c.put(podResource, gated, "v1", "Pod")
		c.start()
		for name, want := range map[string]string{"clone": "a", "foreign": "", "now": "", "plain": "", "bound": "", "gated-data": ""} {
			if got := c.selected(name); got != want {
				t.Errorf("claim %s is for %q, want %q", name, got, want)
			}
		}
		gated.Spec.SchedulingGates = nil
		c.put(podResource, gated, "v1", "Pod")
		if got := c.selected("gated-data"); got != "a" {
			t.Errorf("the claim of the generic ephemeral volume is for %q", got)
		}
	})
}

// A full pool: the node rejects the claim each time.
func TestRejectionsAreRetriedWithBackoff(t *testing.T) {
	bubble(t, func(c *cluster) {
		c.start()
		c.putClaim(restored("data", "local"))
		c.putPod("p", "data")
		for attempt, earliest := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			if got := c.selected("data"); got != "a" {
				t.Fatalf("attempt %d: the claim is for %q", attempt, got)
			}
			began := time.Now()
			c.choose("data", "")
			for c.selected("data") == "" {
				c.putPod("p", "data") // as the scheduler's attempts do
				if time.Sleep(500 * time.Millisecond); time.Since(began) > time.Minute {
					t.Fatal("not named again within a minute")
				}
			}
			if took := time.Since(began); took < earliest*time.Second || took > (earliest+1)*time.Second {
				t.Errorf("attempt %d: named again after %s, want %ds", attempt, took, earliest)
			}
		}
		if got := c.events(eventRejected); len(got) == 0 || !strings.Contains(got[0], "node a, which has snapshot s, did not create the volume") {
			t.Errorf("events: %q", got)
		}
	})
}

func TestBlockedClaimsAreReportedAndWait(t *testing.T) {
	bubble(t, func(c *cluster) {
		c.put(nodeResource, testNode(tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), "v1", "Node")
		c.start()
		c.putClaim(restored("data", "local"))
		c.putPod("p", "data")
		if got := c.selected("data"); got != "" {
			t.Fatalf("the claim is for %q", got)
		}
		if got := c.events(eventBlocked); len(got) != 1 || !strings.HasSuffix(got[0], "snapshot s is on node a, which is cordoned") {
			t.Fatalf("events: %q", got)
		}
		c.put(nodeResource, testNode(), "v1", "Node")
		time.Sleep(maxBackoff)
		if got := c.selected("data"); got != "a" {
			t.Errorf("the claim is for %q", got)
		}
	})
}

// A write of the scheduler between our read and ours wins.
func TestOtherWritersWin(t *testing.T) {
	bubble(t, func(c *cluster) {
		first := true
		c.client.PrependReactor("patch", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			if first {
				first = false
				c.choose("data", "b")
			}
			return false, nil, nil
		})
		c.start()
		c.putClaim(restored("data", "local"))
		c.putPod("p", "data")
		if got := c.selected("data"); got != "b" {
			t.Fatalf("the claim is for %q", got)
		}
		c.choose("data", "")
		if got := c.selected("data"); got != "a" {
			t.Errorf("the claim is for %q", got)
		}
	})
}
