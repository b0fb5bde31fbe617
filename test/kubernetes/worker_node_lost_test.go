package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// farRelease is a driver with csi.mode controller whose controller and node
// plugin run only on the added node.
var farRelease = release{name: "far", bothNodes: true, values: `
csi:
  driverName: far.cleat.dev
  mode: controller
  nodeSelector: {cleat.dev/added: "true"}
  controller:
    nodeSelector: {cleat.dev/added: "true"}
    tolerations: [{key: cleat.dev/added, operator: Exists}]
  topology: {zone: a}
  pool: {image: 512MiB, overprovisionRatio: 100}
  storageClasses:
  - {name: far, fsType: ext4}
`}

const farDriver = "far.cleat.dev"

// web is a StatefulSet of one pod, which runs on the node of its volume.
const web = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{key: cleat.dev/added, operator: Exists}]
      containers:
      - name: c
        image: cleat.local/busybox:local
        imagePullPolicy: Never
        command: [/bin/sh, -c, "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      storageClassName: pair-ext4
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 32Mi}}
`

// drained drains the added node as documented. The pod with a local volume
// waits for the node and then finds its data.
func (s *twoNodes) drained() {
	s.claim("data-web-0", claim{class: "pair-ext4", size: "32Mi"})
	s.run("first", pod{mounts: map[string]string{"/data": "data-web-0"}, change: on(s.added.Name)})
	s.exec("first", "echo kept >/data/a; sync")
	s.drop("first")
	s.apply(web)
	s.running("web-0")
	volume := s.bound("data-web-0")

	commands := strings.Split(s.documented("Drain a node", 1)[0], "\n")
	s.sh(commands[0])
	s.pending("web-0", "didn't match PersistentVolume's node affinity")
	if now := s.bound("data-web-0"); now.UID != volume.UID {
		s.Errorf("the drain replaced volume %s with %s", volume.Name, now.Name)
	}
	if _, err := os.Stat(s.added.Path(fileOf(volume))); err != nil {
		s.Error(err)
	}
	s.sh(commands[1])
	s.running("web-0")
	s.reads("web-0", "cat /data/a", "kept")
}

// documented returns the shell blocks of a section of docs/day2.md, adapted to
// the added node.
func (s *twoNodes) documented(section string, count int) []string {
	s.Helper()
	blocks := s.blocks("docs/day2.md", section, "sh", count)
	for i := range blocks {
		blocks[i] = strings.NewReplacer("node-1", s.added.Name, "node-7", s.added.Name).Replace(blocks[i])
	}
	return blocks
}

// lost powers the added node off while pods write, follows the documented
// steps, and boots the node: all acknowledged records exist.
func (s *twoNodes) lost() {
	w := newWorkload(s.space)
	o := &writer{name: "writer", mounts: map[string]string{"/files": "files"}, devices: map[string]string{"/dev/raw": "raw"},
		targets: map[string]string{"files": "/files/records", "raw": "/dev/raw"}, place: on(s.added.Name)}
	w.claim("files", claim{class: "pair-xfs", size: "320Mi"})
	w.claim("raw", claim{class: "pair-xfs", size: "32Mi", block: true})
	w.add(o)
	attached := pod{mounts: map[string]string{"/data": "attached"}, change: on(s.added.Name)}
	s.claim("attached", claim{class: "far", size: "16Mi"})
	s.run("attached", attached)
	s.exec("attached", "echo kept >/data/a; sync")
	if all := s.attachments(pairDriver); len(all) > 0 {
		s.Errorf("a driver on each node must have no attachments, got %v", all)
	}
	volume := s.bound("attached")

	lost := true
	s.Cleanup(func() { // the deletion of the namespace needs the node
		if lost {
			if err := s.added.Boot(context.Background()); err != nil {
				s.Error(err)
			}
		}
	})
	testkit.Must(w, s.added.PowerOff(s.Context()))
	s.until("the node is not ready", func(ctx context.Context) error { return notReady(ctx, s.added.Name) })
	s.why("pod/attached", "node "+s.added.Name+". The node is not ready since", "A node is lost (docs/day2.md#a-node-is-lost)")
	steps := s.documented("A node is lost", 9)[3:] // those of the local pool
	s.sh(steps[0])
	s.until("deletion of the node's pods", func(ctx context.Context) error { return s.noPodsOn(ctx, s.added.Name) })
	s.releaseAttachment(volume.Name, steps[1])

	testkit.Must(w, s.added.Boot(s.Context()))
	lost = false
	s.sh(steps[5])
	s.running("web-0")
	s.reads("web-0", "cat /data/a", "kept")
	o.name += "-again"
	w.startWriter(o)
	w.running(o.name)
	w.advances()
	testkit.Must(w, w.intact(s.Context()))
	s.run("attached-again", attached)
	s.reads("attached-again", "cat /data/a", "kept")
}

// releaseAttachment follows the documented step for a VolumeAttachment whose
// attacher was on the lost node: the taint alone does not remove it.
func (s *twoNodes) releaseAttachment(volume, step string) {
	s.Helper()
	var name string
	s.until("deletion timestamp of the attachment", func(context.Context) error {
		for _, a := range s.attachments(farDriver) {
			if *a.Spec.Source.PersistentVolumeName == volume && a.DeletionTimestamp != nil && len(a.Finalizers) > 0 {
				name = a.Name
				return nil
			}
		}
		return errors.New("not set")
	})
	s.sh(strings.ReplaceAll(step, "csi-5f1d2c", name))
	s.until("deletion of the attachment", func(context.Context) error {
		if all := s.attachments(farDriver); len(all) > 0 {
			return fmt.Errorf("got attachments %v", all)
		}
		return nil
	})
}

func (s *twoNodes) attachments(driver string) []storagev1.VolumeAttachment {
	s.Helper()
	all := testkit.Value(testCluster.Client.StorageV1().VolumeAttachments().List(s.Context(), metav1.ListOptions{}))(s)
	return slices.DeleteFunc(all.Items, func(a storagev1.VolumeAttachment) bool { return a.Spec.Attacher != driver })
}

// noPodsOn returns an error while the namespace has pods on a node.
func (s *twoNodes) noPodsOn(ctx context.Context, node string) error {
	pods, err := testCluster.Client.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err == nil && len(pods.Items) > 0 {
		err = fmt.Errorf("pod %s is not deleted", pods.Items[0].Name)
	}
	return err
}

func notReady(ctx context.Context, name string) error {
	node, err := testCluster.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			return nil
		}
	}
	return fmt.Errorf("its conditions are %v", node.Status.Conditions)
}
