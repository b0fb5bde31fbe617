// Package gate decides when the devices of the SR-IOV plugin are offered to the
// kubelet. It is pure: events in, actions out, no I/O and no clock; time comes
// with each event, deadlines go out as actions.
//
// # The two machines
//
// Gate is the plugin as a whole: who answers for the devices (one holder, the
// newest; a lease; a hold time after an unexpected loss), and whether they may
// be offered. Resource is one resource: its registration, the list that the
// kubelet gets, its calls of Allocate. Gate tells a Resource Open, Close,
// Shutdown or Halt (To); a Resource tells Gate how it is (Tell, Reported). A
// plugin that is not controlled has the same machines, and Gate always wants
// everything open.
//
// Each opening and closing has a number, the epoch. A Resource says with each
// report which epoch it has reached, so that an old report never counts as an
// answer to a new closing, and a call that was admitted before a closing is
// refused after it even when the resource is open again.
//
// # What a kubelet needs
//
// The list of devices only ever loses an id that the kubelet has had as
// unhealthy for a second, with no call of Allocate running and none for a
// second: a kubelet from 1.34 on panics when it loses a device that it is
// allocating. That is so for one device that is gone and for a withdrawal,
// where all go unhealthy and the list is empty a second later. A withdrawal is
// done, and acknowledged, when calls have ended, the kubelet has the list
// without a healthy device, and PodResources, where it is there, offers none;
// the empty list, which takes the capacity to zero too, follows.
//
// A server is never stopped to pause: stop and start is a race that the kubelet
// loses. Nothing is served or registered before the first Open that finds a
// device; from then on server and registration stay until Shutdown. A stream
// that ends is waited for and then registered for again, at least a second
// later, with pauses that grow, for ever.
//
// # How effects drive it
//
// One goroutine owns each machine: it takes events from one channel, steps with
// the time at which the event came about, and does the actions in their order. It
// never blocks on an action: what may wait runs on a goroutine of its own, with
// the owner's context, and answers with an event.
//
//	for {
//		select {
//		case <-ctx.Done():
//			return ctx.Err()
//		case e := <-events:
//			for _, action := range machine.Step(e.at, e.event) {
//				do(action)
//			}
//		}
//	}
//
// What the goroutines around a Resource owe it:
//
//   - Serve and Register are each answered, by Served and Registered, also when
//     they fail. With the plugin watcher Registered comes when the kubelet has
//     said yes, however late that is. KubeletStarted comes when its socket is new.
//   - A handler of ListAndWatch numbers its stream, sends StreamUp, waits on a
//     mailbox of one list in which a newer replaces an older, sends Sent after
//     each, and StreamDown when its context ends. It never returns by itself
//     before Stop, and a list is for the stream that it names only.
//   - A handler of Allocate sends AllocateBegin and waits for Admit or Refuse; does
//     its work; looks at the device; sends AllocateCheck and waits for Approve or
//     Refuse; and sends AllocateEnd as the last thing, by defer, if it was
//     admitted. GetPreferredAllocation does the same: a kubelet chooses from its
//     list then.
//   - Confirm is one question to PodResources with a deadline of its own, and is
//     always answered; Known is false when there is nobody to ask.
//   - A To for a resource that has stopped begins a new machine.
//
// Around Gate, the server of the control socket makes a session for each
// stream, sends Enable and then Closed when the stream's context ends; Accept
// and Publish give it what it sends, End the status it returns. A slow reader
// gets the newest status only. The effects check peers and read the
// configuration again (Configured) before an Enable with another hash. Scan is
// answered after each Resource has its Snapshot, so that nothing is offered that
// was read before the node was configured; what is found at any other time goes
// to the Resource as a Snapshot at once. Heartbeat carries the moment at which
// the call came in.
//
// A timer (Arm, Set) replaces the one of that name. It may fire late, early or
// twice: the machine has the deadline.
package gate
