// Package daemon is the config daemon of a node's SR-IOV functions: it lets the
// device plugin offer them only while they are in the state that a
// SriovNetworkNodeState specifies.
//
// # Reconcile loop
//
// One goroutine (internal/actor) owns the reconciler. An event reports one
// fact: the desired state, a change of the node or of the gate, or the result
// of an action. After each event, reconcile starts the next action that is
// safe:
//
//	observe   read the node, then the kubelet: which pods hold functions, which are allocatable
//	plan      pure: the steps from the observed to the desired state (package plan)
//	enable    a claim that closes the functions that differ, and offers the others
//	withdraw  close the gate; the plugin acknowledges that no device is offered
//	record    persist that steps begin, so that a process after a crash withdraws first
//	apply     run one step, then the next; after the last one observe and plan again
//	enable    no steps left: offer all for uid, generation and config hash
//
// At most one of observe, record and apply runs at a time. A new desired state,
// a withdrawal and a suspended process make a running observation obsolete.
//
// # Mode apply
//
// The daemon configures the node. What a plan closes (plan.Closes) is a pure
// function of it: a VF, a PF, the PFs of a card, or the whole node. The claim
// carries the functions, and steps run only on functions that the plugin has
// acknowledged as withdrawn and that, observed after that, no pod holds. A
// desired state that changes nothing takes over the gate without a withdrawal.
// While a function is offered, a difference counts only if two observations in a
// row find it.
//
// If a pod holds a function that a step disturbs, the step waits, unless forced.
// The function stays closed meanwhile, as with a cordon: otherwise pods would get
// functions that are about to change. If the kubelet does not answer, nothing is
// changed either.
//
// A PF that drifts again, or whose repair fails, waits (closed.go) with
// exponential backoff, and the others go on.
//
// A plugin that cannot close single functions, refuses to, or has not acknowledged
// it in time, gets a withdrawal of the whole node; so does a process that starts
// after one that was interrupted during steps, and a node state that goes back to
// an older generation, whose claim the plugin refuses.
//
// A plugin that cannot acknowledge a withdrawal gets a timeout. If the kubelet
// still has the functions as allocatable after it, the plugin does not
// implement the gate: the daemon continues with a warning, as the operator's
// daemon does, but still respects pods.
//
// The scheduler binds pods to a node for about ten seconds after the node
// offers no devices. Their admission fails, and no function is affected; a
// delay before the first step (Rules) avoids such pods.
//
// # What pods leave
//
// Before the reconciler gets an observation, the tracker compares each function
// that no pod holds with its baseline, and records new baselines. A change is an
// administrator's or the daemon's own only if no pod held the function since it
// was like its baseline; the plan resets all others. A poll of the kubelet finds
// pods that come and go without an event of the kernel.
//
// # Mode follow
//
// The operator's daemon configures the node. The gate closes with any change of
// uid, generation or spec, and with any sync status but Succeeded. It opens
// when the status is Succeeded and a later plan has no steps. The status
// carries no generation, so alone it might be stale. A window remains between a
// change and its event, in which the operator might already have started.
//
// # Ownership
//
// When another daemon takes over the gate, or a user withdraws the devices,
// this daemon waits for another desired state or a restart.
package daemon
