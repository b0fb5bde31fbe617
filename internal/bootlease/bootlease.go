// Package bootlease keeps the boot that each node last reported in a Lease of its
// own, so that a controller can see that a lost node was restarted.
//
//	metadata.name          PREFIX.NODE
//	metadata.labels        fence.cleat.dev/boots: PREFIX
//	metadata.annotations   fence.cleat.dev/machine: hash of machine-id and product_uuid
//	                       fence.cleat.dev/late: volumes were possibly attached before the report
//	spec.holderIdentity    boot id
//	spec.leaseTransitions  how often another machine took over the node's name
//
// The Lease never expires. A node writes it twice: late first, since this request
// can reach the API server long after its sender, which meanwhile attaches volumes
// without it, or was restarted. Once the answer is there, no volume was attached
// before the report, and the second request says so.
//
// Nodes need get, create and update of Leases in the namespace, which an admission
// policy should limit to their own; the controller needs list.
package bootlease

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/volume"
)

const (
	prefixLabel       = "fence.cleat.dev/boots"
	machineAnnotation = "fence.cleat.dev/machine"
	lateAnnotation    = "fence.cleat.dev/late"
	separator         = "." // a prefix has none
	requestTimeout    = 3 * time.Second
	changeAttempts    = 3 // after conflicts
)

// Config names the Leases, and how to reach them.
type Config struct {
	Kubeconfig string // "": in-cluster
	Namespace  string // it must exist
	Prefix     string
	UserAgent  string // "": client-go's
}

// Leases are those of the nodes of one driver.
type Leases struct {
	config  Config
	objects dynamic.ResourceInterface
}

// ParseName splits NAMESPACE/PREFIX, for a node too if that is not "".
func ParseName(text, node string) (namespace, prefix string, err error) {
	namespace, prefix, _ = strings.Cut(text, "/")
	for _, label := range []string{namespace, prefix} {
		if problems := validation.IsDNS1123Label(label); len(problems) > 0 {
			return "", "", errs.Errorf(errs.Invalid, "%q does not have the form NAMESPACE/PREFIX: %q: %s", text, label, strings.Join(problems, "; "))
		}
	}
	if node == "" {
		return namespace, prefix, nil
	}
	if problems := validation.IsDNS1123Subdomain(prefix + separator + node); len(problems) > 0 {
		return "", "", errs.Errorf(errs.Invalid, "%q is not a valid name of a Lease: %s", prefix+separator+node, strings.Join(problems, "; "))
	}
	return namespace, prefix, nil
}

// New makes no API call.
func New(c Config) (*Leases, error) {
	access, err := kubeconfig.Load(c.Kubeconfig, c.UserAgent)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("client of the API server %s: %w", access.Host, err)
	}
	resource := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	return &Leases{config: c, objects: client.Resource(resource).Namespace(c.Namespace)}, nil
}

// All returns the last reports by node.
func (l *Leases) All(ctx context.Context) (map[string]volume.Boot, error) {
	// Without a resourceVersion the list is of the time of the call or later.
	list, err := l.objects.List(ctx, metav1.ListOptions{LabelSelector: prefixLabel + "=" + l.config.Prefix})
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "list the Leases %s/%s%s*: %w", l.config.Namespace, l.config.Prefix, separator, err)
	}
	boots := make(map[string]volume.Boot, len(list.Items))
	for _, o := range list.Items {
		node, ours := strings.CutPrefix(o.GetName(), l.config.Prefix+separator)
		r := reportOf(o)
		if !ours || r.boot == "" {
			continue
		}
		b := volume.Boot{ID: r.boot, Late: r.late}
		if r.machine != "" {
			b.Machine = fmt.Sprintf("%s/%d/%s", o.GetUID(), r.transitions, r.machine)
		}
		boots[node] = b
	}
	return boots, nil
}

// report writes that the node runs this boot, late, unless its Lease says that
// already. isConfirmed: the Lease does not say late.
func (l *Leases) report(ctx context.Context, node string, own report) (isConfirmed bool, err error) {
	err = l.change(ctx, node, func(last report) (report, bool) {
		if last.isOf(own) {
			isConfirmed = !last.late
			return last, false
		}
		return own.after(last), true
	})
	return isConfirmed && err == nil, err
}

// confirm writes that no volume was attached before the report, unless another
// report has replaced it.
func (l *Leases) confirm(ctx context.Context, node string, own report) error {
	return l.change(ctx, node, func(last report) (report, bool) {
		if !last.isOf(own) || !last.late {
			return last, false
		}
		last.late = false
		return last, true
	})
}

// change replaces the report of a node, the zero one if its Lease does not exist,
// by what next returns, if true.
func (l *Leases) change(ctx context.Context, node string, next func(last report) (report, bool)) error {
	name := l.config.Prefix + separator + node
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var err error
	for range changeAttempts {
		found, failed := l.objects.Get(ctx, name, metav1.GetOptions{})
		exists := failed == nil
		if failed != nil && !apierrors.IsNotFound(failed) {
			return fmt.Errorf("read the Lease %s/%s: %w", l.config.Namespace, name, failed)
		}
		if !exists {
			found = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}}
			found.SetName(name)
			found.SetNamespace(l.config.Namespace)
		}
		r, changed := next(reportOf(*found))
		if !changed {
			return nil
		}
		if err := r.writeTo(found, l.config.Prefix); err != nil {
			return fmt.Errorf("the Lease %s/%s: %w", l.config.Namespace, name, err)
		}
		if exists {
			_, err = l.objects.Update(ctx, found, metav1.UpdateOptions{})
		} else {
			_, err = l.objects.Create(ctx, found, metav1.CreateOptions{})
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write the Lease %s/%s: %w", l.config.Namespace, name, err)
	}
	return nil
}
