package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// small is a driver whose pool is filled by two claims, with a low volume
// limit.
var small = release{name: "small", values: `
csi:
  driverName: small.cleat.dev
  maxVolumes: 3
  pool: {image: 1GiB}
  storageClasses:
  - {name: small, fsType: ext4}
`}

const smallDriver = "small.cleat.dev"

// The scheduler gets the node's capacity and volume limit.
func TestCapacityAndLimit(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { // after the namespace is deleted
		if err := small.uninstall(context.Background(), testCluster); err != nil {
			t.Error(err)
		}
		if err := capacityGone(context.Background()); err != nil {
			t.Error(err)
		}
	})
	testkit.Must(t, small.install(t.Context(), testCluster))
	s := newVolumes(t)
	s.checkCapacity()
	s.checkTooLargeClaim()
	s.checkWaitForCapacity()
	s.checkVolumeLimit()
}

func capacity(ctx context.Context, class string) (*storagev1.CSIStorageCapacity, error) {
	all, err := testCluster.Client.StorageV1().CSIStorageCapacities(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var found []storagev1.CSIStorageCapacity
	for _, c := range all.Items {
		if c.StorageClassName == class {
			found = append(found, c)
		}
	}
	if len(found) != 1 || found[0].Capacity == nil {
		return nil, fmt.Errorf("class %s: got capacities %v, want one", class, found)
	}
	return &found[0], nil
}

// capacityGone fails while capacities exist: they belong to the deleted
// DaemonSet.
func capacityGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return poll(ctx, func(ctx context.Context) error {
		if c, err := capacity(ctx, "small"); err == nil {
			return fmt.Errorf("capacity %s of the removed driver exists", c.Name)
		}
		return nil
	})
}

// checkCapacity compares the CSIStorageCapacity with the driver's answer and
// the pool's file system.
func (s *space) checkCapacity() {
	s.Helper()
	conn := testkit.Value(grpc.NewClient("unix:///var/lib/kubelet/plugins/"+smallDriver+"/csi.sock", grpc.WithTransportCredentials(insecure.NewCredentials())))(s)
	defer conn.Close()
	s.until("the correct capacity", func(ctx context.Context) error {
		answer, err := csi.NewControllerClient(conn).GetCapacity(ctx, &csi.GetCapacityRequest{})
		if err != nil {
			return err
		}
		c, err := capacity(ctx, "small")
		if err != nil {
			return err
		}
		if c.NodeTopology == nil || len(c.NodeTopology.MatchLabels) != 1 || c.NodeTopology.MatchLabels["topology.cleat.dev/node"] != testCluster.Node {
			return fmt.Errorf("capacity has nodes %v", c.NodeTopology)
		}
		if c.Capacity.Value() != answer.GetAvailableCapacity() || c.MaximumVolumeSize.Value() != answer.GetMaximumVolumeSize().GetValue() {
			return fmt.Errorf("CSIStorageCapacity has %s and maximum %s, the driver answers %v", c.Capacity, c.MaximumVolumeSize, answer)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(poolOf(smallDriver), &st); err != nil {
			return err
		}
		// Free space without the reserve of 64 MiB, at a ratio of 1.
		free := int64(st.Bavail)*st.Bsize - 64*mebi
		if got := c.Capacity.Value(); got > free || got < free-mebi {
			return fmt.Errorf("CSIStorageCapacity has %d bytes, the pool's file system %d", got, free)
		}
		return nil
	})
	if names := poolVolumes(s.T, smallDriver); len(names) != 0 {
		s.Errorf("the pool has volumes %v", names)
	}
}

func poolVolumes(t *testing.T, driver string) (names []string) {
	t.Helper()
	for _, kind := range []string{"volumes", "incoming"} {
		entries, err := os.ReadDir(filepath.Join(poolOf(driver), kind))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, kind+"/"+e.Name())
		}
	}
	return names
}

const noCapacity = "node(s) did not have enough free storage"

// checkTooLargeClaim: no volume is created for a claim larger than the
// capacity.
func (s *space) checkTooLargeClaim() {
	s.Helper()
	s.claim("large", claim{class: "small", size: "2Gi"})
	s.start("large", pod{mounts: map[string]string{"/data": "large"}})
	s.pending("large", noCapacity)
	c, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Get(s.Context(), "large", metav1.GetOptions{})
	if err != nil || c.Status.Phase != corev1.ClaimPending || c.Spec.VolumeName != "" || c.Annotations["volume.kubernetes.io/selected-node"] != "" {
		s.Errorf("the claim is %s with volume %q and node %q (%v)", c.Status.Phase, c.Spec.VolumeName, c.Annotations["volume.kubernetes.io/selected-node"], err)
	}
	if names := poolVolumes(s.T, smallDriver); len(names) != 0 {
		s.Errorf("the pool has volumes %v", names)
	}
	s.drop("large")
	s.dropClaim("large")
}

// checkWaitForCapacity: a pod without enough capacity is scheduled after
// another claim is deleted.
func (s *space) checkWaitForCapacity() {
	s.Helper()
	s.claim("a", claim{class: "small", size: "600Mi"})
	s.run("a", pod{mounts: map[string]string{"/data": "a"}})
	a := s.bound("a")
	s.until("the capacity next to the first claim", func(ctx context.Context) error {
		c, err := capacity(ctx, "small")
		if err == nil && c.Capacity.Value() >= 600*mebi {
			err = fmt.Errorf("capacity is still %s", c.Capacity)
		}
		return err
	})
	s.claim("b", claim{class: "small", size: "600Mi"})
	s.start("b", pod{mounts: map[string]string{"/data": "b"}})
	s.pending("b", noCapacity)
	s.drop("a")
	s.dropClaim("a")
	s.forgotten(a)
	s.running("b")
}

// checkVolumeLimit: the node accepts three volumes, and four after an upgrade.
func (s *space) checkVolumeLimit() {
	s.Helper()
	s.wantAllocatable(3)
	for _, name := range []string{"c", "d", "e"} {
		s.claim(name, claim{class: "small", size: "4Mi", block: true})
	}
	s.run("two", pod{devices: map[string]string{"/dev/c": "c", "/dev/d": "d"}})
	s.start("over", pod{devices: map[string]string{"/dev/e": "e"}})
	s.pending("over", "node(s) exceed max volume count")
	if names := poolVolumes(s.T, smallDriver); len(names) != 3 {
		s.Errorf("got volumes %v, want 3", names)
	}
	before := s.device(s.bound("c"))
	testkit.Must(s, small.install(s.Context(), testCluster, "--set", "csi.maxVolumes=4"))
	s.wantAllocatable(4)
	s.running("over")
	if after := s.device(s.bound("c")); after.Path != before.Path {
		s.Errorf("the upgrade moved a volume in use from %s to %s", before.Path, after.Path)
	}
	s.exec("two", "printf %-4096s still | dd of=/dev/c conv=fsync 2>/dev/null; head -c 5 /dev/c | grep still")
}

func (s *space) wantAllocatable(count int32) {
	s.Helper()
	s.until(fmt.Sprintf("a limit of %d volumes", count), func(ctx context.Context) error {
		node, err := testCluster.Client.StorageV1().CSINodes().Get(ctx, testCluster.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, d := range node.Spec.Drivers {
			if d.Name == smallDriver {
				if d.Allocatable == nil || d.Allocatable.Count == nil || *d.Allocatable.Count != count {
					return fmt.Errorf("allocatable is %v", d.Allocatable)
				}
				return nil
			}
		}
		return errors.New("the node does not have the driver")
	})
}

// The shared releases have a capacity for each class.
func TestCapacityOfClasses(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	for _, class := range []string{"local-xfs", "local-ext4", "single-xfs", "single-ext4"} {
		s.until("the capacity of "+class, func(ctx context.Context) error {
			c, err := capacity(ctx, class)
			if err != nil {
				return err
			}
			if c.Capacity.IsZero() || !strings.HasPrefix(c.Name, "csisc-") || c.NodeTopology.MatchLabels["topology.cleat.dev/node"] != testCluster.Node {
				return fmt.Errorf("capacity %s is %s on nodes %v", c.Name, c.Capacity, c.NodeTopology)
			}
			return nil
		})
	}
}
