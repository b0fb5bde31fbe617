package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/cleatproject/cleat/deploy/image"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
)

const (
	cephArchive = "cleat-ceph.tar"
	cephDriver  = "rbd.cleat.dev"
	cephPool    = "images"
	cephClaims  = 100 // at once
)

// cephRelease has a controller for a cluster of the test.
var cephRelease = release{name: "ceph", values: `
csi:
  engine: ceph
  mode: controller
  driverName: ` + cephDriver + `
  metricsPort: 29821
  ceph: {clusterID: test, pools: [` + cephPool + `], controllerSecret: ceph-controller, nodeSecret: ceph-node}
  snapshots: {enabled: true}
  addons: {enabled: true}
  storageClasses: [{name: ceph, fsType: ext4, volumeBindingMode: Immediate}]
  volumeSnapshotClasses: [{name: ceph}]
`}

// buildCeph builds the controller's image as users do.
func buildCeph(ctx context.Context, dir string) error {
	binary := filepath.Join(dir, "bin", "cleat-ceph")
	if err := testkit.BuildTo(ctx, binary, testkit.Cleat, "-tags", "ceph,pacific"); err != nil {
		return err
	}
	return image.Build(ctx, image.Options{Variant: image.Ceph, Output: filepath.Join(dir, cephArchive), Reference: cephImage, Binary: binary, Log: os.Stderr})
}

// cephCase is a release for Ceph volumes, and its cluster.
type cephCase struct {
	*addons
	cluster *cephtest.Cluster
}

// Volumes of a Ceph cluster through the real sidecars: all that needs no RBD
// driver of the kernel, which this machine's kernel does not have.
func testCeph(t *testing.T) {
	t.Parallel()
	c := &cephCase{addons: &addons{newSpace(t)}}
	c.cluster = cephtest.Start(t, cephtest.Options{Addr: netip.MustParseAddr("10.99.0.1")})
	testkit.Must(t, c.cluster.CreatePool(cephPool))
	c.installAs(cephRelease, c.cluster.Monitors())
	c.fenceClass("ceph", cephDriver, "ceph-cleat-csi-addons")
	c.bootReports()
	c.lifeOfVolume()
	c.manyClaims()
	c.attach()
	c.fence()
	c.noDenials(cephRelease, "Listening for CSI-Addons requests", "", "--all-containers")
	c.noImages() // removals run in the background, of 100 images for half a minute
}

// installAs creates the users of docs/ceph.md, and a release.
func (c *cephCase) installAs(r release, monitors []string) {
	c.Helper()
	pool := "profile rbd pool=" + cephPool
	users := map[string]string{
		"controller": testkit.Value(c.cluster.User("controller", "mon", `profile rbd, allow command "osd blocklist"`, "mgr", pool, "osd", "allow *"))(c),
		"node":       testkit.Value(c.cluster.User("node", "mon", "allow r", "osd", pool))(c),
	}
	core := testCluster.Client.CoreV1()
	for user, key := range users {
		testkit.Value(core.Secrets(system).Create(c.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: r.name + "-" + user}, StringData: map[string]string{"userID": user, "userKey": key},
		}, metav1.CreateOptions{}))(c)
	}
	config := testkit.Value(json.Marshal([]map[string]any{{"clusterID": "test", "monitors": monitors}}))(c)
	testkit.Value(core.ConfigMaps(system).Create(c.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: r.name + "-csi-config"}, Data: map[string]string{"config.json": string(config)},
	}, metav1.CreateOptions{}))(c)
	_, missing := os.Stat("/lib/modules")
	c.Cleanup(func() {
		together(c.T, r.remove)
		ctx := context.Background()
		err := errors.Join(core.ConfigMaps(system).Delete(ctx, r.name+"-csi-config", metav1.DeleteOptions{}),
			core.Secrets(system).Delete(ctx, r.name+"-controller", metav1.DeleteOptions{}), core.Secrets(system).Delete(ctx, r.name+"-node", metav1.DeleteOptions{}))
		if missing != nil { // the kubelet created it for the node's pod
			err = errors.Join(err, os.Remove("/lib/modules"))
		}
		if err != nil {
			c.Error(err)
		}
	})
	testkit.Must(c, r.add(c.Context()))
}

// images lists the images in the pool, and those in its trash.
func (c *cephCase) images() (images, trash []string) {
	c.Helper()
	images = strings.Fields(testkit.Value(c.cluster.RBD("ls", "--pool", cephPool))(c))
	trash = strings.Fields(testkit.Value(c.cluster.RBD("trash", "ls", "--all", "--pool", cephPool))(c))
	return images, trash
}

// imageInfo is the cluster's own description of an image.
type imageInfo struct {
	Size   int64
	Parent struct{ Image string }
}

func (c *cephCase) info(name string) (info imageInfo) {
	c.Helper()
	out := testkit.Value(c.cluster.RBD("info", "--format", "json", cephPool+"/"+c.image(name)))(c)
	testkit.Must(c, json.Unmarshal([]byte(out), &info))
	return info
}

// image returns the name of the image of a claim.
func (c *cephCase) image(name string) string {
	c.Helper()
	return c.bound(name).Spec.CSI.VolumeAttributes["imageName"]
}

// capacity waits until the volume of a claim has a size, and its image.
func (c *cephCase) capacity(name, size string) {
	c.Helper()
	c.volumeHas(name, size)
	want := resource.MustParse(size)
	if got := c.info(name).Size; got != want.Value() {
		c.Errorf("the image of claim %s has %d bytes, want %d", name, got, want.Value())
	}
}

// lifeOfVolume: a claim, its snapshot, a larger restore, a clone, growth, and
// the deletion of the source before that of what was made from it.
func (c *cephCase) lifeOfVolume() {
	c.Helper()
	c.claim("source", claim{class: "ceph", size: "1Gi", block: true})
	c.capacity("source", "1Gi")
	c.snapshot("snap", "ceph", "source")
	c.claim("restored", claim{class: "ceph", size: "2Gi", block: true, from: snapshotSource("snap")})
	c.claim("clone", claim{class: "ceph", size: "1Gi", block: true, from: claimSource("source")})
	c.capacity("restored", "2Gi")
	c.capacity("clone", "1Gi")
	for _, name := range []string{"restored", "clone"} {
		if parent := c.info(name).Parent.Image; parent != c.image("source") {
			c.Errorf("the image of claim %s has the parent %q, want %q", name, parent, c.image("source"))
		}
	}
	testkit.Must(c, c.ask("source", "3Gi"))
	c.capacity("source", "3Gi")
	for _, name := range []string{"pvc/source", "volumesnapshot/snap", "pvc/restored", "pvc/clone"} {
		c.kubectl("delete", name, "--wait", "--timeout=2m")
	}
	c.until("deletion of the volumes", c.volumesGone)
}

// noImages waits until neither a volume nor the rest of a deleted one is left.
func (c *cephCase) noImages() {
	c.Helper()
	c.until("an empty pool", func(context.Context) error {
		if images, trash := c.images(); len(images)+len(trash) > 0 {
			return fmt.Errorf("the pool has images %q, and %q in the trash", images, trash)
		}
		return nil
	})
}

// manyClaims creates and deletes many claims at once.
func (c *cephCase) manyClaims() {
	c.Helper()
	bound, gone := newTimestamps(cephClaims), newTimestamps(cephClaims)
	c.follow(&corev1.PersistentVolumeClaim{}, cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
		if p := o.(*corev1.PersistentVolumeClaim); p.Status.Phase == corev1.ClaimBound {
			bound.saw(p.Name)
		}
	}})
	c.follow(&corev1.PersistentVolume{}, cache.ResourceEventHandlerFuncs{DeleteFunc: func(o any) {
		if last, missed := o.(cache.DeletedFinalStateUnknown); missed {
			o = last.Obj
		}
		if v := o.(*corev1.PersistentVolume); v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == c.name && strings.HasPrefix(v.Spec.ClaimRef.Name, "claim-") {
			gone.saw(v.Name)
		}
	}})
	class, began := "ceph", time.Now()
	asked := c.makeClaims(cephClaims, func(p *corev1.PersistentVolumeClaim) { p.Spec.StorageClassName = &class })
	c.rate("claims of a Ceph cluster are bound", began, bound.all(c.space, "claims are bound"), func(name string) time.Time { return asked[name] })
	c.checkVolumes(cephClaims)
	images, _ := c.images()
	if n := strings.Count(strings.Join(images, " "), "cleat-vol-"); n != cephClaims {
		c.Errorf("the pool has %d images of volumes, want %d: %q", n, cephClaims, images)
	}
	began = time.Now()
	testkit.Must(c, testCluster.Client.CoreV1().PersistentVolumeClaims(c.name).DeleteCollection(c.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	c.rate("volumes of a Ceph cluster are deleted", began, gone.all(c.space, "volumes are deleted"), func(string) time.Time { return began })
}

// attach: the volume is granted to the node by its id with the address, and the
// node says why it cannot map the image. Its pod is ready.
func (c *cephCase) attach() {
	c.Helper()
	if id := c.nodeID(cephDriver); id != "node-1@10.99.0.1" {
		c.Errorf("the node's id is %q", id)
	}
	c.claim("used", claim{class: "ceph", size: "1Gi"})
	volume := c.bound("used").Name
	c.start("user", pod{mounts: map[string]string{"/data": "used"}})
	c.attached(volume)
	c.event("user", "this kernel has no RBD driver")
	c.until("pods of the release", func(ctx context.Context) error { return podsReady(ctx, cephRelease.name) })
	c.drop("user")
	c.kubectl("delete", "pvc/used", "--wait", "--timeout=2m")
	c.until("deletion of the volume", c.volumesGone)
}

// fence: addresses and ranges of a NetworkFence are on the blocklist of the
// OSDs when it has succeeded, and no more when it is unfenced.
func (c *cephCase) fence() {
	c.Helper()
	c.Cleanup(func() { c.remove("networkfence", "ceph-client") })
	blocks := []string{"203.0.113.7/32", "198.51.100.0/24"}
	c.fenced("ceph-client", "ceph", blocks...)
	want := []string{"203.0.113.7:0/0", "cidr:198.51.100.0:0/24"}
	if got := c.blocklist(); !slices.Equal(got, want) {
		c.Errorf("the fence has succeeded, and the blocklist has %q, want %q", got, want)
	}
	c.unfenced("ceph-client", "ceph", blocks...)
	if got := c.blocklist(); len(got) > 0 {
		c.Errorf("unfenced, and the blocklist still has %q", got)
	}
}

// blocklist returns the addresses and ranges on the cluster's blocklist. Single
// client instances are of controllers and managers that were replaced.
func (c *cephCase) blocklist() []string {
	c.Helper()
	var dump struct {
		Addresses map[string]string `json:"blocklist"`
		Ranges    map[string]string `json:"range_blocklist"`
	}
	out := testkit.Value(c.cluster.Command("osd", "dump", "--format", "json"))(c)
	testkit.Must(c, json.Unmarshal([]byte(out), &dump))
	maps.DeleteFunc(dump.Addresses, func(address, _ string) bool { return !strings.HasSuffix(address, "/0") })
	return append(slices.Sorted(maps.Keys(dump.Addresses)), slices.Sorted(maps.Keys(dump.Ranges))...)
}
