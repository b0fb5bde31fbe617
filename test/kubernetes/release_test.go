package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
)

// chart is the path of this tree's chart from the tests' working directory.
const chart = "../../deploy/chart"

const system = "cleat-system"

// release is an installation of the chart.
type release struct {
	name   string
	values string // YAML, in addition to the images of this machine
	// bothNodes allows its DaemonSets on the node of TestTwoNodes.
	bothNodes bool
	// placed: its values say where its DaemonSets run.
	placed bool
}

// images are the values for the images that install imports.
const images = `
image: {repository: cleat.local/cleat, tag: local, pullPolicy: Never}
csi: {ceph: {image: {repository: cleat.local/cleat-ceph, tag: local, pullPolicy: Never}}}
sidecars:
  provisioner: {repository: cleat.local/csi-provisioner, tag: local, pullPolicy: Never}
  resizer: {repository: cleat.local/csi-resizer, tag: local, pullPolicy: Never}
  snapshotter: {repository: cleat.local/csi-snapshotter, tag: local, pullPolicy: Never}
  attacher: {repository: cleat.local/csi-attacher, tag: local, pullPolicy: Never}
  addons: {repository: cleat.local/csi-addons-sidecar, tag: local, pullPolicy: Never}
snapshotController: {image: {repository: cleat.local/snapshot-controller, tag: local, pullPolicy: Never}}
`

// firstNode are the values that keep DaemonSets off additional nodes: they
// tolerate every taint.
const firstNode = `
csi: {nodeSelector: {kubernetes.io/hostname: node-1}}
sriov:
  plugin: {nodeSelector: {kubernetes.io/hostname: node-1}}
  daemon: {nodeSelector: {kubernetes.io/hostname: node-1}}
`

// nodesHere keeps DaemonSets off nodes that are guests, which have other images.
const nodesHere = `
csi:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: ` + cluster.OwnKernel + `, operator: DoesNotExist}]}]
`

// releases are installed during all tests. The first one brings snapshot-controller
// and the CRDs of snapshots, and has most options of the chart.
var releases = []release{
	{name: "local", values: `
commonLabels: {example.com/owner: storage}
csi:
  pool: {image: 4GiB, overprovisionRatio: 100}
  snapshots: {enabled: true}
  storageClasses:
  - {name: local-xfs, fsType: xfs}
  - name: local-ext4
    fsType: ext4
    allowedTopologies: [{matchLabelExpressions: [{key: topology.cleat.dev/node, values: [node-1]}]}]
  volumeSnapshotClasses:
  - {name: local}
  updateStrategy: {rollingUpdate: {maxUnavailable: 100%}}
  livenessProbe: {initialDelaySeconds: 5, periodSeconds: 10}
  extraVolumes: [{name: extra, emptyDir: {}}]
  extraInitContainers:
  - {name: before, image: cleat.local/busybox:local, imagePullPolicy: Never, command: [/bin/sh, -c, "echo before >/extra/a"], volumeMounts: [{name: extra, mountPath: /extra}]}
  extraContainers:
  - {name: beside, image: cleat.local/busybox:local, imagePullPolicy: Never, command: [/bin/sh, -c, "cat /extra/a && exec sleep 1000000"], resources: {requests: {memory: 8Mi}, limits: {memory: 16Mi}}, volumeMounts: [{name: extra, mountPath: /extra}]}
  placement:
    replicaCount: 2
    updateStrategy: {type: RollingUpdate}
    serviceAccount: {name: local-placement, annotations: {example.com/owner: storage}}
snapshotController:
  enabled: true
  groupSnapshots: true # for the other release
  logVerbosity: 4
sidecars: {provisioner: {logVerbosity: 5}}
extraDeploy:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-extra", namespace: "{{ .Release.Namespace }}"}}
`},
	{name: "single", values: `
csi:
  driverName: single.cleat.dev
  mode: controller
  nodeSelector: {kubernetes.io/hostname: node-1}
  controller: {nodeSelector: {kubernetes.io/hostname: node-1}}
  pool: {image: 2GiB, overprovisionRatio: 100}
  snapshots: {enabled: true}
  storageClasses:
  - {name: single-xfs, fsType: xfs}
  - {name: single-ext4, fsType: ext4}
  volumeSnapshotClasses:
  - {name: single}
  volumeGroupSnapshotClasses:
  - {name: single}
  volumeAttributesClasses:
  - {name: single-thick, parameters: {provisioning: thick}}
  - {name: single-trimmed, parameters: {provisioning: thin, trimInterval: 1h}}
`},
}

func (r release) install(ctx context.Context, c *cluster.Cluster, args ...string) error {
	files := map[string]string{"images": images, "nodes": firstNode, r.name: r.values}
	switch {
	case r.bothNodes:
		files["nodes"] = nodesHere
	case r.placed:
		files["nodes"] = ""
	}
	all := []string{"upgrade", "--install", r.name, chart, "--namespace", system, "--create-namespace", "--wait", "--timeout", waitTimeout.String()}
	for _, name := range []string{"images", "nodes", r.name} {
		// Own files of Helm: other tests can install at the same time.
		path := filepath.Join(c.Dir, "values-"+r.name+"-"+name+".yaml")
		if err := os.WriteFile(path, []byte(files[name]), 0o644); err != nil {
			return err
		}
		all = append(all, "--values", path)
	}
	if _, err := c.Helm(ctx, append(all, args...)...); err != nil {
		return fmt.Errorf("install release %s: %w\n%s", r.name, err, describePods(ctx, c, system))
	}
	return nil
}

func (r release) uninstall(ctx context.Context, c *cluster.Cluster) error {
	if _, err := c.Helm(ctx, "uninstall", r.name, "--namespace", system, "--wait", "--timeout", waitTimeout.String()); err != nil {
		return err
	}
	// The pods of a DaemonSet are deleted after it, with their grace period.
	return poll(ctx, func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + r.name})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("pod %s of release %s is not deleted", pods.Items[0].Name, r.name)
		}
		return err
	})
}

// describePods returns the pods of a namespace with events and logs, for
// failure messages.
func describePods(ctx context.Context, c *cluster.Cluster, namespace string) string {
	var b strings.Builder
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "--all-containers", "--ignore-errors", "--prefix", "--tail=15", "-l", "app.kubernetes.io/name=cleat"},
	} {
		out, err := c.Kubectl(ctx, "", append([]string{"-n", namespace}, args...)...)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
		b.WriteString(out)
	}
	return b.String()
}

// checkNothingLeft returns an error if volumes, mounts of pods or loop devices
// are left. It unmounts the pools in images, which stay mounted after the end
// of their driver by design.
func checkNothingLeft(ctx context.Context, c *cluster.Cluster) error {
	failed := []error{poolsEmpty("/")}
	pool, err := unmountPools(ctx)
	if err != nil {
		failed = append(failed, err)
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if pool[d.Path] {
			failed = append(failed, loop.Detach(ctx, d)) // no effect if it was detached by unmounting
		}
	}
	return errors.Join(failed...)
}

// poolsEmpty returns an error if the pools of a node have files; root is the
// node's root directory.
func poolsEmpty(root string) error {
	pools, err := filepath.Glob(filepath.Join(root, "var/lib/cleat/*/storage/pool"))
	failed := []error{err}
	for _, pool := range pools {
		for _, kind := range []string{"volumes", "snapshots", "incoming"} {
			files, err := os.ReadDir(filepath.Join(pool, kind))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, err)
			}
			for _, f := range files {
				failed = append(failed, fmt.Errorf("pool %s has left-over %s/%s", pool, kind, f.Name()))
			}
		}
	}
	return errors.Join(failed...)
}

// unmountPools unmounts the pools and returns their devices. A left-over mount
// of a volume is an error.
func unmountPools(ctx context.Context) (map[string]bool, error) {
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	devices := map[string]bool{}
	var failed []error
	for _, e := range table {
		switch {
		case strings.HasPrefix(e.Target, "/var/lib/kubelet/plugins/"):
			failed = append(failed, fmt.Errorf("left-over mount %s of %s", e.Target, e.Source))
		case strings.HasPrefix(e.Target, "/var/lib/cleat/"):
			devices[e.Source] = true
			failed = append(failed, retry.For(ctx, waitTimeout, func() (again bool, err error) { // another process can use it for a moment
				err = unix.Unmount(e.Target, 0)
				return errors.Is(err, unix.EBUSY), err
			}))
		}
	}
	return devices, errors.Join(failed...)
}
