package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

const spdkLease = "spdk-cleat-csi-controller"

// failOvers ends the driver that serves, in several ways.
func (c *spdkCase) failOvers() {
	c.Helper()
	c.failOver("killed", unix.SIGKILL)
	if soak.Enabled {
		c.failOver("stopped", unix.SIGSTOP)
		c.failOver("again", unix.SIGKILL)
	}
}

// failOver kills the driver that serves while it creates a volume, or stops it before.
// The next leader, which is the other replica's unless that is slow, has nothing of it
// but the ConfigMap. It and its sidecars complete the creation, and do all else. Sidecars of the first one that have not noticed
// the end of their driver exit before their next call.
func (c *spdkCase) failOver(name string, signal unix.Signal) {
	c.Helper()
	const call = "nvmf_create_subsystem"
	c.noDenials(spdkRelease, "Starting CSI attacher", "", "--all-containers")
	var first string
	var pid int
	c.until("the driver that leads", func(context.Context) (err error) { // one that misses its Lease ends
		first = c.leader()
		pid, err = c.driverOf(podOf(first))
		return err
	})
	if signal == unix.SIGSTOP {
		testkit.Must(c, ignoreGone(unix.Kill(pid, signal)))
	} else {
		c.target.Process.Inject(spdktest.Fault{Method: call, Times: 1, Then: spdktest.Silence})
	}
	calls := c.target.Process.Counts()[call]
	c.survived = append(c.survived, name)
	c.claim(name, claim{class: "spdk", size: "64Mi", block: true})
	if signal == unix.SIGKILL {
		c.until("the creation of an export", func(context.Context) error {
			if c.target.Process.Counts()[call] == calls {
				return errors.New("no call of " + call)
			}
			return nil
		})
		testkit.Must(c, ignoreGone(unix.Kill(pid, signal)))
	}
	began := time.Now()
	took := func(what string) { c.Logf("%s: %s after %.1f s", name, what, time.Since(began).Seconds()) }
	var second string
	c.until("another leader", func(context.Context) error {
		if second = c.leader(); second == first || second == "" {
			return fmt.Errorf("the Lease is that of %q", second)
		}
		return nil
	})
	took("another leader")
	c.created(name, "64Mi")
	took("created")
	c.snapshot(name, "spdk", name)
	took("its snapshot")
	testkit.Must(c, c.ask(name, "96Mi"))
	c.created(name, "96Mi")
	took("its growth")
	if soak.Enabled {
		c.start(name, pod{devices: map[string]string{"/dev/data": name}})
		c.attached(c.bound(name).Name)
		took("its attachment")
		c.drop(name)
		c.admits(name)
		took("its detachment")
	}
	testkit.Must(c, ignoreGone(unix.Kill(pid, unix.SIGCONT)))
	c.until("the end of the driver that served", func(context.Context) error {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %d: %v", pid, err)
		}
		return nil
	})
	took("the end of the first driver")
	if podOf(second) == podOf(first) { // the kubelet was faster than the other replica
		return
	}
	c.until("a driver that waits, and gets no calls", func(ctx context.Context) error {
		if c.leader() != second { // it missed its Lease, and the one that waits leads again
			return nil
		}
		log, err := testCluster.Kubectl(ctx, "", "-n", system, "logs", podOf(first), "-c", "driver")
		if err == nil && (!strings.Contains(log, "serving metrics") || strings.Contains(log, "/csi.v1.Controller/")) {
			err = fmt.Errorf("its log: %s", log)
		}
		return err
	})
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// leader returns the process that holds the Lease: its pod, and a token.
func (c *spdkCase) leader() string {
	c.Helper()
	l := testkit.Value(testCluster.Client.CoordinationV1().Leases(system).Get(c.Context(), spdkLease, metav1.GetOptions{}))(c)
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func podOf(leader string) string {
	pod, _, _ := strings.Cut(leader, "_")
	return pod
}

// driverOf returns the process of the driver in a pod of the controller.
func (c *spdkCase) driverOf(pod string) (pid int, err error) {
	c.Helper()
	for _, pid := range processesWith(c.T, "--lease="+system+"/"+spdkLease) {
		name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "root", "etc", "hostname")) // of the container
		if err == nil && strings.TrimSpace(string(name)) == pod {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process is the driver of pod %q", pod)
}
