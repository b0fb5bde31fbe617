package kubernetes

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/testkit"
)

// nodeStates is the resource of the operator's CRD.
func nodeStates() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: nodestate.Group, Version: nodestate.Version, Resource: nodestate.Resource}
}

// want creates the node's object or changes its spec.
func (c *card) want(functions int) {
	c.Helper()
	c.apply(fmt.Sprintf(`apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodeState
metadata: {name: %s}
spec:
  interfaces:
  - {pciAddress: %q, name: %s, numVfs: %d%s, vfGroups: [{resourceName: gated, deviceType: vfio-pci, policyName: case, vfRange: "0-%d"}]}
`, testCluster.Node, c.pf.Address, c.pf.Netdev, functions, c.mtu, functions-1))
}

// setSyncStatus sets the operator's sync status of the node.
func (c *card) setSyncStatus(sync string) {
	c.Helper()
	patch := fmt.Appendf(nil, `{"status": {"syncStatus": %q}}`, sync)
	testkit.Value(testCluster.Dynamic.Resource(nodeStates()).Namespace(c.name).Patch(c.Context(), testCluster.Node, types.MergePatchType, patch, metav1.PatchOptions{}, "status"))(c)
}

// define creates a reduced CRD with the operator's fields and types. It is not
// deleted.
func (c *card) define() {
	c.Helper()
	testkit.Must(c, testCluster.Apply(c.Context(), nodeStateDefinition))
	testkit.Value(testCluster.Kubectl(c.Context(), "", "wait", "--for=condition=Established", "--timeout=60s", "crd/sriovnetworknodestates.sriovnetwork.openshift.io"))(c)
	c.until("the API server to serve the CRD", func(ctx context.Context) error {
		_, err := testCluster.Dynamic.Resource(nodeStates()).Namespace(c.name).List(ctx, metav1.ListOptions{})
		return err
	})
}

const nodeStateDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sriovnetworknodestates.sriovnetwork.openshift.io}
spec:
  group: sriovnetwork.openshift.io
  scope: Namespaced
  names: {kind: SriovNetworkNodeState, listKind: SriovNetworkNodeStateList, plural: sriovnetworknodestates, singular: sriovnetworknodestate}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            properties:
              bridges: {type: object, x-kubernetes-preserve-unknown-fields: true}
              system: {type: object, properties: {rdmaMode: {type: string, enum: [shared, exclusive]}}}
              interfaces:
                type: array
                items:
                  type: object
                  required: [pciAddress]
                  properties:
                    pciAddress: {type: string}
                    numVfs: {type: integer}
                    mtu: {type: integer}
                    name: {type: string}
                    linkType: {type: string}
                    eSwitchMode: {type: string}
                    externallyManaged: {type: boolean}
                    vfGroups:
                      type: array
                      items:
                        type: object
                        properties:
                          resourceName: {type: string}
                          deviceType: {type: string}
                          vfRange: {type: string}
                          policyName: {type: string}
                          mtu: {type: integer}
                          isRdma: {type: boolean}
                          vdpaType: {type: string}
          status:
            type: object
            properties:
              syncStatus: {type: string}
              lastSyncError: {type: string}
              bridges: {type: object, x-kubernetes-preserve-unknown-fields: true}
              system: {type: object, properties: {rdmaMode: {type: string}}}
              interfaces:
                type: array
                items:
                  type: object
                  required: [pciAddress]
                  properties:
                    name: {type: string}
                    mac: {type: string}
                    driver: {type: string}
                    pciAddress: {type: string}
                    vendor: {type: string}
                    deviceID: {type: string}
                    netFilter: {type: string}
                    mtu: {type: integer}
                    numVfs: {type: integer}
                    linkSpeed: {type: string}
                    linkType: {type: string}
                    linkAdminState: {type: string}
                    eSwitchMode: {type: string}
                    externallyManaged: {type: boolean}
                    totalvfs: {type: integer}
                    altNames: {type: array, items: {type: string}}
                    Vfs:
                      type: array
                      items:
                        type: object
                        required: [pciAddress, vfID]
                        properties:
                          name: {type: string}
                          mac: {type: string}
                          assigned: {type: string}
                          driver: {type: string}
                          pciAddress: {type: string}
                          vendor: {type: string}
                          deviceID: {type: string}
                          Vlan: {type: integer}
                          mtu: {type: integer}
                          vfID: {type: integer}
                          vdpaType: {type: string}
                          representorName: {type: string}
                          guid: {type: string}
`
