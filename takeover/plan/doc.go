// Package plan decides, by one pure function, what the takeover controller does
// for one remediation of a lost node.
//
// Next gets an Observation, which is what the API server and the backends say
// now, and returns a Step: the status that the object must have, and actions.
// The controller writes the status first; only when the object already has it,
// it performs the actions. Then it observes again. Nothing is remembered
// between two observations, so a controller that was killed, or whose write or
// answer was lost, continues where the object and the backends are.
//
// The status of the object grows in this order, and each part is there before
// what follows from it is done:
//
//	Record       what the node was: its machines, volumes and clients
//	Intent       which addresses are fenced at which backend; from now on a
//	             fence can exist, and only a Release lifts it
//	Certificate  every backend of the intent was read back and holds
//	Release      the old machines are rebooted or off
//
// The out-of-service taint follows a certificate that a second, complete
// observation still finds true.
package plan
