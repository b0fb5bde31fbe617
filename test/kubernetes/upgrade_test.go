package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// rollout upgrades one release to another argument and restarts the pods of the
// other one, while claims and pods are created. Helm and kubectl wait for the
// end.
func (w *workload) rollout() {
	w.mustNotDisturb(func() {
		old, ends := map[driverProcess]int{}, []func() (observation, error){}
		for _, d := range driverProcesses() {
			pid := testkit.Value(d.pid())(w)
			old[d] = pid
			ends = append(ends, d.watch())
		}
		began := time.Now()
		upgraded := make(chan error, 1)
		go func() { upgraded <- releases[0].install(w.Context(), testCluster, "--set", "logLevel=debug") }()
		kinds := []string{"daemonset/single-cleat-csi-node", "deployment/single-cleat-csi-controller"}
		w.inSystem(append([]string{"rollout", "restart"}, kinds...)...)
		w.startOthers("rollout")
		for _, kind := range kinds {
			w.inSystem("rollout", "status", kind, "--timeout=150s")
		}
		testkit.Must(w, <-upgraded)
		w.Logf("Helm and kubectl are done after %.1f s", time.Since(began).Seconds())
		w.allReady(old)
		w.finishOthers("rollout")
		w.Logf("a claim created at the start is in use after %.1f s", time.Since(began).Seconds())
		for _, end := range ends {
			c, err := end()
			testkit.Must(w, errors.Join(err, c.oneAtATime()))
			w.Logf("driver %s %s: processes %v, silent for at most %.1f s", c.name, c.argument, c.served, c.silence.Seconds())
		}
		w.deleteOthers("rollout")
		w.awaitOthersDeleted("rollout")
	})
	changed := testkit.Value(processes(with("--log-level=debug", "--per-node")))(w)
	if len(changed) != 1 {
		w.Errorf("%d processes have the new argument, want one", len(changed))
	}
}

// rolledBack rolls the upgraded release back to its previous revision.
func (w *workload) rolledBack() {
	w.mustNotDisturb(func() {
		_, err := testCluster.Helm(w.Context(), "rollback", releases[0].name, "--namespace", system, "--wait", "--timeout", waitTimeout.String())
		testkit.Must(w, err)
		w.allReady(nil)
	})
	if changed := testkit.Value(processes(with("--log-level=debug", "--per-node")))(w); len(changed) != 0 {
		w.Errorf("%d processes still have the argument of the upgrade", len(changed))
	}
}

// inSystem runs kubectl in the releases' namespace.
func (w *workload) inSystem(args ...string) string {
	w.Helper()
	out := testkit.Value(testCluster.Kubectl(w.Context(), "", append([]string{"-n", system}, args...)...))(w)
	return out
}

// A second instance with the same arguments, as if a rollout had started it too
// early, does not disturb the first, and logs why it waits.
func (w *workload) secondInstance() {
	for _, c := range []struct {
		daemonSet string
		driver    driverProcess
	}{{"local-cleat-csi-node", driverProcesses()[0]}, {"single-cleat-csi-node", driverProcesses()[1]}} {
		w.mustNotDisturb(func() {
			first, err := c.driver.pid()
			testkit.Must(w, err)
			w.second(c.daemonSet)
			said := ""
			w.until("the log of the second instance", func(ctx context.Context) error {
				said, err = testCluster.Kubectl(ctx, "", "-n", system, "logs", "second", "-c", "driver", "--tail=3")
				if err == nil && !strings.Contains(said, "another") {
					err = fmt.Errorf("got log %q", said)
				}
				return err
			})
			w.Logf("second instance: %s", strings.TrimSpace(said))
			if now := c.driver.serves(); now != first {
				w.Errorf("process %d answers at %s, want %d", now, c.driver.socket, first)
			}
			w.inSystem("delete", "pod", "second", "--grace-period=5", "--wait")
			w.until("driver "+c.driver.name, func(ctx context.Context) error { return c.driver.ready(ctx, 0) })
			if now := c.driver.serves(); now != first {
				w.Errorf("process %d answers at %s after the end of the second instance, want %d", now, c.driver.socket, first)
			}
		})
	}
}

// second starts a pod with the driver of a DaemonSet, without sidecars.
func (w *workload) second(daemonSet string) {
	w.Helper()
	of := testkit.Value(testCluster.Client.AppsV1().DaemonSets(system).Get(w.Context(), daemonSet, metav1.GetOptions{}))(w)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "second", Namespace: system}, Spec: of.Spec.Template.Spec}
	p.Spec.NodeName = testCluster.Node
	all := append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...)
	i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == "driver" })
	all[i].RestartPolicy = nil
	p.Spec.InitContainers, p.Spec.Containers = nil, all[i:i+1]
	testkit.Value(testCluster.Client.CoreV1().Pods(system).Create(w.Context(), p, metav1.CreateOptions{}))(w)
	w.Cleanup(func() {
		zero := int64(0)
		testCluster.Client.CoreV1().Pods(system).Delete(context.Background(), "second", metav1.DeleteOptions{GracePeriodSeconds: &zero})
	})
}

// The chart is uninstalled while volumes are in use. Pods keep them; a pod
// deleted meanwhile ends after the reinstallation, which adopts existing
// volumes. Snapshots stay, and can be restored and taken after it.
func (w *workload) uninstalled() {
	w.claim("victim", claim{class: "local-ext4", size: "32Mi"})
	w.mustNotDisturb(func() {
		w.run("victim", pod{mounts: map[string]string{"/data": "victim"}})
		w.exec("victim", "echo kept >/data/a; sync")
		w.snapshot("kept", "local", "victim")
		testkit.Must(w, releases[0].uninstall(w.Context(), testCluster))
		w.Cleanup(func() { // also after a failure
			ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
			defer cancel()
			if err := releases[0].install(ctx, testCluster); err != nil {
				w.Error(err)
			}
		})
		if out := w.kubectl("get", "volumesnapshots", "-o", "name"); !strings.Contains(out, "/kept") {
			w.Errorf("after uninstalling there are only the snapshots %q", out)
		}
		w.kubectl("delete", "pod", "victim", "--wait=false")
		w.advances()
		testkit.Must(w, w.intact(w.Context()))
		w.until("termination of the victim's container", func(ctx context.Context) error {
			p, err := testCluster.Client.CoreV1().Pods(w.name).Get(ctx, "victim", metav1.GetOptions{})
			if err == nil && p.Status.ContainerStatuses[0].State.Terminated == nil {
				err = fmt.Errorf("state %v", p.Status.ContainerStatuses[0].State)
			}
			return err
		})
		testkit.Must(w, releases[0].install(w.Context(), testCluster))
		began := time.Now()
		w.kubectl("wait", "--for=delete", "pod/victim", "--timeout=150s")
		w.Logf("the pod deleted meanwhile ended %.1f s after the driver's return", time.Since(began).Seconds())
		w.allReady(nil)
	})
	w.run("reader", pod{mounts: map[string]string{"/data": "victim"}})
	if got := w.exec("reader", "cat /data/a"); got != "kept" {
		w.Errorf("the volume of the deleted pod reads %q", got)
	}
	w.drop("reader")
	w.snapshot("later", "local", "victim")
	for _, name := range []string{"kept", "later"} {
		w.claim("of-"+name, claim{class: "local-ext4", size: "32Mi", from: snapshotSource(name)})
		w.run("of-"+name, pod{mounts: map[string]string{"/data": "of-" + name}})
		if got := w.exec("of-"+name, "cat /data/a"); got != "kept" {
			w.Errorf("the volume restored from snapshot %s reads %q", name, got)
		}
		w.drop("of-" + name)
	}
}
