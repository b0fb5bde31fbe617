// Package placement makes claims with a data source be created where the data
// is: a restore or a clone of a volume in a node's pool can exist on that node
// only, and the scheduler does not know which one it is. From Kubernetes 1.37 on
// it even prefers the node with the most free capacity, so that it selects the
// same wrong node each time.
//
// Controller watches claims that wait for their first consumer. When a pod that
// uses such a claim waits for a node, and the claim has none, Controller names
// the node of the source in the annotation volume.kubernetes.io/selected-node, as
// the scheduler would. The scheduler then considers only this node, and the
// provisioner on it creates the volume.
//
//	snapshot  label snapshot.storage.kubernetes.io/managed-by of its content
//	claim     node affinity of its volume, key topology.cleat.dev/node
//
// If the scheduler was first, the provisioner of its node answers
// RESOURCE_EXHAUSTED and removes the annotation. The scheduler notices that up to
// a second later, Controller at once. A lost race repeats both.
//
// No claim is named without a waiting pod: that would create volumes before they
// are used. A node that cannot take the pod is not named either: an event on the
// claim says why. When the source's node rejects the claim, as with a full pool,
// the next attempt follows with exponential backoff.
//
// All state is in the API server, each write requires the version of the claim
// that was read, and every instance names the same node: instances that overlap
// during an update do no harm.
package placement
