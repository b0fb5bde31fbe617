// Package daemon is the config daemon of the SR-IOV functions of a node: it
// lets the device plugin offer them only while they are as a
// SriovNetworkNodeState wants them.
//
// # Apply
//
// In this mode the daemon itself makes them so. A plan with nothing left to do
// opens the gate. Any other plan closes it first, whatever the reason: another
// wish, or functions that changed by themselves. So the gate is open only while
// the newest wish that makes sense is true, for all of the node: a plugin offers
// everything or nothing, and a PF with a problem keeps the others back. A wish
// that changes nothing on the node takes the gate over without a withdrawal.
//
// No step is done before the plugin has acknowledged that nothing is offered,
// and before the kubelet was asked, after that, which pods hold functions and
// what is still offered. A function that a step disturbs and a pod holds blocks
// the whole plan, unless told otherwise. The gate stays closed meanwhile, as a
// cordon does: were it open, pods would go on getting functions that are about
// to change, and the node might never come to where it should be. Where the
// kubelet cannot be asked nothing is touched either.
//
// A plugin that cannot acknowledge is given a time. When nobody serves the
// control socket and the kubelet still offers the functions after it, that is a
// plugin without a gate: the daemon goes on with a warning, as the one of the
// operator always does; pods that hold functions are respected even so.
//
// The scheduler may bind pods to a node for some ten seconds after it offers
// nothing. Their admission fails, no function comes to harm; Settle waits for
// longer where that is to be avoided.
//
// What is under way is on record before the first step. After a restart in the
// middle the gate is closed before anything else, and the work goes on; a
// restart with nothing to do opens it at once.
//
// # Follow
//
// In this mode the operator's own daemon configures the node. The gate closes
// with any change of uid, generation or spec, and with any sync status but
// Succeeded; it opens when the status is Succeeded and a plan of ours, made
// after that was heard, finds nothing to do. The status carries no generation,
// so the word alone may be an old one. Problems count as steps do, except those
// of PFs that the node does not have: the operator passes over them, and nothing
// of them can be offered. What remains is the time between a change and the
// moment when this daemon hears of it, in which the operator's may have begun.
//
// # Whose gate
//
// When another daemon takes over, or a person has everything taken back, this
// one does not fight: it waits for another wish, or a restart.
package daemon
