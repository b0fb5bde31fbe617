// Package daemon is the config daemon of the SR-IOV functions of a node: the
// device plugin offers them only while they are in the state that a
// SriovNetworkNodeState specifies.
//
// # The loop
//
// One goroutine (internal/actor) owns the reconciler. An event brings one fact:
// the desired state, a change of the node or of the gate, the result of an
// action. After each, reconcile starts the next action that is safe:
//
//	observe   read the node, then the kubelet: which pods hold functions, what is offered
//	plan      pure: the steps from the observed to the desired state (package plan)
//	withdraw  close the gate; the plugin acknowledges that nothing is offered
//	record    that steps begin, so that a process after a crash withdraws first
//	apply     one step, then the next; after the last one observe and plan again
//	enable    nothing is left to do: open the gate for uid, generation and config hash
//
// At most one of observe, record and apply runs. The desired state, a withdrawal
// and a process that stood still make an observation that runs obsolete.
//
// # Apply
//
// In this mode the daemon configures the node. The gate is that of the node: a
// PF with a problem keeps the others back. A desired state that changes nothing
// takes the gate over without a withdrawal. A difference in what is offered
// counts when two observations in a row find it.
//
// A function that a step disturbs and a pod holds blocks the whole plan, unless
// forced. The gate stays closed meanwhile, as with a cordon; were it open, pods
// would get functions that are about to change. Without an answer of the kubelet
// nothing is changed either.
//
// A plugin that cannot acknowledge is given a time. If the kubelet still offers
// the functions after it, the plugin has no gate: the daemon goes on with a
// warning, as the operator's does, and respects pods even so.
//
// The scheduler binds pods to a node for some ten seconds after it offers
// nothing. Their admission fails, no function comes to harm; Settle waits longer.
//
// # Follow
//
// In this mode the operator's daemon configures the node. The gate closes with
// any change of uid, generation or spec, and with any sync status but Succeeded;
// it opens when the status is Succeeded and a plan made after that finds nothing
// to do. The status carries no generation, so it alone may be an old one. What
// remains is the time between a change and its event, in which the operator may
// have begun.
//
// # Ownership
//
// When another daemon takes the gate over, or a user withdraws the devices, this
// daemon waits for another desired state, or a restart.
package daemon
