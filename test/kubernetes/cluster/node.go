package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Added is the key of a label (true) and a taint (NoSchedule) of each
// additional node: pods that do not tolerate it stay on the first node.
const Added = "cleat.dev/added"

// OwnKernel is that key of an additional node that is a Machine.
const OwnKernel = "cleat.dev/own-kernel"

// mark returns the key of the node's label and taint; the first node has none.
func (s *site) mark() string {
	switch {
	case s.Node == 1:
		return ""
	case s.Node < firstMachine:
		return Added
	}
	return OwnKernel
}

// Node is an additional node: runtime, service proxy and kubelet in their own
// namespaces, with a link to the first node. Its state survives PowerOff.
type Node struct {
	Name string

	cluster *Cluster
	site    *site
	init    *Process // process 1 of its namespaces
}

// AddNode adds a node and returns when it is ready.
func (c *Cluster) AddNode(ctx context.Context) (*Node, error) {
	c.mu.Lock()
	s := *c.site
	s.Stage, s.Node = "init", len(c.nodes)+2
	n := &Node{Name: s.nodeName(), cluster: c, site: &s}
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	if err := os.MkdirAll(filepath.Join(s.nodeDir(), "cleat"), 0o755); err != nil {
		return n, err
	}
	if err := c.keys.issueNode(n.Name, nodeAddress(s.Node)); err != nil {
		return n, err
	}
	if err := s.makeCgroups(); err != nil {
		return n, err
	}
	return n, n.Boot(ctx)
}

// Boot starts the node, the first time or after PowerOff, and returns when it
// is ready.
func (n *Node) Boot(ctx context.Context) error {
	began := time.Now()
	cmd, err := reexec(n.site)
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if n.init, err = n.cluster.start(n.Name, cmd); err != nil {
		return err
	}
	if err := n.link(); err != nil {
		return err
	}
	return n.cluster.await(ctx, "the readiness of "+n.Name, n.init, func(ctx context.Context) (bool, error) {
		return n.cluster.readySince(ctx, n.Name, began)
	})
}

// link connects this node and its pods with the first node.
func (n *Node) link() error {
	pid, number := strconv.Itoa(n.init.PID()), n.site.Node
	_ = run("ip", "link", "delete", n.Name) // the kernel removes the link of the last boot asynchronously
	if err := run("ip", "link", "add", n.Name, "type", "veth", "peer", "name", "eth0", "netns", pid); err != nil {
		return err
	}
	for _, side := range []struct {
		enter       []string
		device      string
		other, pods string
	}{
		{nil, n.Name, nodeAddress(number), podNet(number)},
		{[]string{"nsenter", "--target", pid, "--net"}, "eth0", nodeAddress(1), podNet(1)},
	} {
		for _, args := range [][]string{
			{"ip", "link", "set", "lo", "up"}, // gateways are invalid without an address
			{"ip", "link", "set", side.device, "up"},
			{"ip", "route", "add", side.other + "/32", "dev", side.device},
			{"ip", "route", "add", side.pods, "via", side.other, "dev", side.device, "onlink"},
		} {
			command := append(side.enter, args...)
			if err := run(command[0], command[1:]...); err != nil {
				return err
			}
		}
	}
	return nil
}

// runNode is the last stage of an additional node. It ends with the node.
func runNode(ctx context.Context, s *site) error {
	c := newCluster(s)
	if err := os.MkdirAll(filepath.Join(c.Dir, "logs"), 0o755); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.newBootID(); err != nil {
		return err
	}
	if err := c.startNode(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Path returns the path by which processes of the first node reach a path of
// this node.
func (n *Node) Path(path string) string {
	return filepath.Join("/proc", strconv.Itoa(n.init.PID()), "root", path)
}

// Import imports the images of an OCI archive into the node's runtime.
func (n *Node) Import(ctx context.Context, archive string) error {
	return importInto(ctx, n.Path(runtimeSocket), archive)
}

// PowerOff simulates a power loss: all processes end at once, and with them
// mounts, network and loop devices. The page cache of the machine survives, so
// unsynced writes are not lost.
func (n *Node) PowerOff(ctx context.Context) error {
	if n.init == nil {
		return nil
	}
	n.init.Kill()
	if err := n.site.removePodCgroups(); err != nil {
		return err
	}
	// The kernel unmounts the file systems of the namespaces asynchronously.
	return n.cluster.await(ctx, "the loop devices to be detached of "+n.Name, nil, func(ctx context.Context) (bool, error) {
		err := detachDriverLoops(ctx, n.site.nodeDir())
		return err == nil, err
	})
}

// Remove powers the node off and deletes it from the cluster.
func (n *Node) Remove(ctx context.Context) error {
	if err := n.PowerOff(ctx); err != nil {
		return err
	}
	if err := n.cluster.Client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", n.Name, err)
	}
	return nil
}
