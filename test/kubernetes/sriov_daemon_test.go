package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/testkit"
)

// In follow mode functions are offered only while both the operator's status
// and the daemon's check allow it, and are withdrawn if either, or the daemon,
// is gone. Pods keep their functions. The test restarts the kubelet and stops
// the API server for a while.
func TestSRIOVFollow(t *testing.T) {
	s := newSpace(t)
	c := newCard(s, "gated", 29832, 4)
	c.define()
	c.want(4)
	c.setSyncStatus(nodestate.InProgress)
	gated := release{name: c.release, values: c.values("/var/lib/sriov", "follow")}
	// Its daemon is ready once the node has the desired configuration.
	s.install(gated, "--wait=hookOnly")
	c.phase(daemon.Pending, "")
	c.gate(gate.Initializing)
	s.start("first", c.wanting(1))
	s.unschedulable("first", "Insufficient "+c.resource)
	if capacity, allocatable, err := c.node(t.Context()); err != nil || capacity != 0 || allocatable != 0 {
		t.Errorf("before the operator's status: got capacity %d, allocatable %d (%v)", capacity, allocatable, err)
	}

	began := time.Now()
	c.setSyncStatus(nodestate.Succeeded)
	kubelet := c.offers(4)
	api := c.allocatable(4)
	s.running("first")
	t.Logf("opened: %s until the kubelet offers, %s more until the API does; the waiting pod runs after %.1f s", ms(kubelet), ms(api), time.Since(began).Seconds())

	c.checkGateCycle("second", "the operator is at work", func() { c.setSyncStatus(nodestate.InProgress) }, func() { c.setSyncStatus(nodestate.Succeeded) })
	c.checkGateCycle("third", "another generation, of which the operator's word is old", func() { c.want(5) }, func() { c.want(4) })
	c.checkGateCycle("", "the operator failed", func() { c.setSyncStatus(nodestate.Failed) }, func() { c.setSyncStatus(nodestate.Succeeded) })

	t.Run("kubelet", func(t *testing.T) {
		before := c.holders()
		testkit.Must(t, testCluster.RestartKubelet(t.Context(), true))
		began := time.Now()
		// Until it has the pods from the API server, it lists none.
		c.until("the kubelet to list the devices of pods", func(context.Context) error {
			if got := c.holders(); !maps.Equal(got, before) {
				return fmt.Errorf("pods hold %v, want %v as before the restart", got, before)
			}
			return nil
		})
		listed := time.Since(began)
		c.offers(4)
		c.allocatable(4)
		t.Logf("kubelet killed: lists the devices of pods %s after it is ready again, functions allocatable after %s", ms(listed), ms(time.Since(began)))
	})
	t.Run("daemon deleted", func(t *testing.T) {
		testkit.Value(testCluster.Kubectl(t.Context(), "", "-n", system, "delete", "daemonset", c.release+"-cleat-sriov-daemon"))(t)
		c.offers(0)
		c.gate(gate.Initializing)
		testkit.Must(t, gated.install(t.Context(), testCluster)) // returns when the daemon is ready
		c.offers(4)
	})
	t.Run("API server away", c.withoutAPIServer)

	for _, name := range []string{"first", "second", "third"} {
		s.undisturbed(name)
	}
	if got := slices.Sorted(maps.Values(c.holders())); !slices.Equal(got, []string{"first", "second", "third"}) {
		t.Errorf("the kubelet reports functions of %q", got)
	}
	if n := len(c.numVFsWrites()); n > 0 {
		t.Errorf("a daemon in follow mode changed the number of functions %d times", n)
	}
	c.rights([]string{"sriovnetworknodestates: get list watch"})
}

func ms(d time.Duration) string { return d.Round(time.Millisecond).String() }

// checkGateCycle closes and reopens the gate. While it is closed no pod is
// admitted; the pod waits, if named, runs afterwards.
func (c *card) checkGateCycle(waits, why string, shut, open func()) {
	c.Helper()
	began := time.Now()
	shut()
	c.offers(0)
	kubelet := time.Since(began)
	early := "before-" + waits
	if waits != "" {
		// If the scheduler does not know yet, the kubelet rejects the pod.
		c.start(early, c.bare())
	}
	c.allocatable(0)
	api := time.Since(began)
	if waits != "" {
		c.start(waits, c.wanting(1))
		c.unschedulable(waits, "Insufficient "+c.resource)
		c.why("pod/"+waits, "Every "+c.resource+" is withdrawn", "cleat sriov status")
	}
	if n := len(c.holders()); n > 3 {
		c.Errorf("%s: got %d pods with functions", why, n)
	}
	c.Logf("%s: closed after %s in the kubelet, %s in the API", why, ms(kubelet), ms(api))
	if waits != "" {
		c.refused(early)
	}
	began = time.Now()
	open()
	c.offers(4)
	c.Logf("%s: opened again after %s", why, ms(time.Since(began)))
	if waits != "" {
		c.running(waits)
	}
	c.allocatable(4)
}

// bare returns a pod without a controller.
func (c *card) bare() pod {
	p := c.wanting(1)
	change := p.change
	p.change = func(p *corev1.Pod) {
		change(p)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	return p
}

// refused checks that a pod is not admitted, and deletes it.
func (c *card) refused(name string) {
	c.Helper()
	c.until("rejection of pod "+name, func(ctx context.Context) error {
		p, err := testCluster.Client.CoreV1().Pods(c.name).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case p.Status.Phase == corev1.PodFailed && p.Status.Reason == "UnexpectedAdmissionError":
			c.Logf("a pod right after the gate closed: %s, %s", p.Status.Reason, p.Status.Message)
			return nil
		case p.Status.Phase == corev1.PodPending && p.Spec.NodeName == "" && len(p.Status.Conditions) > 0:
			c.Logf("a pod right after the gate closed: %s", p.Status.Conditions[0].Message)
			return nil
		case p.Status.Phase == corev1.PodPending:
			return fmt.Errorf("assigned to node %q", p.Spec.NodeName)
		default:
			c.Fatalf("pod %s was admitted while the gate was closed: %s %s", name, p.Status.Phase, p.Status.Reason)
			return nil
		}
	})
	c.drop(name)
}

// withoutAPIServer: functions stay offered while the API server is away, and a
// daemon that starts then offers none, since it does not know the desired
// state. The outage is shorter than the ten seconds after which the sidecars'
// leaders exit.
func (c *card) withoutAPIServer(t *testing.T) {
	server := testCluster.Process("apiserver").PID()
	old := c.processOf(c.argument(c.ports[1]), 0)
	goOn := func() {
		if err := unix.Kill(server, unix.SIGCONT); err != nil {
			t.Error(err)
		}
	}
	testkit.Must(t, unix.Kill(server, unix.SIGSTOP))
	defer goOn()
	away := time.Now()
	stays := func(what string, want int, during time.Duration) {
		t.Helper()
		for late := time.Now().Add(during); time.Now().Before(late); {
			have, err := c.offeredNow(t.Context())
			if err == nil && len(have) != want {
				t.Fatalf("%s: the kubelet offers %q, want %d", what, have, want)
			}
			time.Sleep(look) // nothing must happen in this time
		}
	}
	stays("the API server stands still", 4, 2*time.Second)
	c.kill(c.ports[1])
	c.offers(0)
	c.processOf(c.argument(c.ports[1]), old)
	stays("a daemon starts without the API server", 0, 2*time.Second)
	goOn()
	back := time.Now()
	c.offers(4)
	t.Logf("the API server was away for %s; a daemon started meanwhile opened the gate %s after its return", ms(back.Sub(away)), ms(time.Since(back)))
	c.phase(daemon.Serving, "")
}

// withoutPods: a kubelet that starts while the API server is away reports no
// devices of pods, for longer than the daemon's retry interval.
func (c *card) withoutPods(t *testing.T) {
	server := testCluster.Process("apiserver").PID()
	testkit.Must(t, unix.Kill(server, unix.SIGSTOP))
	started := make(chan error, 1)
	go func() { started <- testCluster.RestartKubelet(c.Context(), true) }()
	emptyLists := 0
	for late := time.Now().Add(9 * time.Second); time.Now().Before(late); time.Sleep(10 * look) { // the observed period
		if held, err := c.kubelet.Held(t.Context()); err == nil && len(held) == 0 {
			emptyLists++
		}
	}
	if err := unix.Kill(server, unix.SIGCONT); err != nil {
		t.Error(err)
	}
	testkit.Must(t, <-started)
	t.Logf("the kubelet returned %d empty lists in 9 s", emptyLists)
	c.until("the kubelet to list the devices of pods", func(context.Context) error {
		if n := len(c.holders()); n != 1 {
			return fmt.Errorf("%d pods hold functions", n)
		}
		return nil
	})
}

// In apply mode the chart's daemon creates the desired functions while none is
// offered, does not change those of pods, and writes the status. The test
// restarts the kubelet and stops the API server for a while.
func TestSRIOVApply(t *testing.T) {
	s := newSpace(t)
	c := newCard(s, "applied", 29834, 2)
	c.define()
	c.mtu = ", mtu: 9000"
	c.want(4)
	s.install(release{name: c.release, values: c.values(c.dir+"/control", "apply")}, "--wait=hookOnly")
	began := time.Now()
	c.succeeded(4)
	c.offers(4)
	t.Logf("4 functions created and offered %.1f s after the chart was installed", time.Since(began).Seconds())
	if link, err := net.InterfaceByName(c.pf.Netdev); err != nil || link.MTU != 9000 {
		t.Errorf("the card's network device is %+v (%v), want an MTU of 9000", link, err)
	}
	s.run("holder", c.wanting(1))

	c.want(3)
	c.phase(daemon.Blocked, "holder")
	c.offers(0)
	s.start("late", c.wanting(1))
	c.allocatable(0)
	t.Run("kubelet that does not know its pods", c.withoutPods)
	s.undisturbed("holder")
	if got := c.numVFsWrites(); !slices.Equal(got, []numVFs{{0, 0}, {4, 0}}) {
		t.Fatalf("got numbers of functions %v while a pod has one", got)
	}
	c.phase(daemon.Blocked, "holder")
	s.drop("holder")
	c.succeeded(3)
	c.offers(3)
	if got := c.numVFsWrites(); !slices.Equal(got, []numVFs{{0, 0}, {4, 0}, {0, 0}, {3, 0}}) {
		t.Errorf("got numbers of functions and offers %v", got)
	}
	c.allocatable(3)
	c.rights([]string{"sriovnetworknodestates/status: patch", "sriovnetworknodestates: get list watch"})
}

// succeeded waits until the object's status is Succeeded and lists this many
// functions.
func (c *card) succeeded(functions int) {
	c.Helper()
	var status nodestate.Status
	c.until("the object's status", func(ctx context.Context) error {
		o, err := testCluster.Dynamic.Resource(nodeStates()).Namespace(c.name).Get(ctx, testCluster.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		text, err := json.Marshal(o.Object["status"])
		if err != nil {
			return err
		}
		status = nodestate.Status{}
		if err := json.Unmarshal(text, &status); err != nil {
			return err
		}
		if status.SyncStatus != nodestate.Succeeded || len(status.Interfaces) != 1 || status.Interfaces[0].NumVFs != functions {
			return fmt.Errorf("status %s", text)
		}
		return nil
	})
	found := status.Interfaces[0]
	want := nodestate.FoundInterface{
		Name: c.pf.Netdev, Driver: c.pf.Driver, PCIAddress: c.pf.Address, Vendor: c.pf.Vendor, DeviceID: c.pf.Device, MTU: 9000,
		NumVFs: functions, LinkType: nodestate.FoundEthernet, LinkAdminState: found.LinkAdminState, LinkSpeed: found.LinkSpeed, MAC: found.MAC,
		ESwitchMode: found.ESwitchMode, TotalVFs: c.pf.TotalVFs,
	}
	for n, address := range c.tree.Virtual(c.pf.Address) {
		want.VFs = append(want.VFs, nodestate.FoundVF{Driver: "vfio-pci", PCIAddress: address, Vendor: c.pf.Vendor, DeviceID: c.pf.VFDevice, Index: n})
	}
	if diff := cmp.Diff(want, found); diff != "" || found.MAC == "" {
		c.Errorf("the status of the object (-want +got):\n%s", diff)
	}
}

// gate waits until the plugin reports a state of its gate.
func (c *card) gate(want gate.State) {
	c.Helper()
	c.until("the gate to be "+string(want), func(ctx context.Context) error {
		client, err := control.Dial(ctx, "/var/lib/sriov/sriovdp-control.sock")
		if err != nil {
			return err
		}
		defer client.Close()
		status, err := client.Status(ctx)
		if err == nil && status.State != want {
			err = fmt.Errorf("state %s: %+v", status.State, status)
		}
		return err
	})
}

// rights checks that the daemon's service account is allowed exactly this,
// apart from default permissions, and that the plugin has no token.
func (c *card) rights(want []string) {
	c.Helper()
	as := rest.CopyConfig(testCluster.Config)
	as.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + system + ":" + c.release + "-cleat-sriov-daemon",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated"},
	}
	client := testkit.Value(kubernetes.NewForConfig(as))(c)
	for namespace, want := range map[string][]string{c.name: want, system: nil, "kube-system": nil} {
		review := testkit.Value(client.AuthorizationV1().SelfSubjectRulesReviews().Create(c.Context(), &authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
		}, metav1.CreateOptions{}))(c)
		var got []string
		for _, r := range review.Status.ResourceRules {
			if slices.Equal(r.APIGroups, []string{"authorization.k8s.io"}) || slices.Equal(r.APIGroups, []string{"authentication.k8s.io"}) {
				continue // self-reviews
			}
			if slices.Equal(r.APIGroups, []string{"certificates.k8s.io"}) && slices.Equal(r.Resources, []string{"clustertrustbundles"}) && slices.Equal(r.Verbs, []string{"get", "list", "watch"}) {
				continue // from 1.37 on, of each service account
			}
			line := strings.Join(r.Resources, " ") + ": " + strings.Join(r.Verbs, " ")
			if !slices.Equal(r.APIGroups, []string{nodestate.Group}) || len(r.ResourceNames) > 0 {
				line = fmt.Sprintf("%v %s %v", r.APIGroups, line, r.ResourceNames)
			}
			got = append(got, line)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			c.Errorf("in namespace %s the daemon is allowed %q, want %q", namespace, got, want)
		}
	}
	pods, err := testCluster.Client.CoreV1().Pods(system).List(c.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + c.release + ",app.kubernetes.io/component=sriov-plugin"})
	if err != nil || len(pods.Items) != 1 {
		c.Fatalf("got %d pods of the plugin (%v)", len(pods.Items), err)
	}
	if mounts := pods.Items[0].Spec.Containers[0].VolumeMounts; slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool {
		return strings.HasPrefix(m.MountPath, "/var/run/secrets")
	}) {
		c.Errorf("the plugin has a token, but does not use the API server: %+v", mounts)
	}
}
