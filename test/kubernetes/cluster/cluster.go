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
	"github.com/cleatproject/cleat/test/kubernetes/programs"
)

// Cluster is a Kubernetes, as its administrator sees it on one of its nodes: on the
// first, where the control plane and the tests run.
type Cluster struct {
	Config     *rest.Config
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface
	Node       string // the name of the node
	Dir        string // state; /var/lib/kubelet and others are bound from below it
	Kubeconfig string // path, of an administrator
	Programs   programs.Set

	site      *site
	keys      *authority
	baseline  map[int]bool // ids of the mounts before anything ran
	mu        sync.Mutex
	processes []*Process
	runtime   *Process
	kubelet   *Process
	nodes     []*Node // beside the first
}

// own returns the programs that a cluster itself is made of.
func own() []string {
	return []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "helm"}
}

// patience bounds each wait for a component, on a machine that is busy.
const patience = 3 * time.Minute

func newCluster(s *site) *Cluster {
	return &Cluster{Node: s.nodeName(), Dir: s.nodeDir(), Programs: programs.Set{Dir: s.Programs}, site: s, baseline: map[int]bool{},
		keys: &authority{dir: filepath.Join(s.Dir, "keys")}}
}

// up starts everything and returns when the node takes pods. When it fails, the
// cluster it returns with the error is to be taken down.
func up(ctx context.Context, s *site) (*Cluster, error) {
	c := newCluster(s)
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range table {
		c.baseline[e.ID] = true
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

// startNode starts what every node runs, and returns when it takes pods.
func (c *Cluster) startNode(ctx context.Context) error {
	if err := c.startRuntime(ctx); err != nil {
		return err
	}
	if err := c.importOwnImages(ctx); err != nil {
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
	if err := c.keys.serviceAccountKeys(); err != nil {
		return err
	}
	return c.connect()
}

// connect makes the clients of an administrator.
func (c *Cluster) connect() (err error) {
	c.Kubeconfig = c.keys.path("admin.conf")
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	c.Config.QPS, c.Config.Burst = 200, 400 // the tests' own haste is not what is tested
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	c.Dynamic, err = dynamic.NewForConfig(c.Config)
	return err
}

// awaitDefaultAccount: the first pod of a namespace needs its service account.
func (c *Cluster) awaitDefaultAccount(ctx context.Context) error {
	return c.await(ctx, "the default service account", nil, func(ctx context.Context) (bool, error) {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// await asks until the answer is yes, and says why not after patience. The
// process it waits for, if any, must not end meanwhile.
func (c *Cluster) await(ctx context.Context, what string, p *Process, ask func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := ask(ctx)
		if yes {
			return nil
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
			return fmt.Errorf("%s did not come within %s: %w%s", what, patience, errors.Join(err, context.Cause(ctx)), text)
		case <-tick.C:
		}
	}
}

// readySince says whether a kubelet that was started then has reported that its
// node takes pods; the report of its predecessor, in whole seconds, stays.
func (c *Cluster) readySince(ctx context.Context, name string, began time.Time) (bool, error) {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, cond := range node.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			if cond.LastHeartbeatTime.Time.Before(began) {
				return false, errors.New("the kubelet has not reported yet")
			}
			if cond.Status == corev1.ConditionTrue {
				return true, nil
			}
			return false, errors.New(cond.Message)
		}
	}
	return false, errors.New("the node has no Ready condition yet")
}

// Down ends every process of the cluster in turn: the kubelet first, so that
// nothing is started anew, then the pods, then the rest. What pods had mounted
// is for Finish to have been given back; the rest goes with the namespaces.
func (c *Cluster) Down() error {
	var failed []error
	for _, n := range c.nodes {
		failed = append(failed, n.Cut(context.Background()))
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
			running[i].Stop() // one that has to be killed loses nothing that is needed
		}
	}
	return errors.Join(failed...)
}

// saveLogs copies the logs to the directory that CLEAT_CLUSTER_LOGS names, or
// says that there is such a way.
func (c *Cluster) saveLogs(w io.Writer) {
	to := os.Getenv("CLEAT_CLUSTER_LOGS")
	if to == "" {
		fmt.Fprintln(w, "cluster: set CLEAT_CLUSTER_LOGS=DIRECTORY to keep the logs of a run that fails")
		return
	}
	to = filepath.Join(to, filepath.Base(c.Dir))
	from := []string{"logs", "pods"}
	for _, n := range c.nodes {
		from = append(from, filepath.Join(n.Name, "logs"), filepath.Join(n.Name, "pods"))
	}
	for _, dir := range from {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join(c.Dir, dir))); err != nil {
			fmt.Fprintln(w, "cluster: keep logs:", err)
		}
	}
}
