package model

// The world of the model: node A, which is lost and returns; node B, which stays
// healthy; two backends; two volumes that a backend fences, v1 at backend 0 and
// v2 at backend 1, and v3 that nothing fences; two remediations of A, one after
// the other or at the same time; two controllers.

const (
	v1, v2, v3    = 1, 2, 4
	addressA      = 1
	addressB      = 2
	administrator = 2 // owner of fences, and of the taint: after the two remediations
)

// world is one state. It is comparable, so that each is explored once.
type world struct {
	// What is true of A's machine. It runs on while it has no network.
	boot    uint8 // 1, 2, 3
	off     bool
	mounted uint8 // volumes that this boot can write
	// What is true elsewhere.
	network  bool  // the machine that has A's name reaches the API server
	replaced bool  // another machine has A's name
	moved    uint8 // volumes that other nodes use since A's takeover

	// API server.
	node    nodeObject
	objects [2]object
	volumes uint8 // of A, that the API server knows
	pods    bool  // pods of A exist
	foreign bool  // a source of A's addresses names that of B

	held        [2][3]uint8 // addresses, by backend and owner
	adminFenced bool
	lifted      [2]bool // an administrator lifted fences of this backend by force

	leaders [2]leader
	elected bool  // the second controller leads; the first one does not know it
	late    bool  // the first one fenced after that
	budget  uint8 // events that can still happen
}

// nodeObject is the Node object of A.
type nodeObject struct {
	exists, ready, unschedulable bool
	uid, machine, boot           uint8
	claimBy, claimTerm           uint8 // remediation + 1
	claimCordoned, claimLeft     bool
	taint                        uint8 // owner + 1
	cordonOf                     uint8 // owner + 1: who made it unschedulable; not observable
}

// object is a remediation.
type object struct {
	exists, ended                 bool
	finalizer, deleting, timedOut bool
	off                           uint16 // status + 1 whose record an administrator confirmed
	status                        uint16 // in model.statuses
}

// leader is a controller. It reads the remediation last.
type leader struct {
	phase       phase
	remediation uint8
	read        read // zero when decided
	nodeFresh   bool // the Node object has the resourceVersion that was read
	objectFresh bool // the remediation too
	step        uint16
	left        uint8 // actions of the step that are not done, as bits; writeStatus is the write
	volumes     uint8 // as read, to judge the step
	held        uint8 // backends that held A for the remediation as read, as bits
}

// read is what a controller reads before the remediation.
type read struct {
	node    nodeObject
	volumes uint8
	held    [2]uint8 // addresses by backend, for the remediation
	anyone  [2]uint8 // for all owners; only a mutant uses it
	intent  uint16   // status whose intent was known then
}

type phase uint8

const (
	idle phase = iota
	reading
	acting
)

const writeStatus = 1 << 7

// changeNode and changeObject are any write: what was read before it is stale.
func (w *world) changeNode(n nodeObject) {
	if w.node == n {
		return
	}
	w.node = n
	for i := range w.leaders {
		w.leaders[i].nodeFresh = false
	}
}

func (w *world) changeObject(r uint8, o object) {
	if w.objects[r] == o {
		return
	}
	if o.deleting && !o.finalizer {
		o = object{ended: true, status: o.status}
	}
	w.objects[r] = o
	for i := range w.leaders {
		if w.leaders[i].remediation == r {
			w.leaders[i].objectFresh = false
		}
	}
}

func (w *world) isHeld(backend int) bool {
	return (w.held[backend][0]|w.held[backend][1]|w.held[backend][administrator])&addressA != 0
}

// initial: A has lost its network while it writes v1, and NodeHealthCheck has
// created a remediation.
func initial(budget uint8) world {
	w := world{boot: 1, mounted: v1, volumes: v1, pods: true, budget: budget}
	w.node = nodeObject{exists: true, uid: 1, machine: 1, boot: 1}
	w.objects[0].exists = true
	return w
}

// event is something that no controller does.
type event struct {
	name string
	do   func(w *world, m *model) (possible bool)
}

// report is what A's kubelet writes when it reaches the API server.
func (w *world) report(ready bool) {
	n := w.node
	if !n.exists {
		n = nodeObject{exists: true, uid: n.uid + 1}
	}
	n.ready, n.machine, n.boot = ready, 1, w.boot
	if w.replaced {
		n.machine, n.boot = 2, 1
	}
	w.changeNode(n)
}

func (w *world) runs() bool { return w.replaced || !w.off }

func (w *world) changeByAdmin(change func(*nodeObject)) bool {
	n := w.node
	change(&n)
	if !n.exists || n == w.node {
		return false
	}
	w.changeNode(n)
	return true
}

var events = []event{
	{"A's network returns", func(w *world, _ *model) bool {
		if w.network || !w.runs() {
			return false
		}
		w.network = true
		w.report(true)
		return true
	}},
	{"A registers and is not Ready", func(w *world, _ *model) bool {
		if w.network || !w.runs() {
			return false
		}
		w.report(false)
		return true
	}},
	{"A is lost again", func(w *world, _ *model) bool {
		if !w.network {
			return false
		}
		w.network = false
		n := w.node
		n.ready = false
		w.changeNode(n)
		return true
	}},
	{"A's machine boots", func(w *world, _ *model) bool {
		if w.boot == 3 {
			return false
		}
		w.boot, w.off, w.mounted = w.boot+1, false, 0
		if w.network && !w.replaced {
			w.report(true)
		}
		return true
	}},
	{"another machine gets A's name", func(w *world, _ *model) bool {
		if w.network || w.replaced {
			return false
		}
		w.replaced, w.network = true, true
		w.report(true)
		return true
	}},
	{"a pod starts on A", func(w *world, _ *model) bool {
		n := w.node
		if !w.network || w.replaced || !n.exists || n.unschedulable || n.taint != 0 {
			return false
		}
		before := *w
		for b, v := range []uint8{v1, v2} {
			if w.volumes&v != 0 && !w.isHeld(b) { // storage grants nothing to a fenced client
				w.mounted, w.moved, w.pods = w.mounted|v, w.moved&^v, true
			}
		}
		return *w != before
	}},
	{"an administrator deletes the Node object", func(w *world, _ *model) bool {
		if !w.node.exists {
			return false
		}
		w.changeNode(nodeObject{uid: w.node.uid})
		return true
	}},
	{"an administrator cordons A", func(w *world, _ *model) bool {
		return w.changeByAdmin(func(n *nodeObject) {
			if !n.unschedulable {
				n.unschedulable, n.cordonOf = true, administrator+1
				if n.claimCordoned { // uncordoned and cordoned again: no record of it exists
					n.cordonOf = n.claimBy
				}
			}
		})
	}},
	{"an administrator uncordons A", func(w *world, _ *model) bool {
		return w.changeByAdmin(func(n *nodeObject) { n.unschedulable, n.cordonOf = false, 0 })
	}},
	{"an administrator taints A", func(w *world, _ *model) bool {
		return w.changeByAdmin(func(n *nodeObject) {
			if n.taint == 0 {
				n.taint = administrator + 1
			}
		})
	}},
	{"an administrator removes the taint", func(w *world, _ *model) bool {
		return w.changeByAdmin(func(n *nodeObject) { n.taint = 0 })
	}},
	{"an administrator fences A", func(w *world, _ *model) bool {
		if w.held[0][administrator] != 0 {
			return false
		}
		w.held[0][administrator], w.adminFenced = addressA, true
		return true
	}},
	{"an administrator lifts the fences of backend 0", func(w *world, _ *model) bool {
		if w.held[0] == [3]uint8{} {
			return false
		}
		w.held[0], w.lifted[0] = [3]uint8{}, true
		return true
	}},
	{"an administrator switches A off and confirms it", func(w *world, m *model) bool {
		o := w.objects[0]
		if !o.exists || m.statuses[o.status].Record == nil || w.replaced {
			return false
		}
		w.off, w.mounted, w.network, o.off = true, 0, false, o.status+1
		n := w.node
		n.ready = false
		w.changeNode(n)
		w.changeObject(0, o)
		return true
	}},
	{"an administrator or NodeHealthCheck deletes the first remediation", func(w *world, _ *model) bool {
		o := w.objects[0]
		if !o.exists || o.deleting {
			return false
		}
		o.deleting = true
		w.changeObject(0, o)
		return true
	}},
	{"NodeHealthCheck ends the first remediation", func(w *world, _ *model) bool {
		o := w.objects[0]
		if !o.exists || o.timedOut {
			return false
		}
		o.timedOut = true
		w.changeObject(0, o)
		return true
	}},
	{"a second remediation is created", func(w *world, _ *model) bool {
		if w.objects[1].exists || w.objects[1].ended {
			return false
		}
		w.changeObject(1, object{exists: true})
		return true
	}},
	{"volume v2 appears", func(w *world, _ *model) bool {
		if w.volumes&v2 != 0 {
			return false
		}
		w.volumes |= v2
		// A kubelet that has not reached the API server since its boot knows of no pods.
		if !w.off && w.node.exists && w.node.machine == 1 && w.node.boot == w.boot && !w.isHeld(1) {
			w.mounted |= v2
		}
		return true
	}},
	{"volume v3 appears", func(w *world, _ *model) bool {
		if w.volumes&v3 != 0 {
			return false
		}
		w.volumes |= v3
		return true
	}},
	{"all volumes are gone from the API server", func(w *world, _ *model) bool {
		if w.volumes == 0 {
			return false
		}
		w.volumes = 0
		return true
	}},
	{"a source of A's addresses names B's", func(w *world, _ *model) bool {
		if w.foreign {
			return false
		}
		w.foreign = true
		return true
	}},
	{"the second controller is elected", func(w *world, _ *model) bool {
		if w.elected {
			return false
		}
		w.elected = true
		return true
	}},
}
