package takeover

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/takeover/plan"
	"github.com/cleatproject/cleat/test/testkit"
)

// An API server that does not know a resource is no evidence that no object
// exists, such as no VolumeAttachment.
func TestUnknownResource(t *testing.T) {
	for _, resource := range []string{"storagefenceremediations", "nodes", "pods", "volumeattachments"} {
		t.Run(resource, func(t *testing.T) {
			client := fakeClient(t, "{apiVersion: v1, kind: Node, metadata: {name: lost}}")
			client.PrependReactor("list", resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewGenericServerResponse(404, "list", a.GetResource().GroupResource(), "", "404 page not found", 0, true)
			})
			c := testkit.Value(New(Config{Client: client, Namespace: "ns", Lease: "l", Identity: "i"}))(t)
			o, err := c.observe(t.Context(), "lost-x7f", plan.Lease{Held: true})
			if err == nil || !strings.Contains(err.Error(), resource) && errs.KindOf(err) != errs.Precondition {
				t.Errorf("observation %+v, error %v", o, err)
			}
		})
	}
}
