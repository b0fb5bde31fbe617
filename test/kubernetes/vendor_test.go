package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/deploy/image"
	"github.com/cleatproject/cleat/deploy/image/oci"
	"github.com/cleatproject/cleat/test/example"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/testkit"
)

const vendorImage = "cleat.local/acme-csi:0.1.0"

// The section "In Kubernetes" of docs/vendor.md, with the program that a vendor's module
// builds. Data outlives the pod, also when the node service was replaced meanwhile.
func TestVendor(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	share := t.TempDir()
	importVendor(t, r.dir)
	own := strings.NewReplacer("registry.example/acme-csi", "cleat.local/acme-csi", "/mnt/share", share, "--namespace acme ", "--namespace "+r.name+" ",
		"deploy/chart", testkit.Value(filepath.Abs(chart))(t), "--wait", "--wait --timeout "+waitTimeout.String()+" --values images.yaml",
		"image: busybox", "image: "+busyboxImage, "metadata: {name: writer}\nspec:", "metadata: {name: writer}\nspec:\n  terminationGracePeriodSeconds: 1")
	_, sidecars, _ := strings.Cut(images, "\nsidecars:")
	r.write("images.yaml", "image: {pullPolicy: Never}\nsidecars:"+sidecars+"csi: {metricsPort: 29823, nodeSelector: {kubernetes.io/hostname: node-1}}\n")
	texts := r.blocks("docs/vendor.md", "In Kubernetes", "yaml", 2)
	r.write("acme.yaml", own.Replace(texts[0]))
	r.write("pod.yaml", own.Replace(texts[1]))
	t.Cleanup(func() { // before the namespace is deleted
		if _, err := testCluster.Helm(context.Background(), "uninstall", "acme", "--namespace", r.name, "--wait"); err != nil {
			t.Error(err)
		}
	})
	r.sh(own.Replace(r.blocks("docs/vendor.md", "In Kubernetes", "sh", 1)[0]))
	r.sh("kubectl apply -f pod.yaml")
	r.running("writer")
	first := r.dates(1)
	r.exec("writer", "sync")
	file := r.bound("data").Spec.CSI.VolumeAttributes["file"]
	r.sh("kubectl delete pod -l app.kubernetes.io/component=csi-node --wait", "kubectl rollout status daemonset/acme-csi-node --timeout=150s",
		"kubectl delete pod writer --wait", "kubectl apply -f pod.yaml")
	r.running("writer")
	if dates := r.dates(2); !strings.HasPrefix(dates, first) {
		t.Errorf("the second pod sees %q, the first one wrote %q", dates, first)
	}
	if _, err := testCluster.Client.CoreV1().ConfigMaps(r.name).Get(t.Context(), "acme-external-state", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	r.sh("kubectl delete pod writer --wait", "kubectl delete pvc data --wait --timeout=2m")
	r.until("deletion of the volume", r.volumesGone)
	r.until("detached devices", func(context.Context) error {
		out, err := exec.CommandContext(t.Context(), "losetup", "--list", "--noheadings", "--output", "BACK-FILE").Output()
		if left := testkit.Value(os.ReadDir(share))(t); err == nil && (len(left) > 0 || strings.Contains(string(out), file)) { // other tests of the machine have such volumes
			err = errors.New("left in the share: " + strings.TrimSpace(string(out)))
		}
		return err
	})
}

// dates waits until pod writer has written, which it has not yet when it is ready, and
// returns this many lines.
func (r *reader) dates(count int) (text string) {
	r.Helper()
	r.until(fmt.Sprintf("%d dates", count), func(ctx context.Context) (err error) {
		text, err = testCluster.Kubectl(ctx, "", "-n", r.name, "exec", "writer", "--", "cat", "/data/dates")
		if err == nil && strings.Count(text, "\n") != count {
			err = fmt.Errorf("the pod sees %q", text)
		}
		return err
	})
	return text
}

// importVendor imports the image of the page's program, with what its Dockerfile installs: the
// programs of cleat's image, and losetup of this machine.
func importVendor(t *testing.T, dir string) {
	t.Helper()
	program := example.New(t).Build(t)
	base, _, err := image.Base(t.Context(), image.Default, runtime.GOARCH, "", nil)
	testkit.Must(t, err)
	losetup := testkit.Value(exec.LookPath("losetup"))(t)
	files := []oci.File{
		{Path: "/usr/bin/acme-csi", Mode: 0o755, Content: oci.HostFile(program)},
		{Path: "/usr/sbin/losetup", Mode: 0o755, Content: oci.HostFile(losetup)},
	}
	for line := range strings.Lines(testkit.Run(t, "ldd", losetup)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[0], "libsmartcols.") {
			files = append(files, oci.File{Path: "/usr" + fields[2], Mode: 0o644, Content: oci.HostFile(fields[2])})
		}
	}
	archive := filepath.Join(dir, "acme.tar")
	testkit.Must(t, cluster.WriteImages(archive, oci.Image{
		Reference: vendorImage, Layers: []oci.Layer{oci.FileLayer(base...), oci.FileLayer(files...)}, Entrypoint: []string{"/usr/bin/acme-csi"},
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
	}), testCluster.Import(t.Context(), archive))
}
