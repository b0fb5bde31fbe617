// Package gate decides when the devices of the SR-IOV plugin are offered to the
// kubelet. It is pure: each method handles one event at a given time, and a Driver
// is asked for I/O. The caller holds a lock and calls Tick at Next; what a caller
// waits for is in the value that it got (Session, Disabling, Stream).
//
// # State machine
//
// A Gate has the claim that holds the devices (the newest one, with a lease, and a
// hold time after an unexpected disconnect) and, for each resource, registration,
// device list and Allocate calls. After each event every resource does what is due
// (advance). Outside controlled mode all resources stay open.
//
// A claim can close functions: their devices are withdrawn while the resource is
// open. A device that moves to a closed function is withdrawn, too, and the
// acknowledgement with it.
//
// A call admitted before a closing is refused after it, even if the device is
// offered again. An answer of PodResources counts only for the query that was the
// last: it never acknowledges a newer closing.
//
// # Kubelet constraints
//
// A device leaves the list only after the kubelet has had it as unhealthy for a
// second, with no Allocate in flight and none for a second: a kubelet from 1.34
// on panics when it loses a device that it is allocating. In a withdrawal all
// devices become unhealthy, and the list is empty a second later. A withdrawal
// is acknowledged when calls have ended, the kubelet has the list without a
// healthy device, and PodResources lists no allocatable device of the resource.
// A kubelet that does not answer is asked again; one that does not serve
// PodResources counts as withdrawn, unconfirmed.
//
// A server is never stopped to pause: the kubelet loses the race between stop
// and start. Nothing is served or registered before the first opening that finds a
// device; from then on server and registration stay until the end. After the
// end of a stream the resource registers again, at least a second later, with
// exponential backoff and without an attempt limit.
//
// # Callers
//
//   - A handler of Allocate calls Begin, prepares the devices, calls Check before it
//     answers OK, and End. GetPreferredAllocation does the same, because the kubelet
//     is then about to allocate.
//   - A handler of ListAndWatch calls Listen, sends each newer List (it can skip
//     some) and calls Sent after each, and Hangup at its end.
//   - A handler of EnableDevices calls Enable, sends each newer Status, and calls
//     Disconnect at its end; it ends when the Session does.
package gate
