package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	mebi          = 1 << 20
	perNodeDriver = "csi.cleat.dev"
	singleDriver  = "single.cleat.dev"
)

// Claims are bound by their first pod, data persists between pods, and volumes
// have the requested file system and size.
func TestFilesystemAndBlock(t *testing.T) {
	t.Parallel()
	for _, c := range soak.Pick(2, []struct{ class, fsType string }{
		{"local-xfs", "xfs"}, {"single-ext4", "ext4"}, {"", "btrfs"}, {"local-ext4", "ext4"}, {"single-xfs", "xfs"},
	}) {
		t.Run(c.class+c.fsType, func(t *testing.T) {
			t.Parallel()
			s := newVolumes(t)
			if c.class == "" {
				c.class = s.class(perNodeDriver, map[string]string{"csi.storage.k8s.io/fstype": c.fsType}, nil)
			}
			s.claim("files", claim{class: c.class, size: "320Mi"})
			s.claim("raw", claim{class: c.class, size: "64Mi", block: true})
			both := pod{mounts: map[string]string{"/data": "files"}, devices: map[string]string{"/dev/raw": "raw"}}
			s.run("writer", both)
			s.checkSizes("writer", c.fsType)
			want := s.exec("writer", "dd if=/dev/urandom of=/data/a bs=1M count=20 conv=fsync 2>/dev/null; dd if=/data/a of=/dev/raw bs=1M conv=fsync 2>/dev/null; sha256sum </data/a")
			whole := s.exec("writer", "sha256sum </dev/raw")
			s.drop("writer")
			s.run("reader", both)
			if got := s.exec("reader", "sha256sum </data/a"); got != want {
				t.Errorf("the file reads %s, want %s", got, want)
			}
			if got := s.exec("reader", "dd if=/dev/raw bs=1M count=20 2>/dev/null | sha256sum"); got != want {
				t.Errorf("the device reads %s, want %s", got, want)
			}
			s.drop("reader")
			raw := s.bound("raw")
			if got := sumOf(t, fileOf(raw)); !strings.HasPrefix(whole, got) {
				t.Errorf("the file in the pool reads %s, the device %s", got, whole)
			}
			for _, v := range []*corev1.PersistentVolume{raw, s.bound("files")} {
				s.unstaged(fileOf(v))
			}
		})
	}
}

// checkSizes checks the sizes and mounts of TestFilesystemAndBlock's volumes.
func (s *space) checkSizes(pod, fsType string) {
	s.Helper()
	files, raw := s.bound("files"), s.bound("raw")
	for v, bytes := range map[*corev1.PersistentVolume]int64{files: 320 * mebi, raw: 64 * mebi} {
		if got := v.Spec.Capacity.Storage().Value(); got != bytes {
			s.Errorf("volume %s has capacity %d, want %d", v.Name, got, bytes)
		}
		s.wantSize(s.device(v), bytes)
	}
	if e := s.mountOf(pod, files.Name); e.FSType != fsType || e.Source != s.device(files).Path {
		s.Errorf("mounted file system is %s of %s", e.FSType, e.Source)
	}
	if all := s.mountsOf(s.device(files)); len(all) != 2 {
		s.Errorf("got mounts %v, want 2: staging and pod", all)
	}
	if all := s.mountsOf(s.device(raw)); len(all) != 0 {
		s.Errorf("the block volume is mounted: %v", all)
	}
	if got := s.exec(pod, "blockdev --getsize64 /dev/raw"); got != strconv.Itoa(64*mebi) {
		s.Errorf("in the pod the device has %s bytes", got)
	}
	s.refused(pod, "fallocate -l 400M /data/large", "No space left on device")
	s.exec(pod, "rm -f /data/large")
	s.refused(pod, "dd if=/dev/zero of=/dev/raw bs=1M seek=64 count=1", "No space left on device")
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	f := testkit.Value(os.Open(path))(t)
	defer f.Close()
	h := sha256.New()
	testkit.Value(io.Copy(h, f))(t)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// The kubelet's volume statistics match df in the pod. They have no health:
// kubelets use older calls for that than those of CSI 1.13.
func TestVolumeStats(t *testing.T) {
	t.Parallel()
	s := newVolumes(t)
	s.claim("files", claim{class: "local-ext4", size: "64Mi"})
	s.claim("raw", claim{class: "local-ext4", size: "64Mi", block: true})
	s.run("p", pod{mounts: map[string]string{"/data": "files"}, devices: map[string]string{"/dev/raw": "raw"}})
	s.exec("p", "dd if=/dev/urandom of=/data/a bs=1M count=20 conv=fsync 2>/dev/null; dd if=/data/a of=/dev/raw bs=1M count=8 conv=fsync 2>/dev/null; for i in 1 2 3; do echo >/data/f$i; done; sync")
	// Blocks of 4 KiB: total, used, available; then inodes.
	kib := strings.Fields(s.exec("p", "df -k /data | tail -1; df -i /data | tail -1"))
	number := func(at int) uint64 {
		n, err := strconv.ParseUint(kib[at], 10, 64)
		if err != nil {
			t.Fatalf("got df output %q", kib)
		}
		return n
	}
	want := volumeStats{CapacityBytes: number(1) << 10, UsedBytes: number(2) << 10, AvailableBytes: number(3) << 10, Inodes: number(7), InodesUsed: number(8)}
	s.until("the kubelet's statistics", func(ctx context.Context) error {
		all, err := summary(ctx, s.name)
		if err != nil {
			return err
		}
		if got := all["files"]; got != want {
			return fmt.Errorf("file system: got %+v, df has %+v", got, want)
		}
		// A block volume has no inodes; its usage is the space written in the
		// pool.
		if got := all["raw"]; got.CapacityBytes != 64*mebi || got.UsedBytes < 8*mebi || got.UsedBytes > 9*mebi || got.Inodes != 0 {
			return fmt.Errorf("block volume: got %+v", got)
		}
		return nil
	})
	s.until("the kubelet's metrics", func(ctx context.Context) error {
		text, err := testCluster.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", testCluster.Node, "proxy/metrics").DoRaw(ctx)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("kubelet_volume_stats_used_bytes{namespace=%q,persistentvolumeclaim=\"files\"} ", s.name)
		_, after, ok := strings.Cut(string(text), "\n"+line)
		value, _, _ := strings.Cut(after, "\n")
		if got, err := strconv.ParseFloat(value, 64); !ok || err != nil || uint64(got) != want.UsedBytes {
			return fmt.Errorf("%s is %q, want %d", line, value, want.UsedBytes)
		}
		return nil
	})
}

// volumeStats are the statistics of a claim in the kubelet's stats/summary.
type volumeStats struct {
	CapacityBytes, UsedBytes, AvailableBytes, Inodes, InodesUsed uint64
}

// summary returns the kubelet's statistics of the claims in a namespace.
func summary(ctx context.Context, namespace string) (map[string]volumeStats, error) {
	text, err := testCluster.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", testCluster.Node, "proxy/stats/summary").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var all struct {
		Pods []struct {
			Volume []struct {
				volumeStats
				PVCRef struct{ Name, Namespace string }
			}
		}
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	claims := map[string]volumeStats{}
	for _, p := range all.Pods {
		for _, v := range p.Volume {
			if v.PVCRef.Namespace == namespace {
				claims[v.PVCRef.Name] = v.volumeStats
			}
		}
	}
	return claims, nil
}
