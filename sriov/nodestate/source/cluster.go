package source

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// DefaultNamespace is the operator's.
const DefaultNamespace = "sriov-network-operator"

// namespaceFile is where a pod finds its own namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Pauses of a Cluster, in which it is not connected.
const (
	firstPause = 500 * time.Millisecond
	maxPause   = 30 * time.Second
)

// ClusterConfig says which object it is, and where the API server is.
type ClusterConfig struct {
	Kubeconfig string // path; "": as a pod finds its API server
	Namespace  string // "": that of the pod, else DefaultNamespace
	Node       string // name of the node, and of its object
	UserAgent  string // "": client-go's
	Logger     *slog.Logger
	// Within bounds a call that is not a watch, and a watch is renewed after
	// some ten times that. 0 is 30 s.
	Within time.Duration
}

// Cluster is a source that watches one SriovNetworkNodeState of the API server.
// It needs the verbs list and watch for it, and patch for its status.
type Cluster struct {
	config ClusterConfig
	client *rest.RESTClient
}

// NewCluster makes one. Nobody is asked yet. An error is about the kubeconfig,
// the place of a pod, or a name.
func NewCluster(c ClusterConfig) (*Cluster, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Within = cmp.Or(c.Within, 30*time.Second)
	c.Namespace = cmp.Or(c.Namespace, podNamespace())
	if problems := validation.IsDNS1123Subdomain(c.Node); len(problems) > 0 {
		return nil, fmt.Errorf("node %q cannot be the name of a node: %s", c.Node, strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Label(c.Namespace); len(problems) > 0 {
		return nil, fmt.Errorf("namespace %q cannot be the name of a namespace: %s", c.Namespace, strings.Join(problems, "; "))
	}
	access, err := restConfig(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	access.UserAgent = c.UserAgent
	// Bodies are read and written here: the few bytes of one kind need no scheme.
	access.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	access.ContentType, access.AcceptContentTypes = "application/json", "application/json"
	access.WarningHandler = rest.NoWarnings{}
	client, err := rest.UnversionedRESTClientFor(access)
	if err != nil {
		return nil, fmt.Errorf("prepare to ask the API server %s: %w", access.Host, err)
	}
	return &Cluster{config: c, client: client}, nil
}

func podNamespace() string {
	text, err := os.ReadFile(namespaceFile)
	if err != nil {
		return DefaultNamespace
	}
	return cmp.Or(strings.TrimSpace(string(text)), DefaultNamespace)
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) || errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("this is no pod that may ask its API server; give a kubeconfig: %w", err)
		}
		return c, err
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// path is below the API server's root: that of all objects of the namespace
// without a name.
func (c *Cluster) path(name ...string) []string {
	return append([]string{"apis", nodestate.Group, nodestate.Version, "namespaces", c.config.Namespace, nodestate.Resource}, name...)
}

// String names the object.
func (c *Cluster) String() string {
	return fmt.Sprintf("%s %s/%s", nodestate.Kind, c.config.Namespace, c.config.Node)
}
