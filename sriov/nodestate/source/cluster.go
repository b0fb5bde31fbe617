package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/sriov/nodestate"
)

// DefaultNamespace is the operator's namespace.
const DefaultNamespace = "sriov-network-operator"

const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ClusterConfig configures a Cluster.
type ClusterConfig struct {
	Kubeconfig string // "": in-cluster
	Namespace  string // "": the pod's, else DefaultNamespace
	Node       string // and name of its object
	UserAgent  string // "": client-go's
	Logger     *slog.Logger
	// Timeout of a call other than a watch, which is renewed after 10 to 20
	// times Timeout. 0: 30 s.
	Timeout time.Duration
}

// Cluster watches a SriovNetworkNodeState in the API server. It needs get, list
// and watch, and patch for the status.
type Cluster struct {
	config  ClusterConfig
	objects dynamic.ResourceInterface
}

// NewCluster makes no API call.
func NewCluster(c ClusterConfig) (*Cluster, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	if text, err := os.ReadFile(namespaceFile); err == nil {
		c.Namespace = cmp.Or(c.Namespace, strings.TrimSpace(string(text)))
	}
	c.Namespace = cmp.Or(c.Namespace, DefaultNamespace)
	if problems := validation.IsDNS1123Subdomain(c.Node); len(problems) > 0 {
		return nil, fmt.Errorf("node %q is not a valid node name: %s", c.Node, strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Label(c.Namespace); len(problems) > 0 {
		return nil, fmt.Errorf("namespace %q is not a valid namespace name: %s", c.Namespace, strings.Join(problems, "; "))
	}
	access, err := kubeconfig.Load(c.Kubeconfig, c.UserAgent)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("client of the API server %s: %w", access.Host, err)
	}
	resource := schema.GroupVersionResource{Group: nodestate.Group, Version: nodestate.Version, Resource: nodestate.Resource}
	return &Cluster{config: c, objects: client.Resource(resource).Namespace(c.Namespace)}, nil
}

// String returns kind, namespace and name.
func (c *Cluster) String() string {
	return fmt.Sprintf("%s %s/%s", nodestate.Kind, c.config.Namespace, c.config.Node)
}

// ErrOther: the object was deleted, and possibly recreated with the same name.
var ErrOther = errors.New("the node state was deleted or recreated")

// statusAttempts bounds retries after conflicts.
const statusAttempts = 5

// UpdateStatus patches the status of the object with a uid, otherwise ErrOther.
// Other status fields are kept.
func (c *Cluster) UpdateStatus(ctx context.Context, uid string, s nodestate.Status) error {
	interfaces := s.Interfaces
	if interfaces == nil {
		interfaces = []nodestate.FoundInterface{}
	}
	// A merge patch does not change missing fields.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid}, // precondition
		"status":   map[string]any{"interfaces": interfaces, "syncStatus": s.SyncStatus, "lastSyncError": s.LastSyncError},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	for range statusAttempts {
		_, err = c.objects.Patch(ctx, c.config.Node, types.MergePatchType, body, metav1.PatchOptions{}, "status")
		if !apierrors.IsConflict(err) {
			break
		}
		// A concurrent writer, or another uid.
		if o, gone := c.objects.Get(ctx, c.config.Node, metav1.GetOptions{}); apierrors.IsNotFound(gone) || gone == nil && string(o.GetUID()) != uid {
			return fmt.Errorf("write the status of %s with uid %s: %w", c, uid, ErrOther)
		}
	}
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", ErrOther, err)
	}
	if err != nil {
		return fmt.Errorf("write the status of %s: %w", c, err)
	}
	return nil
}
