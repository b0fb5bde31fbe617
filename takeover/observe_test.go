package takeover

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/takeover/plan"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend is a Backend that records clients and fences nothing.
type backend struct {
	clients  []Client
	err      error
	answered *time.Time // set by Clients
}

func (b backend) Fence(context.Context, string, []netip.Addr) error { return b.err }
func (b backend) ReadBack(context.Context, string, []netip.Addr) (Fences, error) {
	return Fences{}, b.err
}
func (b backend) Unfence(context.Context, string, []netip.Addr) error { return b.err }
func (b backend) Forget(context.Context, string, []netip.Addr) error  { return b.err }
func (b backend) Clients(context.Context) ([]Client, error) {
	if b.answered != nil {
		*b.answered = time.Now()
	}
	return b.clients, b.err
}
func (b backend) Servers(context.Context) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("10.0.0.100")}, nil
}

// fakeClient has objects and the remediation lost-x7f of the node lost.
func fakeClient(t *testing.T, objects string) *fake.FakeDynamicClient {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{
		Resource: Kind + "List", nodeResource: "NodeList", podResource: "PodList", claimResource: "PersistentVolumeClaimList", volumeResource: "PersistentVolumeList",
		attachmentResource: "VolumeAttachmentList", driverResource: "CSIDriverList", sliceResource: "EndpointSliceList",
	}
	var all []runtime.Object
	objects += "\n---\n" + `{apiVersion: remediation.cleat.dev/v1alpha1, kind: StorageFenceRemediation, metadata: {name: lost-x7f, namespace: ns, uid: u, annotations: {remediation.medik8s.io/node-name: lost}}}`
	for text := range strings.SplitSeq(objects, "\n---\n") {
		u := &unstructured.Unstructured{}
		testkit.Must(t, yaml.Unmarshal([]byte(text), &u.Object))
		all = append(all, u)
	}
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, all...)
}

// observed returns what a controller with these objects observes for the node
// lost.
func observed(t *testing.T, coverage string, b backend, objects string) plan.Observation {
	t.Helper()
	client := fakeClient(t, objects)
	hosts := map[string][]netip.Addr{"here.example.com": {netip.MustParseAddr("::ffff:10.0.0.7")}, "there.example.com": {netip.MustParseAddr("10.0.0.60"), netip.MustParseAddr("fd00::60")}}
	c := testkit.Value(New(Config{
		Client: client, Namespace: "ns", Lease: "l", Identity: "i", Coverage: testkit.Value(ParseCoverage([]byte(coverage)))(t), Backends: map[string]Backend{"storage": b},
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) { return hosts[host], nil },
	}))(t)
	o := testkit.Value(c.observe(t.Context(), "lost-x7f", plan.Lease{Held: true}))(t)
	return o.Observation
}

// A certificate has the time of its observation. A fence that a backend completes while
// it is observed was not in force before.
func TestObservationIsNotOlderThanWhatItRead(t *testing.T) {
	var answered time.Time
	o := observed(t, withBackend, backend{answered: &answered}, "{apiVersion: v1, kind: Node, metadata: {name: lost}}")
	if answered.IsZero() || o.Now.Before(answered) {
		t.Errorf("the observation is of %s, a backend answered at %s", o.Now, answered)
	}
}

const withBackend = "backends: [{name: storage, endpoint: /run/fence.sock}]\n"

func TestVolumesOfNode(t *testing.T) {
	o := observed(t, withBackend, backend{}, `
apiVersion: v1
kind: Node
metadata: {name: lost}
status:
  addresses: [{type: InternalIP, address: 10.0.0.7}]
  volumesInUse: [kubernetes.io/csi/net.example.com^h1, kubernetes.io/csi/gone.example.com^h9, kubernetes.io/glusterfs/x]
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default}
spec:
  nodeName: lost
  tolerations: [{operator: Exists}]
  volumes:
  - {name: v1, persistentVolumeClaim: {claimName: c1}}
  - {name: v2, persistentVolumeClaim: {claimName: missing}}
  - {name: v3, ephemeral: {volumeClaimTemplate: {}}}
  - {name: v4, nfs: {server: s, path: /}}
  - {name: v5, csi: {driver: inline.example.com, volumeAttributes: {clusterID: east}}}
  - {name: v6, emptyDir: {}}
  - {name: v7, hostPath: {path: /data}}
  - {name: v8, configMap: {name: x}}
  - {name: v9, persistentVolumeClaim: {claimName: c9}}
---
{apiVersion: v1, kind: Pod, metadata: {name: moves, namespace: default}, spec: {nodeName: lost, volumes: [{name: w, hostPath: {path: /data}}, {name: r, hostPath: {path: /etc}}, {name: x, hostPath: {path: /x}}],
  initContainers: [{name: i, volumeMounts: [{name: r, mountPath: /r, readOnly: true}, {name: w, mountPath: /w}]}],
  containers: [{name: c, volumeMounts: [{name: r, mountPath: /r, readOnly: true}, {name: w, mountPath: /w, readOnly: true}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: everywhere, namespace: default, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: d, controller: true}]}, spec: {nodeName: lost, volumes: [{name: w, hostPath: {path: /data}}], containers: [{name: c, volumeMounts: [{name: w, mountPath: /w}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: static, namespace: default, annotations: {kubernetes.io/config.mirror: x}}, spec: {nodeName: lost, volumes: [{name: w, hostPath: {path: /data}}], containers: [{name: c, volumeMounts: [{name: w, mountPath: /w}]}]}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c1, namespace: default}, spec: {volumeName: pv1}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a-v3, namespace: default}, spec: {volumeName: pv3}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c9, namespace: default}, spec: {volumeName: deleted}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv1}, spec: {csi: {driver: net.example.com, volumeHandle: h1, volumeAttributes: {clusterID: east}}}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv3}, spec: {csi: {driver: free.example.com, volumeHandle: h3, volumeAttributes: {targetAddr: "10.0.0.7:4420"}}}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv4}, spec: {csi: {driver: net.example.com, volumeHandle: h4, volumeAttributes: {targetAddr: "10.0.0.50"}}}}
---
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: free.example.com}, spec: {attachRequired: false}}
---
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: va1}, spec: {attacher: net.example.com, nodeName: lost, source: {persistentVolumeName: pv1}}}
---
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: va4}, spec: {attacher: net.example.com, nodeName: lost, source: {persistentVolumeName: pv4}}}
---
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: va5}, spec: {attacher: net.example.com, nodeName: other, source: {persistentVolumeName: pv5}}}`)
	a := []string{"Pod default/a"}
	testkit.Diff(t, "volumes", []plan.Volume{
		{Name: "default/a/v2", Plugin: "persistentVolumeClaim", SeenIn: a},
		{Name: "default/a/v4", Plugin: "nfs", Inline: true, SeenIn: a},
		{Name: "default/a/v5", Plugin: "csi", Driver: "inline.example.com", Cluster: "east", Inline: true, SeenIn: a},
		{Name: "default/moves/w", Plugin: "hostPath", Cluster: "/data", SeenIn: []string{"Pod default/moves"}},
		{Name: "deleted", Plugin: "unknown", SeenIn: a},
		{Name: "gone.example.com^h9", Plugin: "csi", Driver: "gone.example.com", Handle: "h9", NoObject: true, SeenIn: []string{"volumesInUse"}},
		{Name: "kubernetes.io/glusterfs/x", Plugin: "unknown", SeenIn: []string{"volumesInUse"}},
		{Name: "pv1", Plugin: "csi", Driver: "net.example.com", Handle: "h1", Cluster: "east", SeenIn: []string{"Pod default/a", "VolumeAttachment va1", "volumesInUse"}},
		{Name: "pv3", Plugin: "csi", Driver: "free.example.com", Handle: "h3", Cluster: "10.0.0.7:4420", NoAttachment: true, OnNode: true, SeenIn: a},
		{Name: "pv4", Plugin: "csi", Driver: "net.example.com", Handle: "h4", Cluster: "10.0.0.50", SeenIn: []string{"VolumeAttachment va4"}},
	}, o.Volumes)
	testkit.Diff(t, "pods", []plan.Pod{{Namespace: "default", Name: "a", ToleratesOutOfService: true}, {Namespace: "default", Name: "everywhere"}, {Namespace: "default", Name: "moves"}}, o.Pods)
	if !isProtected(o, "10.0.0.50") || isProtected(o, "10.0.0.7") {
		t.Errorf("the target of another machine is protected, that on the node is not: %v", o.Protected)
	}
}

// A volume's server is found by each key and in each form, by its name too.
func TestTargetsOfVolumes(t *testing.T) {
	const there, here, unknown = "10.0.0.60", "the node", "not known"
	for attributes, want := range map[string]string{
		"targetAddr: there.example.com":                                     there,
		"targetAddr: 'here.example.com:4420'":                               here,
		"targetAddr: 'gone.example.com:4420'":                               unknown,
		"server: here.example.com":                                          here,
		"server: 10.0.0.60":                                                 there,
		"monitors: '10.0.0.60:6789,[fd00::60]:3300'":                        there,
		"monitors: 'there.example.com:6789, here.example.com'":              here,
		"monitors: gone.example.com":                                        unknown,
		"traddr: here.example.com":                                          here,
		"targetPortal: '[fd00::60]:3260'":                                   "fd00::60",
		`portals: '["10.0.0.60:3260", "10.0.0.7:3260"]'`:                    here,
		`connections: '[{"ip":"10.0.0.60","port":4420},{"ip":"10.0.0.7"}]'`: here,
		"connections: 10.0.0.7 and others":                                  unknown,
		"clusterID: here.example.com":                                       "",
	} {
		o := observed(t, withBackend, backend{}, `
{apiVersion: v1, kind: Node, metadata: {name: lost}, status: {addresses: [{type: InternalIP, address: 10.0.0.7}]}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv1}, spec: {csi: {driver: net.example.com, volumeHandle: h1, volumeAttributes: {`+attributes+`}}}}
---
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: va1}, spec: {attacher: net.example.com, nodeName: lost, source: {persistentVolumeName: pv1}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, namespace: default}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}]}`)
		if o.Volumes[0].OnNode != (want == here) || (len(o.Unavailable) > 0) != (want == unknown) {
			t.Errorf("%s: on the node %t, not known %v; want %s", attributes, o.Volumes[0].OnNode, o.Unavailable, want)
		}
		if want == there && !isProtected(o, want) || isProtected(o, "10.0.0.7") {
			t.Errorf("%s: protected %v", attributes, o.Protected)
		}
	}
}

func isProtected(o plan.Observation, address string) bool {
	return slices.ContainsFunc(o.Protected, func(p plan.Protected) bool { return p.Block.Contains(netip.MustParseAddr(address)) })
}

func TestClientsOfNode(t *testing.T) {
	addr := netip.MustParseAddr
	b := backend{clients: []Client{
		{Node: "lost", Addresses: []netip.Addr{addr("10.1.0.7")}, Former: []netip.Addr{addr("10.1.0.6")}},
		{Node: "lost", Addresses: []netip.Addr{addr("10.1.0.5")}, Reported: true, Rejected: []string{"10.1.0.0/24"}},
		{Node: "other", Addresses: []netip.Addr{addr("10.1.0.4")}, Reported: true},
		{Node: "dpu-1", Addresses: []netip.Addr{addr("10.1.0.8")}},
		{Node: "other", Addresses: []netip.Addr{addr("10.1.0.9")}, Former: []netip.Addr{addr("10.1.0.7")}},
	}}
	const nodes = `
{apiVersion: v1, kind: Node, metadata: {name: lost, annotations: {remediation.cleat.dev/claim: "{"}, labels: {remediation.medik8s.io/exclude-from-remediation: ""}}, status: {addresses: [{type: InternalIP, address: 10.0.0.7}, {type: ExternalIP, address: here}, {type: Hostname, address: lost}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: other}, status: {addresses: [{type: InternalIP, address: 10.0.0.8}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, namespace: default}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}]}`
	o := observed(t, withBackend+"storageAddresses: {lost: [10.2.0.7], other: [10.2.0.8]}\ndpus: {lost: [dpu-1]}\nprotected: [{block: 10.3.0.0/24, owner: vip}]", b, nodes)
	got := map[string]string{}
	for _, c := range o.Clients {
		var texts []string
		for _, a := range c.Addresses {
			texts = append(texts, a.String())
		}
		got[c.Machine+" "+string(c.Source)] = strings.Join(append(texts, c.Rejected...), " ")
	}
	testkit.Diff(t, "clients", map[string]string{
		"lost node": "10.0.0.7 here", "lost grant": "10.1.0.6 10.1.0.7", "lost storage network": "10.2.0.7", "lost report": "10.1.0.5 10.1.0.0/24", "dpu-1 grant": "10.1.0.8",
	}, got)
	for address, want := range map[string]bool{
		"10.0.0.8": true, "10.1.0.9": true, "10.1.0.4": true, "10.2.0.8": true, "10.0.0.1": true, "10.0.0.100": true, "10.3.0.9": true,
		"10.0.0.7": false, "10.1.0.7": false, "10.1.0.6": false, "10.1.0.8": false, "10.2.0.7": false,
	} {
		if isProtected(o, address) != want {
			t.Errorf("%s is protected: %t", address, !want)
		}
	}
	if !o.Node.Excluded || o.Node.Claim != (plan.Claim{}) || len(o.DPUs) != 1 || len(o.Unavailable) != 0 {
		t.Errorf("%+v, DPUs %v, unavailable %v", o.Node, o.DPUs, o.Unavailable)
	}

	b.err = errors.New("refused")
	if o := observed(t, withBackend, b, nodes); len(o.Unavailable) != 1 || !strings.Contains(o.Unavailable[0], "backend storage: refused") {
		t.Errorf("a backend that does not answer: %v", o.Unavailable)
	}
	b.err = nil
	without, _, _ := strings.Cut(nodes, "\n---\n{apiVersion: discovery")
	if o := observed(t, withBackend, b, without); len(o.Unavailable) != 1 || !strings.Contains(o.Unavailable[0], "no address of the API server") {
		t.Errorf("without the addresses of the API server: %v", o.Unavailable)
	}
}

func TestParseCoverage(t *testing.T) {
	for text, want := range map[string]string{
		"drivers: [{backend: a}]":                                             "no driver",
		"drivers: [{driver: a, backend: b}]":                                  "no backend has the name",
		"drivers: [{driver: a, local: true}, {driver: a}]":                    "two rules",
		withBackend + "drivers: [{driver: a, local: true, backend: storage}]": "mutually exclusive",
		"backends: [{name: a}]":                                               "required",
		"backends: [{name: a, endpoint: b, networkFenceClass: c}]":            "required",
		"backends: [{name: a, endpoint: b}, {name: a, endpoint: c}]":          "two backends",
		"protected: [{block: 10.0.0}]":                                        "10.0.0",
		"maxConcurrent: -1":                                                   "negative",
		"maxConcurent: 1":                                                     "maxConcurent",
	} {
		_, err := ParseCoverage([]byte(text))
		testkit.WantError(t, text, err, errs.Invalid, want)
	}
}

func FuzzParseCoverage(f *testing.F) {
	f.Add([]byte(withBackend + "drivers: [{driver: a, backend: storage}]\nprotected: [{block: ::1, owner: x}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := ParseCoverage(text); err == nil {
			c.planConfig()
		} else if !errors.Is(err, errs.Invalid) {
			t.Errorf("%v", err)
		}
	})
}

// A placeholder instead of an id is that of any board of its kind.
func TestPlaceholderIDs(t *testing.T) {
	for _, ids := range []string{
		"machineID: m, systemUUID: 00000000-0000-0000-0000-000000000000", "machineID: m, systemUUID: 03000200-0400-0500-0006-000700080009",
		"machineID: uninitialized, systemUUID: u",
	} {
		o := observed(t, withBackend, backend{}, "{apiVersion: v1, kind: Node, metadata: {name: lost}, status: {nodeInfo: {"+ids+", bootID: b}}}")
		if m := o.Node.Machine; m.MachineID != "" && m.SystemUUID != "" {
			t.Errorf("%s identify the machine %+v", ids, m)
		}
	}
}

// Ids that two Nodes have identify no machine, so that another boot id with them is no
// proof of a reboot.
func TestSharedMachineIDs(t *testing.T) {
	const lost = "{apiVersion: v1, kind: Node, metadata: {name: lost}, status: {nodeInfo: {machineID: m, systemUUID: u, bootID: b}}}"
	for other, want := range map[string]plan.Machine{
		"machineID: m, systemUUID: u, bootID: b2": {Name: "lost", BootID: "b"},
		"machineID: m, systemUUID: other":         {Name: "lost", MachineID: "m", SystemUUID: "u", BootID: "b"},
	} {
		o := observed(t, withBackend, backend{}, lost+"\n---\n{apiVersion: v1, kind: Node, metadata: {name: other}, status: {nodeInfo: {"+other+"}}}")
		testkit.Diff(t, other, want, o.Node.Machine)
	}
}

// The node of a remediation is the recorded one, whatever happens to the annotation.
func TestNodeOfRecord(t *testing.T) {
	r := &Remediation{}
	r.Name, r.Annotations = "generated", map[string]string{nodeNameAnnotation: "lost"}
	before := r.Node()
	r.Status.Record = &plan.Record{Machines: []plan.Machine{{Name: "lost"}, {Name: "dpu"}}}
	r.Annotations = map[string]string{nodeNameAnnotation: "other"}
	if after := r.Node(); before != "lost" || after != "lost" {
		t.Errorf("before the record %q, after it %q", before, after)
	}
}
