// Package kubernetes tests cleat's chart and image in a real Kubernetes with
// unmodified kubelet, API server, scheduler, sidecars and Helm. All tests share
// a cluster of one node (package cluster), to which TestTwoNodes adds a second.
// Each test has its own namespace.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/deploy/image"
	"github.com/cleatproject/cleat/deploy/image/oci"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/kubernetes/programs"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// testCluster is the cluster of this process, created before the tests.
var testCluster *cluster.Cluster

// sidecars are the programs that run in pods, with their image names.
var sidecars = map[string]string{
	"csi-provisioner":     "cleat.local/csi-provisioner:local",
	"csi-attacher":        "cleat.local/csi-attacher:local",
	"csi-resizer":         "cleat.local/csi-resizer:local",
	"csi-snapshotter":     "cleat.local/csi-snapshotter:local",
	"csi-addons-sidecar":  "cleat.local/csi-addons-sidecar:local",
	"snapshot-controller": "cleat.local/snapshot-controller:local",
}

const (
	cleatImage   = "cleat.local/cleat:local"
	cephImage    = "cleat.local/cleat-ceph:local"
	busyboxImage = "cleat.local/busybox:local"
)

func TestMain(m *testing.M) {
	cluster.Main(m, cluster.Setup{
		Programs: []string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller", "csi-addons-sidecar", "csi-addons-manager", "agnhost", "sample-device-plugin", "e2e.test"},
		Outside:  makeImages,
		Inside:   install,
		Finish:   uninstall,
	})
}

// makeImages writes the archives that install imports. cleat is built from this
// tree into the image that users get.
func makeImages(ctx context.Context, dir string, set programs.Set) error {
	binary := filepath.Join(dir, "bin", "cleat")
	if err := testkit.BuildTo(ctx, binary, testkit.Cleat); err != nil {
		return err
	}
	if err := image.Build(ctx, image.Options{Output: filepath.Join(dir, "cleat.tar"), Reference: cleatImage, Binary: binary, Log: os.Stderr}); err != nil {
		return fmt.Errorf("build the image of cleat: %w", err)
	}
	if err := buildCeph(ctx, dir); err != nil {
		return err
	}
	if err := buildSNAP(ctx, dir); err != nil {
		return err
	}
	busybox, err := cluster.BusyboxImage(ctx, busyboxImage, "/bin/sh")
	if err != nil {
		return err
	}
	if err := prepareGuests(ctx); err != nil {
		return err
	}
	if soak.Enabled {
		if err := sabotagedImage(ctx, dir); err != nil {
			return err
		}
	}
	writer, err := writingImage(ctx, dir)
	if err != nil {
		return err
	}
	if err := loggingImage(ctx, dir); err != nil {
		return err
	}
	manager, err := addonsManager(ctx, dir, set)
	if err != nil {
		return err
	}
	all := []oci.Image{busybox, writer, manager}
	for name, reference := range sidecars {
		all = append(all, cluster.ProgramImage(reference, set.Path(name)))
	}
	return cluster.WriteImages(filepath.Join(dir, "others.tar"), all...)
}

// install does the cluster administrator's part: images, the CRDs of CSI-Addons,
// and two releases of the chart: a driver on each node, with the cluster's
// snapshot-controller, and one with a controller.
func install(ctx context.Context, c *cluster.Cluster) error {
	testCluster = c
	for _, archive := range []string{"cleat.tar", cephArchive, "others.tar"} {
		if err := c.Import(ctx, filepath.Join(c.Dir, archive)); err != nil {
			return err
		}
	}
	files, err := c.Programs.CRDs("csi-addons")
	if err != nil {
		return err
	}
	args := []string{"apply", "--server-side"}
	for _, f := range files {
		args = append(args, "-f", f)
	}
	if _, err := c.Kubectl(ctx, "", args...); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
		return err
	}
	for _, r := range releases {
		if err := r.install(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// uninstall removes the releases and checks that nothing is left on the node.
func uninstall(ctx context.Context, c *cluster.Cluster) error {
	var failed []error
	for _, r := range releases {
		failed = append(failed, r.uninstall(ctx, c))
	}
	return errors.Join(append(failed, checkNothingLeft(ctx, c))...)
}
