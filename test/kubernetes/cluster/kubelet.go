package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StartKubelet starts the kubelet and returns when the node is ready.
func (c *Cluster) StartKubelet(ctx context.Context) error {
	if err := c.writeKubeletConfig(); err != nil {
		return err
	}
	began := time.Now()
	p, err := c.Start("kubelet", c.Programs.Path("kubelet"), nil, c.kubeletArgs()...)
	if err != nil {
		return err
	}
	c.kubelet = p
	if err := c.await(ctx, "the node's readiness", p, func(ctx context.Context) (bool, error) { return c.readySince(ctx, c.Node, began) }); err != nil {
		return err
	}
	return c.await(ctx, "the kubelet's list of pods", p, c.hasAllPods)
}

func (c *Cluster) kubeletConfigPath() string { return filepath.Join(c.Dir, "kubelet.yaml") }

func (c *Cluster) writeKubeletConfig() error {
	return os.WriteFile(c.kubeletConfigPath(), []byte(c.kubeletConfig()), 0o644)
}

func (c *Cluster) kubeletArgs() []string {
	labels := ""
	if key := c.site.mark(); key != "" {
		labels = key + "=true"
	}
	return []string{"--config=" + c.kubeletConfigPath(), "--kubeconfig=" + c.keys.path(c.Node+".conf"),
		"--hostname-override=" + c.Node, "--node-ip=" + nodeAddress(c.site.Node), "--node-labels=" + labels, "--root-dir=/var/lib/kubelet"}
}

// hasAllPods reports whether the kubelet lists every pod of its node. A
// restarted kubelet is ready earlier, and cannot run commands in pods that it
// does not list yet.
func (c *Cluster) hasAllPods(ctx context.Context) (bool, error) {
	want, err := c.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + c.Node})
	if err != nil {
		return false, err
	}
	text, err := c.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(c.Node).SubResource("proxy").Suffix("pods").Do(ctx).Raw()
	if err != nil {
		return false, err
	}
	var got corev1.PodList
	if err := json.Unmarshal(text, &got); err != nil {
		return false, fmt.Errorf("the kubelet's pods: %w", err)
	}
	for _, pod := range want.Items {
		if !slices.ContainsFunc(got.Items, func(p corev1.Pod) bool { return p.UID == pod.UID }) && pod.DeletionTimestamp == nil {
			return false, fmt.Errorf("the kubelet does not list pod %s yet", pod.Name)
		}
	}
	return true, nil
}

// StopKubelet stops the kubelet; pods continue to run.
func (c *Cluster) StopKubelet() error {
	if c.kubelet == nil {
		return errors.New("no kubelet was started")
	}
	return c.kubelet.Stop()
}

// RestartKubelet stops the kubelet, by SIGKILL if kill, and starts it again.
func (c *Cluster) RestartKubelet(ctx context.Context, kill bool) error {
	if kill {
		c.kubelet.Kill()
	} else if err := c.StopKubelet(); err != nil {
		return err
	}
	return c.StartKubelet(ctx)
}

// kubeletConfig returns a production configuration, except for what this
// machine lacks (CAP_SYS_RESOURCE, perhaps swap, perhaps cgroups version 2) and
// for shorter intervals and disk thresholds.
func (c *Cluster) kubeletConfig() string {
	taints := "[]"
	if key := c.site.mark(); key != "" {
		taints = fmt.Sprintf("[{key: %s, value: \"true\", effect: NoSchedule}]", key)
	}
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[2]s}}
authorization: {mode: Webhook}
tlsCertFile: %[3]s
tlsPrivateKeyFile: %[4]s
cgroupDriver: cgroupfs
cgroupRoot: /%[5]s
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix://%[6]s
enforceNodeAllocatable: [pods]
makeIPTablesUtilChains: false
evictionHard: {memory.available: 100Mi, nodefs.available: "1%%", imagefs.available: "1%%", nodefs.inodesFree: "1%%"}
imageGCHighThresholdPercent: 100
imageMaximumGCAge: 0s
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
volumeStatsAggPeriod: 10s
volumePluginDir: %[7]s
maxPods: 250
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
serializeImagePulls: false
registryPullQPS: 0
registerWithTaints: %[8]s
`, nodeAddress(c.site.Node), c.keys.path("ca.crt"), c.keys.path(c.Node+"-server.crt"), c.keys.path(c.Node+"-server.key"), c.site.nodeCgroup(),
		runtimeSocket, filepath.Join(c.Dir, "flexvolumes"), taints)
}
