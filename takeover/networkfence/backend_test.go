package networkfence

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/test/testkit"
)

var (
	address = netip.MustParseAddr("192.0.2.7")
	second  = netip.MustParseAddr("2001:db8::7")
)

// backendOf returns a backend in a cluster with these objects.
func backendOf(t *testing.T, objects string) Backend {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{fenceResource: "NetworkFenceList", classResource: "NetworkFenceClassList", nodeResource: "CSIAddonsNodeList"}
	b := Backend{Client: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds), Name: "rook", Class: "rook"}
	for text := range strings.SplitSeq(objects, "\n---\n") {
		u := &unstructured.Unstructured{}
		testkit.Must(t, yaml.Unmarshal([]byte(text), &u.Object))
		u.SetAPIVersion(group + "/v1alpha1")
		resource := map[string]schema.GroupVersionResource{"NetworkFence": fenceResource, "NetworkFenceClass": classResource, "CSIAddonsNode": nodeResource}[u.GetKind()]
		testkit.Value(b.Client.Resource(resource).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{}))(t)
	}
	return b
}

const classes = `
{kind: NetworkFenceClass, metadata: {name: rook, uid: class}, spec: {provisioner: rbd}}
---
{kind: NetworkFenceClass, metadata: {name: other}, spec: {provisioner: nfs}}`

// What Fence creates is a proof when the driver has handled it, and no longer
// once anything of it was changed.
func TestProof(t *testing.T) {
	for name, c := range map[string]struct {
		change func(u *unstructured.Unstructured)
		held   bool
		want   string // of the error, or of FenceBlocked
	}{
		"handled":        {func(*unstructured.Unstructured) {}, true, ""},
		"no result":      {func(u *unstructured.Unstructured) { delete(u.Object, "status") }, false, "has no result"},
		"failed":         {func(u *unstructured.Unstructured) { set(u, "Failed", "status", "result") }, false, "Failed: done"},
		"changed before": {func(u *unstructured.Unstructured) { u.SetGeneration(3) }, false, ""},
		"other blocks":   {func(u *unstructured.Unstructured) { set(u, []any{"192.0.2.7/32"}, "spec", "cidrs") }, false, ""},
		"unfenced":       {func(u *unstructured.Unstructured) { u.SetGeneration(2); set(u, "Unfenced", "spec", "fenceState") }, false, ""},
		"other class": {func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{blocksAnnotation: u.GetAnnotations()[blocksAnnotation], classAnnotation: "another"})
		}, false, ""},
		"no label": {func(u *unstructured.Unstructured) { u.SetLabels(nil) }, false, "not its label"},
		"being deleted": {func(u *unstructured.Unstructured) {
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
			u.SetGeneration(2)
		}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := backendOf(t, classes)
			testkit.Must(t, b.Fence(t.Context(), "uid", []netip.Addr{address, second}))
			fences := b.Client.Resource(fenceResource)
			u := testkit.Value(fences.Get(t.Context(), b.prefix("uid")+"1", metav1.GetOptions{}))(t)
			testkit.Diff(t, "cidrs", []any{"192.0.2.7/32", "2001:db8::7/128"}, nested(u, "spec", "cidrs"))
			u.SetGeneration(1) // as the API server does
			u.Object["status"] = map[string]any{"result": "Succeeded", "message": "done"}
			c.change(u)
			testkit.Value(fences.Update(t.Context(), u, metav1.UpdateOptions{}))(t)
			f, err := b.ReadBack(t.Context(), "uid", []netip.Addr{address, second})
			text := f.FenceBlocked + f.Missing
			if err != nil || (len(f.Held) == 2) != c.held || !strings.Contains(text, c.want) || len(f.Recorded) != 2 || c.held && !strings.Contains(f.Evidence[0], "word of driver rbd") {
				t.Errorf("%+v, %v", f, err)
			}
			if other, _ := b.ReadBack(t.Context(), "other", []netip.Addr{address}); len(other.Recorded)+len(other.Held) > 0 {
				t.Errorf("another remediation: %+v", other)
			}
		})
	}
}

func nested(u *unstructured.Unstructured, path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return value
}

func set(u *unstructured.Unstructured, value any, path ...string) {
	_ = unstructured.SetNestedField(u.Object, value, path...)
}

// Objects of others matter if they are of the same driver, or could be.
func TestObjectsOfOthers(t *testing.T) {
	const unfenced = "\n---\n{kind: NetworkFence, metadata: {name: x}, spec: {fenceState: Unfenced, "
	for spec, want := range map[string]bool{
		"networkFenceClassName: rook, cidrs: [192.0.2.0/24]}}":              true,
		"networkFenceClassName: gone, cidrs: [192.0.2.7]}}":                 true,
		"networkFenceClassName: rook, cidrs: [everything]}}":                true,
		"driver: rbd, cidrs: [192.0.2.7/32]}}":                              true,
		"networkFenceClassName: other, cidrs: [192.0.2.7/32]}}":             false,
		"driver: nfs, cidrs: [192.0.2.7/32]}}":                              false,
		"networkFenceClassName: rook, cidrs: [192.0.2.8/32, \"::1/128\"]}}": false,
	} {
		b := backendOf(t, classes+unfenced+spec)
		f := testkit.Value(b.ReadBack(t.Context(), "uid", []netip.Addr{address}))(t)
		if (f.FenceBlocked != "") != want {
			t.Errorf("%s: %+v", spec, f)
		}
		if err := b.Fence(context.Background(), "uid", []netip.Addr{address}); (err != nil) != want {
			t.Errorf("%s: Fence: %v", spec, err)
		}
	}
}

func TestReportedClients(t *testing.T) {
	b := backendOf(t, classes+`
---
{kind: CSIAddonsNode, metadata: {name: a, namespace: ns}, spec: {driver: {name: rbd, nodeID: node-7}}, status: {networkFenceClientStatus: [{networkFenceClassName: rook, ClientDetails: [{id: c, cidrs: [192.0.2.7/32, "192.0.2.0/24", "192.0.2.7:0/32"]}]}]}}
---
{kind: CSIAddonsNode, metadata: {name: b, namespace: ns}, spec: {driver: {name: nfs, nodeID: node-8}}}`)
	all := testkit.Value(b.Clients(t.Context()))(t)
	if len(all) != 1 || all[0].Node != "node-7" || !all[0].Reported || len(all[0].Addresses) != 1 || len(all[0].Rejected) != 2 {
		t.Errorf("%+v", all)
	}
	b.Class = "missing"
	if _, err := b.Clients(t.Context()); err == nil || !strings.Contains(err.Error(), "NetworkFenceClass missing does not exist") {
		t.Errorf("without its class: %v", err)
	}
}

// handle is what CSI-Addons does: each object has a result. It returns what they were.
func handle(t *testing.T, b Backend) (states []string) {
	t.Helper()
	fences := b.Client.Resource(fenceResource)
	for _, u := range testkit.Value(fences.List(t.Context(), metav1.ListOptions{}))(t).Items {
		states = append(states, fmt.Sprint(u.GetName()[len(u.GetName())-1:], " ", nested(&u, "spec", "fenceState"), " ", nested(&u, "spec", "cidrs")))
		u.Object["status"] = map[string]any{"result": "Succeeded"}
		u.SetGeneration(1)
		if u.GetAnnotations()[voidAnnotation] != "" && u.GetDeletionTimestamp() != nil {
			u.SetGeneration(2)
		}
		testkit.Value(fences.Update(t.Context(), &u, metav1.UpdateOptions{}))(t)
	}
	return states
}

// deleting keeps objects with a finalizer, as the API server does.
func deleting(b Backend) {
	client := b.Client.(*fake.FakeDynamicClient)
	client.PrependReactor("delete", "networkfences", func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := a.(clienttesting.DeleteAction).GetName()
		o, err := client.Tracker().Get(fenceResource, "", name)
		u, _ := o.(*unstructured.Unstructured)
		if err != nil || len(u.GetFinalizers()) == 0 {
			return false, nil, nil
		}
		if u.GetDeletionTimestamp() == nil {
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
			u.SetGeneration(u.GetGeneration() + 1)
			err = client.Tracker().Update(fenceResource, u, "")
		}
		return true, nil, err
	})
}

// A remediation whose objects a user has removed unfences: that nothing is recorded does
// not say that nothing is fenced. Others find an object before.
func TestRemovedObjects(t *testing.T) {
	b := backendOf(t, classes)
	deleting(b)
	fenced := []netip.Addr{address}
	fences := b.Client.Resource(fenceResource)
	testkit.Must(t, b.Fence(t.Context(), "uid", fenced))
	handle(t, b)
	name := b.prefix("uid") + "1"
	u := testkit.Value(fences.Get(t.Context(), name, metav1.GetOptions{}))(t)
	u.SetFinalizers(nil)
	testkit.Value(fences.Update(t.Context(), u, metav1.UpdateOptions{}))(t)
	testkit.Must(t, fences.Delete(t.Context(), name, metav1.DeleteOptions{}))
	var steps []string
	for {
		f := testkit.Value(b.ReadBack(t.Context(), "uid", fenced))(t)
		if f.Lifted {
			break
		}
		if len(steps) > 20 {
			t.Fatalf("not lifted: %+v after %q", f, steps)
		}
		testkit.Must(t, b.Unfence(t.Context(), "uid", fenced))
		steps = append(steps, strings.Join(handle(t, b), ", "))
	}
	if want := "1 Unfenced []"; steps[0] != want {
		t.Errorf("the first object is %q, want %q", steps[0], want)
	}
	if last := steps[len(steps)-1]; !strings.Contains(last, "2 Unfenced [192.0.2.7/32]") {
		t.Errorf("the last objects are %q", last)
	}
	testkit.Must(t, b.Forget(t.Context(), "uid", fenced))
	if f := testkit.Value(b.ReadBack(t.Context(), "uid", fenced))(t); f.Lifted || len(f.Recorded) > 0 {
		t.Errorf("without an object: %+v", f)
	}
}

// Of two remediations that fence the same address, the one that is released first leaves
// the address to the other one, which unfences it.
func TestReleasedTogether(t *testing.T) {
	b := backendOf(t, classes)
	deleting(b)
	fenced := []netip.Addr{address}
	testkit.Must(t, b.Fence(t.Context(), "first", fenced), b.Fence(t.Context(), "second", fenced))
	handle(t, b)
	testkit.Must(t, b.Unfence(t.Context(), "first", fenced))
	if f := testkit.Value(b.ReadBack(t.Context(), "second", fenced))(t); !strings.Contains(f.Missing, "is being unfenced") {
		t.Errorf("the second one while the first is released: %+v", f)
	}
	testkit.Must(t, b.Unfence(t.Context(), "first", fenced))
	if f := testkit.Value(b.ReadBack(t.Context(), "first", fenced))(t); !f.Lifted {
		t.Errorf("the first one: %+v", f)
	}
	testkit.Must(t, b.Forget(t.Context(), "first", fenced))
	if f := testkit.Value(b.ReadBack(t.Context(), "second", fenced))(t); len(f.Held) != 1 || f.Lifted {
		t.Errorf("the second one: %+v", f)
	}
}
