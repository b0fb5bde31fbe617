// Package gate decides when the devices of the SR-IOV plugin are offered to the
// kubelet. It is pure: events in, actions out, no I/O and no clock; time comes with
// each event, deadlines go out as Set.
//
// # The two machines
//
// Gate is the plugin as a whole: who holds the devices (the newest claim, with a
// lease and a hold time after an unexpected loss), and whether they can be offered.
// Resource is one resource: its registration, the kubelet's list, the calls of
// Allocate. A Gate sends its Resources Open, Close, Shutdown or Halt (To); a
// Resource reports each change (Notify, Reported). Without controlled mode the Gate
// keeps everything open.
//
// Each opening and closing has a number, the epoch. A report carries the epoch that
// the Resource has reached, so that a stale report never acknowledges a new closing;
// a call that was admitted before a closing is refused after it, even if the
// resource is open again.
//
// # What a kubelet needs
//
// A device leaves the list only after the kubelet has had it as unhealthy for a
// second, with no Allocate running and none for a second: a kubelet from 1.34 on
// panics when it loses a device that it is allocating. In a withdrawal all devices
// go unhealthy, and the list is empty a second later. A withdrawal is acknowledged
// when calls have ended, the kubelet has the list without a healthy device, and
// PodResources, if available, offers none.
//
// A server is never stopped to pause: stop and start is a race that the kubelet
// loses. Nothing is served or registered before the first Open that finds a device;
// from then on server and registration stay until Shutdown. After the end of a
// stream the resource registers again, at least a second later, with a growing
// pause, for ever.
//
// # Driving the machines
//
// One goroutine steps the machines and does the actions in their order without
// blocking (sriov/plugin/loop.go):
//
//   - Serve, Register, Confirm and Scan are always answered, also after a failure.
//     Snapshots of a scan come before its Scanned.
//   - A handler of ListAndWatch sends StreamUp, passes on lists (a newer one
//     replaces one that was not sent) with Sent after each, and sends StreamDown at
//     its end. It ends with its context or with Stop.
//   - A handler of Allocate sends AllocateBegin and waits for Admit; does its work;
//     sends AllocateCheck and waits for Approve; and sends AllocateEnd last, in any
//     case. GetPreferredAllocation does the same: the kubelet is choosing then.
//   - A stream of EnableDevices sends Enable, then Closed at its end; Publish and
//     End are what it sends. Heartbeat carries the time at which the call came in.
//   - After the Stop of a resource its name needs a new machine.
//   - A timer can fire late, early or twice: the machine has the deadline.
package gate
