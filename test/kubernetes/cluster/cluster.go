package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/kubernetes/apiserver"
	"github.com/cleatproject/cleat/test/kubernetes/programs"
)

// Cluster is a Kubernetes cluster as seen by its administrator on the first
// node, where the control plane and the tests run.
type Cluster struct {
	Config     *rest.Config
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface
	Node       string // name of the first node
	Dir        string // state; source of the bind mounts on /var/lib/kubelet and others
	Kubeconfig string // path of the administrator's kubeconfig
	Programs   programs.Set

	site      *site
	keys      *authority
	baseline  map[int]string // targets of the mounts before the start, by id: the kernel uses ids again
	mu        sync.Mutex
	processes []*Process
	runtime   *Process
	kubelet   *Process
	nodes     []*Node // all but the first
	machines  int     // count of AddMachine
}

// basePrograms returns the programs of the cluster itself.
func basePrograms() []string {
	return []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "helm"}
}

// waitTimeout bounds each wait for a component, with a margin for a busy
// machine.
const waitTimeout = 3 * time.Minute

func newCluster(s *site) *Cluster {
	return &Cluster{Node: s.nodeName(), Dir: s.nodeDir(), Programs: programs.Set{Dir: s.Programs}, site: s, baseline: map[int]string{},
		keys: &authority{dir: filepath.Join(s.Dir, "keys")}}
}

// up starts everything and returns when the node is ready. On an error, the
// caller must take down the returned cluster.
func up(ctx context.Context, s *site) (*Cluster, error) {
	c := newCluster(s)
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range table {
		c.baseline[e.ID] = e.Target
	}
	if err := os.MkdirAll(filepath.Join(s.Dir, "logs"), 0o755); err != nil {
		return nil, err
	}
	if err := c.makeKeys(); err != nil {
		return c, fmt.Errorf("keys: %w", err)
	}
	if err := c.startControlPlane(ctx); err != nil {
		return c, err
	}
	if err := c.startNode(ctx); err != nil {
		return c, err
	}
	return c, c.awaitDefaultAccount(ctx)
}

// startNode starts the processes of a node and returns when the node is ready.
func (c *Cluster) startNode(ctx context.Context) error {
	if err := c.startRuntime(ctx); err != nil {
		return err
	}
	if err := c.importBaseImages(ctx); err != nil {
		return err
	}
	if err := c.startProxy(); err != nil {
		return err
	}
	return c.StartKubelet(ctx)
}

func (c *Cluster) makeKeys() (err error) {
	if c.keys, err = newAuthority(c.keys.dir); err != nil {
		return err
	}
	if err := c.keys.issueAll(); err != nil {
		return err
	}
	if err := c.keys.issueNode(c.Node, nodeAddress(1)); err != nil {
		return err
	}
	if err := apiserver.WriteAccountKeys(c.keys.dir); err != nil {
		return err
	}
	return c.connect()
}

// connect creates the administrator's clients.
func (c *Cluster) connect() (err error) {
	c.Kubeconfig = c.keys.path("admin.conf")
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	c.Config.QPS, c.Config.Burst = 200, 400 // the default client limits would slow down the tests
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	c.Dynamic, err = dynamic.NewForConfig(c.Config)
	return err
}

// awaitDefaultAccount waits for the service account that the first pod of a
// namespace needs.
func (c *Cluster) awaitDefaultAccount(ctx context.Context) error {
	return c.await(ctx, "the default service account", nil, func(ctx context.Context) (bool, error) {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// await calls ask until it returns true, up to waitTimeout. It fails if process
// p, if any, ends.
func (c *Cluster) await(ctx context.Context, what string, p *Process, ask func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error // not that of the end of ctx, which says less
	for {
		yes, err := ask(ctx)
		if yes {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if p != nil {
			if ended := p.ended(); ended != nil {
				return ended
			}
		}
		select {
		case <-ctx.Done():
			text := ""
			if p != nil {
				text = "\n" + tail(p.Log, 1500)
			}
			return fmt.Errorf("timed out waiting for %s after %s: %w%s", what, waitTimeout, errors.Join(last, context.Cause(ctx)), text)
		case <-tick.C:
		}
	}
}

// readySince reports whether the kubelet reported a ready node after began. The
// report of the previous kubelet, with a resolution of seconds, stays in the
// node's status.
func (c *Cluster) readySince(ctx context.Context, name string, began time.Time) (bool, error) {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, cond := range node.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			if cond.LastHeartbeatTime.Time.Before(began) {
				return false, errors.New("the kubelet has not reported its status yet")
			}
			if cond.Status == corev1.ConditionTrue {
				return true, nil
			}
			return false, errors.New(cond.Message)
		}
	}
	return false, errors.New("the node has no Ready condition yet")
}

// Down ends all processes of the cluster: the kubelet first, so that it
// restarts nothing, then pods, then the rest. Finish must check that pods'
// mounts were released; the others end with the namespaces.
func (c *Cluster) Down() error {
	var failed []error
	for _, n := range c.nodes {
		failed = append(failed, n.PowerOff(context.Background()))
	}
	if c.kubelet != nil {
		failed = append(failed, c.kubelet.Stop())
	}
	failed = append(failed, c.killPods())
	c.mu.Lock()
	running := c.processes
	c.processes = nil
	c.mu.Unlock()
	for i := len(running) - 1; i >= 0; i-- {
		select {
		case <-running[i].done:
		default:
			running[i].Stop() // an error is ignored: the processes have no state to save
		}
	}
	return errors.Join(failed...)
}

// saveLogs copies the logs to the directory CLEAT_CLUSTER_LOGS, or prints a
// hint.
func (c *Cluster) saveLogs(w io.Writer) {
	to := os.Getenv("CLEAT_CLUSTER_LOGS")
	if to == "" {
		fmt.Fprintln(w, "cluster: set CLEAT_CLUSTER_LOGS=DIRECTORY to keep the logs of a failed run")
		return
	}
	to = filepath.Join(to, filepath.Base(c.Dir))
	from := []string{"logs", "pods"}
	for _, n := range c.nodes {
		from = append(from, filepath.Join(n.Name, "logs"), filepath.Join(n.Name, "pods"))
	}
	for _, dir := range from {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join(c.Dir, dir))); err != nil {
			fmt.Fprintln(w, "cluster: save logs:", err)
		}
	}
}
