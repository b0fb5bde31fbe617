package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cleatproject/cleat/test/testkit"
)

// bootReports expects the report of the node's pod, and that the policy confines
// the token of a node to the Lease of its own.
func (c *cephCase) bootReports() {
	const prefix = "ceph-cleat-boot."
	leases := testCluster.Client.CoordinationV1().Leases(system)
	// Pods see the kernel's boot id, not the one that the cluster gives its kubelet
	// in each simulated boot.
	driver := c.processOf("--ceph-boot-leases="+system+"/ceph-cleat-boot", 0)
	boot := strings.TrimSpace(string(testkit.Value(os.ReadFile(filepath.Join("/proc", fmt.Sprint(driver), "root", "proc/sys/kernel/random/boot_id")))(c)))
	c.until("the boot report of the node", func(ctx context.Context) error {
		l, err := leases.Get(ctx, prefix+testCluster.Node, metav1.GetOptions{})
		if err == nil && (l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != boot || l.Annotations["fence.cleat.dev/late"] != "") {
			err = fmt.Errorf("it is %+v, annotations %v, and the boot is %s", l.Spec, l.Annotations, boot)
		}
		return err
	})
	c.Cleanup(func() {
		if err := leases.Delete(context.Background(), prefix+testCluster.Node, metav1.DeleteOptions{}); err != nil {
			c.Error(err)
		}
	})
	inForce(c.space, "ceph-cleat-boots-of-nodes")
	const account, ok = "ceph-cleat-csi-node", ""
	others := testkit.Value(leases.Create(c.Context(), &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: prefix + otherNode}}, metav1.CreateOptions{}))(c)
	c.Cleanup(func() {
		if err := leases.Delete(context.Background(), others.Name, metav1.DeleteOptions{}); err != nil {
			c.Error(err)
		}
	})
	own, noNode := asAccount(c.T, account, testCluster.Node), asAccount(c.T, account, "")
	create := func(client kubernetes.Interface, name string) error {
		_, err := client.CoordinationV1().Leases(system).Create(c.Context(), &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	update := func(client kubernetes.Interface, name string) error {
		l, err := client.CoordinationV1().Leases(system).Get(c.Context(), name, metav1.GetOptions{})
		if err == nil {
			_, err = client.CoordinationV1().Leases(system).Update(c.Context(), l, metav1.UpdateOptions{DryRun: dryRun})
		}
		return err
	}
	c.until("the API server to know the policy", func(context.Context) error {
		if create(own, "mine") == nil {
			return errors.New("any Lease can be created")
		}
		return nil
	})
	third := asAccount(c.T, account, "node-3")
	for _, test := range []struct {
		what   string
		err    error
		denied string
	}{
		{"create the node's Lease", create(third, prefix+"node-3"), ok},
		{"update the node's Lease", update(own, prefix+testCluster.Node), ok},
		{"create the Lease of another node", create(own, prefix+"node-3"), "only Lease " + prefix + testCluster.Node},
		{"update the Lease of another node", update(own, others.Name), "only Lease " + prefix + testCluster.Node},
		{"create any Lease", create(own, "mine"), "only Lease " + prefix + testCluster.Node},
		{"create without a token of a node", create(noNode, prefix+"node-3"), "bound to a pod on a node"},
		{"delete the node's Lease", own.CoordinationV1().Leases(system).Delete(c.Context(), prefix+testCluster.Node, metav1.DeleteOptions{DryRun: dryRun}), "forbidden"},
	} {
		switch {
		case test.denied == ok && test.err != nil:
			c.Errorf("%s is denied: %v", test.what, test.err)
		case test.denied != ok && (test.err == nil || !strings.Contains(test.err.Error(), test.denied)):
			c.Errorf("%s: got error %v, want a denial with %q", test.what, test.err, test.denied)
		}
	}
}
