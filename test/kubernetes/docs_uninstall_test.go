package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/testkit"
	cleatvolume "github.com/cleatproject/cleat/volume"
)

// nodes is the page's command that lists the nodes; the test has a pool on one.
var nodes = regexp.MustCompile(`\$\(kubectl get nodes[^)]*\)`)

// The documented pool removal refuses while a raw block volume is attached,
// reports it as documented, and finally leaves nothing.
func TestDocsUninstall(t *testing.T) {
	t.Parallel()
	const driver = "docs.cleat.dev" // csi.cleat.dev is used by other tests
	r := newReader(t)
	own := strings.NewReplacer("csi.cleat.dev", driver, "cleat.local/cleat:0.1.0", cleatImage, "busybox:1.36", busyboxImage, "cleat-system", r.name)
	steps := r.blocks("docs/install.md", "Uninstall", "sh", 4)
	r.write("remove-pool.yaml", own.Replace(r.blocks("docs/install.md", "Uninstall", "yaml", 1)[0]))
	apply, remove, found := strings.Cut(nodes.ReplaceAllString(own.Replace(steps[1]), testCluster.Node), "done\n")
	if !found || !nodes.MatchString(steps[1]) {
		t.Fatalf("the commands of the page have changed:\n%s", steps[1])
	}
	apply += "done\n"

	dir := filepath.Join("/var/lib/cleat", driver)
	c := local.Config{Pool: filepath.Join(dir, "storage/pool"), Image: mkfs.MinSize(mkfs.XFS), StateDir: filepath.Join(dir, "state")}
	t.Cleanup(func() { // if the test failed
		if _, err := local.Remove(context.Background(), c, local.RemoveOptions{DeleteVolumes: true}); err == nil {
			_ = os.RemoveAll(dir)
		}
	})
	d, v := attached(t, c)
	r.sh(apply)
	r.until("phase Failed of the pod", func(ctx context.Context) error { return podIs(ctx, r.name, corev1.PodFailed) })
	if why := r.sh(own.Replace(steps[2])); !strings.Contains(why, string(v)) || !strings.Contains(why, filepath.Base(d.Path)) {
		t.Errorf("the page's command has no reason for volume %s on %s:\n%s", v, d.Path, why)
	}
	testkit.Must(t, loop.Detach(t.Context(), d))
	for _, permitted := range []bool{false, true} {
		r.sh("kubectl delete pod -l app=remove-pool")
		want := corev1.PodFailed // the volume has data
		if permitted {
			manifest := own.Replace(r.blocks("docs/install.md", "Uninstall", "yaml", 1)[0])
			r.write("remove-pool.yaml", strings.Replace(manifest, "[pool, remove,", "[pool, remove, --delete-volumes,", 1))
			want = corev1.PodSucceeded
		}
		r.sh(apply)
		r.until("pod in phase "+string(want), func(ctx context.Context) error { return podIs(ctx, r.name, want) })
	}
	r.sh(remove)
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

// attached creates a pool with an attached raw block volume, without a driver.
func attached(t *testing.T, c local.Config) (loop.Device, cleatvolume.ID) {
	t.Helper()
	e := testkit.Value(local.Open(t.Context(), c))(t)
	v, err := e.Create(t.Context(), cleatvolume.CreateRequest{Name: "v", Content: cleatvolume.Raw, Size: cleatvolume.SizeRange{Required: 1 << 20}})
	if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	testkit.Must(t, err)
	f := testkit.Value(os.OpenFile(filepath.Join(c.Pool, "volumes", string(v.ID)), os.O_RDWR, 0))(t)
	defer f.Close()
	d, device, err := loop.Attach(t.Context(), loop.Config{File: f})
	testkit.Must(t, err)
	device.Close()
	t.Cleanup(func() { _ = loop.Detach(context.Background(), d) })
	return d, v.ID
}

// podIs reports whether the only pod of a namespace is in a phase.
func podIs(ctx context.Context, namespace string, phase corev1.PodPhase) error {
	pods, err := testCluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) != 1 || pods.Items[0].Status.Phase != phase {
		return fmt.Errorf("got pods %+v", pods.Items)
	}
	return nil
}
