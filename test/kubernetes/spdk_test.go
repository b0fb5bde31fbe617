package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/spdk/rig"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	spdkDriver    = "spdk.cleat.dev"
	spdkClusterID = "test"
	spdkState     = "spdk-cleat-spdk-state" // ConfigMap
	spdkZone      = "a"                     // of the node and the target
)

// spdkRelease has the values of docs/start-spdk.md.
var spdkRelease = release{name: "spdk", values: `
csi:
  engine: spdk
  mode: controller
  driverName: ` + spdkDriver + `
  metricsPort: 29822
  nvme: {clusterID: ` + spdkClusterID + `}
  snapshots: {enabled: true}
  controller: {replicaCount: 2}
  spdk: {topologyLabels: [` + corev1.LabelTopologyZone + `]}
  storageClasses:
  - {name: spdk, fsType: ext4, volumeBindingMode: Immediate}
  - {name: spdk-of-node, fsType: ext4, volumeBindingMode: WaitForFirstConsumer}
  volumeSnapshotClasses: [{name: spdk}]
  volumeAttributesClasses: [{name: spdk-limited, parameters: {qos_rw_iops: "5000"}}]
`}

// spdkCase is a release for volumes of an SPDK target, and its target.
type spdkCase struct {
	*space
	target   *rig.Target
	survived []string // claims that were created while their controller failed
}

// TestSPDK: volumes of a double of SPDK, through its HTTP proxy and the real
// sidecars, with two replicas of the controller. The double serves no NVMe/TCP, nor
// has the kernel of the test machines an initiator: the pod's volume is attached, and
// the node cannot connect.
func TestSPDK(t *testing.T) {
	t.Parallel()
	target := rig.NewTarget(t, spdktest.NewNetwork(nil), 4096)
	installSPDK(t, target)
	c := &spdkCase{space: newSpace(t), target: target} // its claims are deleted before the release
	before := c.state()
	c.lifeOfVolume()
	after := c.state()
	if after.UID != before.UID || after.ResourceVersion == before.ResourceVersion {
		t.Errorf("the state is in %s %s before and %s %s after volumes were created", before.UID, before.ResourceVersion, after.UID, after.ResourceVersion)
	}
	c.attach()
	c.deleteAll()
	c.noDenials(spdkRelease, "Starting CSI attacher", "", "--all-containers")
}

// installSPDK creates the objects of docs/start-spdk.md, and the release. At the end
// the target must be empty.
func installSPDK(t *testing.T, target *rig.Target) {
	t.Helper()
	const user, password = "spdkcsiuser", "spdkcsipass"
	proxy := httptest.NewUnstartedServer(spdktest.Proxy(target.Process.Socket(), user, password))
	testkit.Must(t, proxy.Listener.Close())
	proxy.Listener = testkit.Value(net.Listen("tcp", "10.99.0.1:0"))(t)
	proxy.Start()
	t.Cleanup(proxy.Close)
	config := testkit.Value(json.Marshal(map[string]any{"nodes": []map[string]any{{
		"name": rig.TargetName, "rpcURL": proxy.URL, "targetType": "nvme-tcp", "targetAddr": target.Address().Host,
		"topology": map[string]string{corev1.LabelTopologyZone: spdkZone},
	}}}))(t)
	secret := testkit.Value(json.Marshal(map[string]any{"rpcTokens": []map[string]string{{
		"name": rig.TargetName, "username": user, "password": password,
	}}}))(t)
	core := testCluster.Client.CoreV1()
	t.Cleanup(func() {
		target.CheckEmpty(t)
		together(t, spdkRelease.remove)
		ctx := testkit.Context(t)
		testkit.Must(t, core.ConfigMaps(system).Delete(ctx, "spdkcsi-cm", metav1.DeleteOptions{}),
			core.Secrets(system).Delete(ctx, "spdkcsi-secret", metav1.DeleteOptions{}),
			core.ConfigMaps(system).Delete(ctx, spdkState, metav1.DeleteOptions{})) // uninstalling keeps it
		testkit.Value(testCluster.Kubectl(ctx, "", "label", "node", testCluster.Node, corev1.LabelTopologyZone+"-"))(t)
	})
	testkit.Value(testCluster.Kubectl(t.Context(), "", "label", "node", testCluster.Node, corev1.LabelTopologyZone+"="+spdkZone))(t)
	testkit.Value(core.ConfigMaps(system).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "spdkcsi-cm"}, Data: map[string]string{"config.json": string(config)},
	}, metav1.CreateOptions{}))(t)
	testkit.Value(core.Secrets(system).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "spdkcsi-secret"}, Data: map[string][]byte{"secret.json": secret},
	}, metav1.CreateOptions{}))(t)
	testkit.Must(t, spdkRelease.add(t.Context())) // waits until its pods are ready
}

func (c *spdkCase) state() *corev1.ConfigMap {
	c.Helper()
	return testkit.Value(testCluster.Client.CoreV1().ConfigMaps(system).Get(c.Context(), spdkState, metav1.GetOptions{}))(c)
}

// bdev returns the lvol of a claim.
func (c *spdkCase) bdev(claim string) spdk.Bdev {
	c.Helper()
	_, uuid, _ := strings.Cut(c.bound(claim).Spec.CSI.VolumeHandle, ":")
	return testkit.Value(c.target.Client.Bdev(c.Context(), uuid))(c)
}

// export returns the subsystem of a claim.
func (c *spdkCase) export(ctx context.Context, claim string) (spdk.Subsystem, error) {
	return c.target.Client.Subsystem(ctx, c.bound(claim).Spec.CSI.VolumeAttributes["nqn"])
}

// created checks the lvol of a claim, its export, which admits these hosts, and
// the nodes of its volume.
func (c *spdkCase) created(claim, size string, hosts ...string) {
	c.Helper()
	c.volumeHas(claim, size)
	want := resource.MustParse(size)
	b := c.bdev(claim)
	if b.Size() != want.Value() {
		c.Errorf("the lvol of claim %s has %d bytes, want %s", claim, b.Size(), size)
	}
	c.admits(claim, hosts...)
	if s := testkit.Value(c.export(c.Context(), claim))(c); len(s.Namespaces) != 1 || s.Namespaces[0].Bdev != b.Name || len(s.Listeners) != 1 {
		c.Errorf("the export of claim %s is %+v", claim, s)
	}
	zone := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{spdkZone}}
	nodes := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{zone}}}}}
	if diff := cmp.Diff(nodes, c.bound(claim).Spec.NodeAffinity); diff != "" {
		c.Errorf("the nodes of claim %s (-want +got):\n%s", claim, diff)
	}
}

// admits waits until the target admits exactly these hosts to the volume of a
// claim.
func (c *spdkCase) admits(claim string, hosts ...string) {
	c.Helper()
	c.until(fmt.Sprintf("hosts %q of claim %s", hosts, claim), func(ctx context.Context) error {
		s, err := c.export(ctx, claim)
		if err != nil {
			return err
		}
		var got []string
		for _, h := range s.Hosts {
			got = append(got, h.NQN)
		}
		if !slices.Equal(got, hosts) || s.AllowAnyHost {
			return fmt.Errorf("the target admits %q, any host %t", got, s.AllowAnyHost)
		}
		return nil
	})
}

// lifeOfVolume: a claim, its snapshot, a restore, growth, and other limits.
func (c *spdkCase) lifeOfVolume() {
	c.Helper()
	c.claim("source", claim{class: "spdk", size: "64Mi", block: true})
	c.created("source", "64Mi")
	c.snapshot("snap", "spdk", "source")
	c.claim("restored", claim{class: "spdk", size: "128Mi", block: true, from: snapshotSource("snap")})
	c.created("restored", "128Mi")
	if l := c.bdev("restored").Driver.Lvol; l == nil || !l.Clone {
		c.Errorf("the restored volume is not a clone: %+v", l)
	}
	c.change("source", "spdk-limited")
	c.changed("source", "spdk-limited")
	c.limited("source", 5000)
	testkit.Must(c, c.ask("source", "192Mi"))
	c.created("source", "192Mi")
}

// limited checks the limit of I/O a second of a claim's lvol.
func (c *spdkCase) limited(claim string, want int) {
	c.Helper()
	var all []struct {
		Limits struct {
			IOPS int `json:"rw_ios_per_sec"`
		} `json:"assigned_rate_limits"`
	}
	testkit.Must(c, c.target.Client.Call(c.Context(), "bdev_get_bdevs", map[string]string{"name": c.bdev(claim).Name}, &all))
	if len(all) != 1 || all[0].Limits.IOPS != want {
		c.Errorf("the volume has the limits %+v, want %d", all, want)
	}
}

// attach: the target admits the node of the volume's pod, and no other host. The
// grant survives the controller that gave it and the exports of the target.
func (c *spdkCase) attach() {
	c.Helper()
	if id := c.nodeID(spdkDriver); id != "node-1@10.99.0.1" {
		c.Errorf("the node's id is %q", id)
	}
	host := access.HostNQN(spdkClusterID + "/" + testCluster.Node)
	c.claim("used", claim{class: "spdk-of-node", size: "64Mi"})
	c.start("user", pod{mounts: map[string]string{"/data": "used"}})
	c.attached(c.bound("used").Name)
	c.created("used", "64Mi", host)
	c.admits("source")
	a := c.target.Address()
	c.event("user", "cannot be reached: dial tcp "+net.JoinHostPort(a.Host, a.Port))
	c.failOvers()
	c.target.Restart(c)
	c.admits("used", host)
	c.admits("source")
	c.drop("user")
	c.admits("used")
}

// deleteAll deletes the source before what was made from it. Nothing is left.
func (c *spdkCase) deleteAll() {
	c.Helper()
	names := []string{"pvc/source", "volumesnapshot/snap", "pvc/restored", "pvc/used"}
	for _, name := range c.survived {
		names = append(names, "pvc/"+name, "volumesnapshot/"+name)
	}
	for _, name := range names {
		c.kubectl("delete", name, "--wait", "--timeout=2m")
	}
	c.until("an empty target", func(context.Context) error {
		if left := c.target.Objects(c); len(left) > 0 {
			return fmt.Errorf("it has %q", left)
		}
		return nil
	})
	c.until("deletion of the volumes", c.volumesGone)
}
