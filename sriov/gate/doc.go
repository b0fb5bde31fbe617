// Package gate decides when the devices of the SR-IOV plugin are offered to the
// kubelet. It is pure: events in, actions out. Time comes with each event;
// deadlines are returned as Set.
//
// # State machines
//
// Gate is the state machine of the plugin: which claim holds the devices (the
// newest one, with a lease, and a hold time after an unexpected disconnect) and
// whether they are offered. Resource is that of one resource: registration,
// device list, and Allocate calls. A Gate sends its Resources Open, Close,
// Shutdown or Halt (Forward), and a Resource reports each change (Notify,
// Reported). Outside controlled mode all resources stay open.
//
// A claim can close functions: the Restrict of a Gate withdraws their devices
// while the resource is open, and has a number like the epoch. A device that moves
// to a closed function is withdrawn, too, and the acknowledgement with it.
//
// Each opening and closing has a number, the epoch. A report carries the epoch
// reached: a stale one never acknowledges a newer closing. A call admitted
// before a closing is refused after it, even if the resource is open again.
//
// # Kubelet constraints
//
// A device leaves the list only after the kubelet has had it as unhealthy for a
// second, with no Allocate in flight and none for a second: a kubelet from 1.34
// on panics when it loses a device that it is allocating. In a withdrawal all
// devices become unhealthy, and the list is empty a second later. A withdrawal
// is acknowledged when calls have ended, the kubelet has the list without a
// healthy device, and PodResources, if available, lists no allocatable device
// of the resource.
//
// A server is never stopped to pause: the kubelet loses the race between stop
// and start. Nothing is served or registered before the first Open that finds a
// device; from then on server and registration stay until Shutdown. After the
// end of a stream the resource registers again, at least a second later, with
// exponential backoff and without an attempt limit.
//
// # Driving the machines
//
// One goroutine steps the machines and runs the actions in order without
// blocking (sriov/plugin/loop.go):
//
//   - Serve, Register, Confirm and Scan are always answered, also after a failure.
//     Snapshots of a scan come before its Scanned.
//   - A handler of ListAndWatch sends StreamUp, passes on lists (a newer one
//     replaces an unsent one) with Sent after each, and sends StreamDown at
//     its end. It ends with its context or with Stop.
//   - A handler of Allocate sends AllocateBegin and waits for Admit, prepares the
//     devices, sends AllocateCheck and waits for Approve, and always sends
//     AllocateEnd last. GetPreferredAllocation does the same, because the kubelet
//     is then about to allocate.
//   - A stream of EnableDevices sends Enable, then StreamClosed at its end; it sends
//     Publish and EndStream to its client. Heartbeat carries the time at which the
//     call arrived.
//   - After the Stop of a resource its name needs a new machine.
//   - A timer can fire late, early or twice: the machine has the deadline.
package gate
