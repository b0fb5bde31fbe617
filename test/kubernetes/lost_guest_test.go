package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/takeover"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
)

const (
	lostDriver  = "lost.cleat.dev"
	lostAddress = "10.96.0.71" // of the controller's fence service
)

// lostRelease is a driver of Ceph volumes and the takeover of lost nodes.
var lostRelease = release{name: "lost", placed: true, values: `
csi:
  engine: ceph
  mode: controller
  driverName: ` + lostDriver + `
  metricsPort: 29831
  ceph: {clusterID: test, pools: [` + cephPool + `], configMap: lost-csi-config, controllerSecret: lost-controller, nodeSecret: lost-node}
  nodeSelector: {` + cluster.OwnKernel + `: "true"}
  addons: {enabled: true}
  fence: {tlsSecret: lost}
  controller: {nodeSelector: {kubernetes.io/hostname: node-1}}
  storageClasses: [{name: lost, fsType: ext4}]
takeover:
  enabled: true
  tlsSecret: lost
  nodeSelector: {kubernetes.io/hostname: node-1}
  coverage:
    drivers: [{driver: ` + lostDriver + `, backend: ceph}]
    backends: [{name: ceph, endpoint: "` + lostAddress + `:9071"}]
extraDeploy:
- apiVersion: v1
  kind: Service
  metadata: {name: lost-fence, namespace: cleat-system}
  spec:
    clusterIP: ` + lostAddress + `
    selector: {app.kubernetes.io/instance: lost, app.kubernetes.io/component: csi-controller}
    ports: [{port: 9071}]
`}

// logSet writes a log on a volume, on one of the guests.
const logSet = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: log}
spec:
  serviceName: log
  selector: {matchLabels: {app: log}}
  template:
    metadata: {labels: {app: log}}
    spec:
      terminationGracePeriodSeconds: 1
      hostNetwork: true # guests have no network of pods
      nodeSelector: {cleat.dev/own-kernel: "true"}
      tolerations: [{key: cleat.dev/own-kernel, operator: Exists}]
      containers:
      - name: c
        image: cleat.local/logger:local
        imagePullPolicy: Never
        command: [/bin/sh, -c, "exec /logger /data/log"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      storageClassName: lost
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 256Mi}}
`

// lostCase is a StatefulSet that logs on one of two guests.
type lostCase struct {
	*cephCase
	guests map[string]*guest // by name
}

// A node is disconnected while it writes on. Its pod continues on the other
// node after the takeover, without a gap in what was acknowledged. When the network
// returns, nothing changes. After a reboot the node works again.
func TestLostGuest(t *testing.T) {
	t.Parallel()
	c := &lostCase{cephCase: &cephCase{addons: &addons{&space{T: t}}}, guests: map[string]*guest{}}
	c.cluster = cephtest.Start(t, cephtest.Options{Addr: netip.MustParseAddr("10.99.0.1")})
	testkit.Must(t, c.cluster.CreatePool(cephPool))
	for _, g := range newGuests(c.space, 2) {
		c.guests[g.Name] = g
	}
	c.certificates("lost", lostAddress)
	c.installAs(lostRelease, c.cluster.LegacyMonitors())
	c.space = newSpace(t) // ends before what its volumes need
	c.apply(logSet)
	c.running("log-0")
	c.advances("log-0")

	lost := c.guests[c.nodeOf("log-0")]
	c.takeover(lost)
	next := c.guests[c.nodeOf("log-0")]
	if next == lost {
		t.Fatalf("the pod is on %s again", lost.Name)
	}
	last := c.acknowledged(lost)
	if from := c.continued("log-0"); from != last && from != last+1 { // the next one was on its way
		t.Errorf("the log continues after record %d, the last one on the lost node was %d", from, last)
	}
	c.intact("log-0", last)

	certified := c.remediation(lost).Status.Certificate.Digest
	lost.connect()
	c.returned(lost)
	if r := c.remediation(lost); r == nil || r.Status.Certificate == nil || r.Status.Certificate.Digest != certified || r.Status.Release != nil {
		t.Errorf("the network has returned, and the remediation is %+v", r)
	}
	if got := c.blocklist(); strings.Join(got, " ") != lost.Address.String()+":0/0" {
		t.Errorf("the network has returned, and the blocklist has %q", got)
	}
	if err := c.isReleased(t.Context(), lost); err == nil {
		t.Error("the network has returned, and the node is neither cordoned nor tainted")
	}
	if now := c.acknowledged(lost); now != last {
		t.Errorf("the lost node had record %d after its fence, and then %d", last, now)
	}
	c.intact("log-0", last)

	c.rebooted(lost, next)
	if got := c.blocklist(); len(got) > 0 {
		t.Errorf("the node is released, and the blocklist has %q", got)
	}
	c.kubectl("delete", "statefulset/log", "pvc/data-log-0", "--wait", "--timeout=3m")
	c.until("deletion of the volume", c.volumesGone)
	c.kubectl("-n", system, "delete", "storagefenceremediation", lost.Name, "--wait", "--timeout=1m")
}

// rebooted: after a reboot the node is as before its loss, and continues the log.
func (c *lostCase) rebooted(lost, next *guest) {
	c.Helper()
	began := time.Now()
	lost.reboot()
	c.until("the release of "+lost.Name, func(ctx context.Context) error { return c.isReleased(ctx, lost) })
	c.Logf("REPORT: takeover: %s works %.1f s after the begin of its reboot", lost.Name, time.Since(began).Seconds())
	c.kubectl("cordon", next.Name)
	before := c.acknowledged(next)
	c.kubectl("delete", "pod", "log-0")
	c.until("the pod on the rebooted node", func(ctx context.Context) error {
		p, err := testCluster.Client.CoreV1().Pods(c.name).Get(ctx, "log-0", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName != lost.Name {
			err = fmt.Errorf("it is on %q", p.Spec.NodeName)
		}
		return err
	})
	c.running("log-0")
	c.advances("log-0")
	c.intact("log-0", before)
}

// cleat runs a command as the administrator.
func (c *lostCase) cleat(args ...string) {
	c.Helper()
	args = append(args, "--namespace", system, "--kubeconfig", testCluster.Kubeconfig)
	out, err := exec.CommandContext(c.Context(), filepath.Join(testCluster.Dir, "bin", "cleat"), args...).CombinedOutput()
	if err != nil {
		c.Fatalf("cleat %q: %v: %s", args, err, out)
	}
}

// advances waits for new records in the log of the pod.
func (c *lostCase) advances(pod string) {
	c.Helper()
	var first uint64
	c.until("new records of "+pod, func(ctx context.Context) error {
		last, err := c.lastRecord(ctx, pod)
		if err != nil {
			return err
		}
		if first == 0 {
			first = last
		}
		if last < first+20 {
			return fmt.Errorf("the last record is %d", last)
		}
		return nil
	})
}

// lastRecord is the last one that the pod has printed.
func (c *lostCase) lastRecord(ctx context.Context, pod string) (uint64, error) {
	lines := int64(1)
	text, err := testCluster.Client.CoreV1().Pods(c.name).GetLogs(pod, &corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	var number uint64
	var at int64
	if _, err := fmt.Sscan(string(text), &number, &at); err != nil {
		return 0, fmt.Errorf("the pod prints %q", text)
	}
	return number, nil
}

// acknowledged is the last record that the pod has printed on a node, read there.
func (c *lostCase) acknowledged(g *guest) uint64 {
	c.Helper()
	text := testkit.Value(g.kernel.Guest.Run(c.Context(), "sh", "-c", "cat /var/log/pods/"+c.name+"_log-0_*/c/*.log | grep 'stdout F [0-9]' | tail -n 1"))(c)
	var when, stream, tag string
	var number uint64
	if _, err := fmt.Sscan(text, &when, &stream, &tag, &number); err != nil {
		c.Fatalf("the last record on %s: %q: %v", g.Name, text, err)
	}
	return number
}

// continued is the record after which the pod has continued the log.
func (c *lostCase) continued(pod string) (number uint64) {
	c.Helper()
	first, _, _ := strings.Cut(c.kubectl("logs", pod), "\n")
	if _, err := fmt.Sscanf(first, "continues after %d", &number); err != nil {
		c.Fatalf("the first line of %s is %q: %v", pod, first, err)
	}
	return number
}

// intact: the log is without a gap, and has more than those records.
func (c *lostCase) intact(pod string, records uint64) {
	c.Helper()
	out := c.kubectl("exec", pod, "--", "/logger", "-check", "/data/log")
	var number uint64
	if _, err := fmt.Sscanf(out, "continues after %d", &number); err != nil || number <= records {
		c.Errorf("the log of %s: %q, %v; want more than %d records", pod, out, err, records)
	}
}

func (c *lostCase) remediation(g *guest) *takeover.Remediation {
	c.Helper()
	for _, r := range testkit.Value(takeover.Of(c.Context(), testCluster.Dynamic, system, g.Name))(c) {
		return r
	}
	return nil
}

// scene is what a takeover changes.
type scene struct {
	node        *corev1.Node
	remediation *takeover.Remediation
	pod         *corev1.Pod
	attached    map[string]bool // by node
	records     bool            // of the next pod
}

func (c *lostCase) scene(ctx context.Context, lost *guest, old *corev1.Pod) (s scene, err error) {
	if s.node, err = testCluster.Client.CoreV1().Nodes().Get(ctx, lost.Name, metav1.GetOptions{}); err != nil {
		return s, err
	}
	all, err := takeover.Of(ctx, testCluster.Dynamic, system, lost.Name)
	if err != nil {
		return s, err
	}
	s.remediation = &takeover.Remediation{}
	if len(all) > 0 {
		s.remediation = all[0]
	}
	s.pod, err = testCluster.Client.CoreV1().Pods(c.name).Get(ctx, old.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return s, err
	}
	attachments, err := testCluster.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	s.attached = attachedBy(attachments.Items, lostDriver)
	if s.pod.UID != old.UID && s.pod.Status.Phase == corev1.PodRunning {
		number, err := c.lastRecord(ctx, old.Name)
		s.records = err == nil && number > 0
	}
	return s, nil
}

// attachedBy returns the nodes that have attachments of a driver, and whether they
// are attached.
func attachedBy(all []storagev1.VolumeAttachment, driver string) map[string]bool {
	nodes := map[string]bool{}
	for _, a := range all {
		if a.Spec.Attacher == driver {
			nodes[a.Spec.NodeName] = a.Status.Attached
		}
	}
	return nodes
}

// takeover disconnects the node, starts the takeover when it is NotReady, as
// NodeHealthCheck does, and prints where the time goes.
func (c *lostCase) takeover(lost *guest) {
	c.Helper()
	old := testkit.Value(testCluster.Client.CoreV1().Pods(c.name).Get(c.Context(), "log-0", metav1.GetOptions{}))(c)
	lost.disconnect()
	disconnected := time.Now()
	c.until("the node is not ready", func(ctx context.Context) error { return notReady(ctx, lost.Name) })
	began := time.Now()
	c.Logf("REPORT: takeover: NotReady %.1f s after the loss", began.Sub(disconnected).Seconds())
	c.cleat("takeover", "start", lost.Name)
	steps := []struct {
		name string
		is   func(scene) bool
	}{
		{"cordoned", func(s scene) bool { return s.node.Spec.Unschedulable }},
		{"recorded", func(s scene) bool { return s.remediation.Status.Record != nil }},
		{"intent", func(s scene) bool { return s.remediation.Status.Intent != nil }},
		{"certificate", func(s scene) bool { return s.remediation.Status.Certificate != nil }},
		{"tainted", func(s scene) bool { return isTainted(s.node) }},
		{"old pod deleted", func(s scene) bool { return s.pod.UID != old.UID }},
		{"new pod scheduled", func(s scene) bool { return s.pod.UID != old.UID && s.pod.Spec.NodeName != "" }},
		{"old attachment gone", func(s scene) bool { _, has := s.attached[lost.Name]; return !has }},
		{"new attachment", func(s scene) bool { return s.pod.UID != old.UID && s.attached[s.pod.Spec.NodeName] }},
		{"new pod runs", func(s scene) bool { return s.pod.UID != old.UID && s.pod.Status.Phase == corev1.PodRunning }},
		{"first record", func(s scene) bool { return s.records }},
	}
	seen := make([]bool, len(steps))
	last := began
	c.until("the takeover", func(ctx context.Context) error {
		now, err := c.scene(ctx, lost, old)
		if err != nil {
			return err
		}
		var missing []string
		for i, step := range steps {
			switch {
			case seen[i]:
			case step.is(now):
				at := time.Now()
				c.Logf("REPORT: takeover: %-20s at %5.1f s (+%.1f s)", step.name, at.Sub(began).Seconds(), at.Sub(last).Seconds())
				seen[i], last = true, at
			default:
				missing = append(missing, step.name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("not yet %q; the remediation's conditions are %+v", missing, now.remediation.Status.Conditions)
		}
		return nil
	})
	c.Logf("REPORT: takeover: the pod writes %.1f s after NotReady", time.Since(began).Seconds())
}

func isTainted(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

// returned waits until the node is Ready again and its kubelet has ended the old pod.
func (c *lostCase) returned(lost *guest) {
	c.Helper()
	c.until("the node is ready again", func(ctx context.Context) error {
		if err := notReady(ctx, lost.Name); err == nil {
			return errors.New("it is not ready")
		}
		return nil
	})
	c.until("the end of the old pod", func(ctx context.Context) error {
		out, err := lost.kernel.Guest.Run(ctx, "sh", "-c", "grep -l '[/]logger' /proc/[0-9]*/cmdline 2>/dev/null || true")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("its processes are %s", out)
		}
		return err
	})
}

// isReleased returns an error while the node is not as before its loss.
func (c *lostCase) isReleased(ctx context.Context, lost *guest) error {
	node, err := testCluster.Client.CoreV1().Nodes().Get(ctx, lost.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if node.Spec.Unschedulable || isTainted(node) {
		return fmt.Errorf("unschedulable is %t, and the taints are %v", node.Spec.Unschedulable, node.Spec.Taints)
	}
	return nil
}
