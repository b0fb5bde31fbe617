package expose

import (
	"slices"
	"strings"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk/snap"
)

// block is what SNAP has of block devices.
type block struct {
	subsystems []snap.Subsystem
	functions  []snap.Function // of NVMe, the virtual ones among them
	suspended  map[string]bool // by controller; of one that is missing it is not told
	note       note
	others     []string // VUIDs in the notes of other devices
	random     string   // UUID of a namespace that asks for none
}

// flat is a list of functions with the virtual ones beside the physical.
func flat(all []snap.Function) []snap.Function {
	var out []snap.Function
	for _, f := range all {
		if f.EmulationType == snap.EmulationNVMe {
			out = append(append(out, f), flat(f.VFs)...)
		}
	}
	return out
}

func (s block) function(fits func(snap.Function) bool) (snap.Function, bool) {
	if i := slices.IndexFunc(s.functions, fits); i >= 0 {
		return s.functions[i], true
	}
	return snap.Function{}, false
}

func (s block) byVUID(vuid string) (snap.Function, bool) {
	return s.function(func(f snap.Function) bool { return vuid != "" && f.VUID == vuid })
}

func (s block) byPCI(address string) (snap.Function, bool) {
	return s.function(func(f snap.Function) bool { return address != "" && pci(f.PCI) == pci(address) })
}

func (s block) byController(id string) (snap.Function, bool) {
	return s.function(func(f snap.Function) bool { return id != "" && f.Controller == id })
}

// pluggable tells whether a function comes and goes. Releases differ in whether
// one that is not plugged has an address already, and is called hot-plugged.
func pluggable(f snap.Function) bool {
	return f.Hotplugged || f.PCI == ""
}

// lost is a function that an Expose made for the device when it was cut off
// before it knew the name.
func (s block) lost() (snap.Function, bool) {
	if !s.note.Begun {
		return snap.Function{}, false
	}
	return s.function(func(f snap.Function) bool {
		return f.VUID != "" && f.Controller == "" && pluggable(f) && s.note.mayBe(f.VUID, s.others)
	})
}

// elsewhere tells whether a controller shows other devices than this one.
func (s block) elsewhere(id, device string) bool {
	for _, sub := range s.subsystems {
		for _, ns := range sub.Namespaces {
			if ns.Bdev != device && slices.Contains(ns.Controllers, snap.ControllerRef{ID: id}) {
				return true
			}
		}
	}
	return false
}

// place is where a device is in SNAP, or will be.
type place struct {
	own       string // NQN of the subsystem for the device alone
	nqn       string // of that with its namespace; own when there is none
	there     bool   // that subsystem exists
	namespace *snap.Namespace
	// controllers that show the device, or were made to: the latter have no
	// namespace yet.
	controllers []string
}

func (p place) attached(id string) bool {
	return p.namespace != nil && slices.Contains(p.namespace.Controllers, snap.ControllerRef{ID: id})
}

// find looks a device up.
func (s block) find(q Request) place {
	p := place{own: NQN(q.Device)}
	p.nqn = p.own
	for _, sub := range s.subsystems {
		for _, ns := range sub.Namespaces {
			if ns.Bdev == q.Device && (p.namespace == nil || sub.NQN == p.own) {
				p.nqn, p.namespace = sub.NQN, &ns
			}
		}
	}
	i := slices.IndexFunc(s.subsystems, func(sub snap.Subsystem) bool { return sub.NQN == p.nqn })
	if i < 0 {
		return p
	}
	p.there = true
	if p.namespace != nil {
		for _, c := range p.namespace.Controllers {
			p.controllers = append(p.controllers, c.ID)
		}
	}
	for _, c := range s.subsystems[i].Controllers {
		if !slices.Contains(p.controllers, c.ID) && s.ours(c.ID, q, p) {
			p.controllers = append(p.controllers, c.ID)
		}
	}
	return p
}

// ours tells whether a controller without the namespace was made for the device:
// in the subsystem that holds the device alone it was; in one of others its
// function says so.
func (s block) ours(id string, q Request, p place) bool {
	if s.elsewhere(id, q.Device) {
		return false
	}
	f, known := s.byController(id)
	return p.nqn == p.own || known && f.VUID != "" && (f.VUID == s.note.VUID || f.VUID == s.note.Given)
}

// expose is the next step towards a device that the host has; none: it has it.
func (s block) expose(q Request, did steps) (Step, Exposed, error) {
	p := s.find(q)
	if !p.there {
		return Step{Op: CreateSubsystem, NQN: p.nqn}, Exposed{}, nil
	}
	if p.namespace == nil {
		step, err := s.space(q, p)
		return step, Exposed{}, err
	}
	if ns := p.namespace; q.NSID != 0 && ns.NSID != q.NSID || q.UUID != "" && !strings.EqualFold(ns.UUID, q.UUID) {
		return Step{}, Exposed{}, errs.Errorf(errs.Exists, "it is namespace %d with the UUID %s of %s already, not %d with %s: hide it first, or leave them out",
			ns.NSID, ns.UUID, p.nqn, q.NSID, orWord(q.UUID, "any"))
	}
	if len(p.controllers) == 0 {
		step, err := s.seat(q, p)
		return step, Exposed{}, err
	}
	id := p.controllers[0]
	f, known := s.byController(id)
	if !known {
		return Step{}, Exposed{}, errs.Errorf(errs.Precondition, "SNAP lists no function with the controller %s of %s", id, p.nqn)
	}
	if q.PCI != "" && pci(f.PCI) != q.PCI || q.VUID != "" && f.VUID != q.VUID {
		return Step{}, Exposed{}, errs.Errorf(errs.Exists, "it is on the function %s at %s already, not on %s: hide it first, or leave that out", f.VUID, orWord(f.PCI, "no address"), q.PCI+q.VUID)
	}
	step, err := s.run(p, f, did)
	return step, Exposed{
		Device: q.Device, Mode: string(request.Block), VUID: f.VUID, PCI: f.PCI,
		Controller: id, NQN: p.nqn, NSID: p.namespace.NSID, UUID: p.namespace.UUID,
	}, err
}

// space is the step to a namespace.
func (s block) space(q Request, p place) (Step, error) {
	step := Step{Op: CreateNamespace, NQN: p.nqn, NSID: max(q.NSID, 1), UUID: orWord(q.UUID, s.random)}
	for _, sub := range s.subsystems {
		for _, ns := range sub.Namespaces {
			if sub.NQN == p.nqn && ns.NSID == step.NSID {
				return Step{}, errs.Errorf(errs.Exists, "namespace %d of %s is of the bdev %s: give another id", ns.NSID, p.nqn, ns.Bdev)
			}
		}
	}
	return step, nil
}

// seat is the next step to a controller on a function.
func (s block) seat(q Request, p place) (Step, error) {
	create := Step{Op: CreateController, NQN: p.nqn}
	if q.PCI != "" || q.VUID != "" {
		f, found := s.byPCI(q.PCI)
		if q.VUID != "" {
			f, found = s.byVUID(q.VUID)
		}
		if !found {
			return Step{}, errs.Errorf(errs.NotFound, "SNAP emulates no NVMe function %s; free are %s", q.PCI+q.VUID, s.free())
		}
		if f.Controller != "" {
			return Step{}, errs.Errorf(errs.Busy, "the NVMe function %s carries the controller %s; free are %s", q.PCI+q.VUID, f.Controller, s.free())
		}
		if p.nqn != p.own && f.VUID != s.note.Given {
			return Step{Op: NoteGiven, Function: f.VUID}, nil
		}
		if create.PCI = f.PCI; q.VUID != "" {
			create.PCI, create.Function = "", f.VUID
		}
		return create, nil
	}
	if f, found := s.byVUID(s.note.VUID); found && f.Controller == "" && pluggable(f) {
		create.Function = f.VUID
		return create, nil
	}
	if f, found := s.lost(); found {
		return Step{Op: NoteFunction, Function: f.VUID}, nil
	}
	return Step{Op: CreateFunction}, nil
}

func (s block) free() string {
	var names []string
	for _, f := range s.functions {
		if f.Controller == "" {
			names = append(names, orWord(f.PCI, f.VUID))
		}
	}
	return orWord(strings.Join(names, ", "), "none")
}

// run is the next step of a controller that is there, until the host has it.
func (s block) run(p place, f snap.Function, did steps) (Step, error) {
	id := f.Controller
	if !p.attached(id) {
		return Step{Op: AttachNamespace, Controller: id, NSID: p.namespace.NSID}, nil
	}
	suspended, told := s.suspended[id]
	if resume := (Step{Op: ResumeController, Controller: id, Maybe: !told}); !did[resume] && (suspended || !told) {
		return resume, nil
	}
	if !pluggable(f) {
		return Step{}, nil
	}
	plugs := []Step{{Op: PlugController, Controller: id}, {Op: PlugController, Controller: id, Maybe: true}}
	if !did[plugs[0]] && !did[plugs[1]] {
		if f.PCI == "" {
			return plugs[0], nil
		}
		return plugs[1], nil
	}
	if f.PCI == "" {
		return Step{}, errs.Errorf(errs.Unavailable, "SNAP plugged the function %s in and shows no PCI address of it: is the host on?", f.VUID)
	}
	return Step{}, nil
}

// hide is all that is left to do until nothing of the exposure is there.
func (s block) hide(q Request, did steps) ([]Step, error) {
	p := s.find(q)
	var all []Step
	vuid := s.note.VUID
	for _, id := range p.controllers {
		var of string
		if all, of = s.unseat(all, p, id, q.Device, did); of != "" {
			vuid = of
		}
	}
	if p.namespace != nil {
		all = append(all, Step{Op: DestroyNamespace, NQN: p.nqn, NSID: p.namespace.NSID})
	}
	f, found := s.byVUID(vuid)
	if !found {
		f, found = s.lost()
	}
	// One that carries the controller of another device is not this one's any more.
	if found && pluggable(f) && (f.Controller == "" || slices.Contains(p.controllers, f.Controller)) {
		all = append(all, Step{Op: DestroyFunction, Function: f.VUID})
	}
	if s.onlyHolds(p.own, q.Device, p.controllers) {
		all = append(all, Step{Op: DestroySubsystem, NQN: p.own})
	}
	if s.note.there {
		all = append(all, Step{Op: ForgetNote})
	}
	return all, nil
}

// unseat adds the steps that take a device from a controller, and the controller
// from its function; of is the VUID of that, where it is one to be destroyed.
func (s block) unseat(all []Step, p place, id, device string, did steps) (_ []Step, of string) {
	detach := Step{Op: DetachNamespace, Controller: id}
	if p.attached(id) {
		detach.NSID = p.namespace.NSID
	}
	if s.elsewhere(id, device) {
		return append(all, detach), "" // it is not the device's alone
	}
	f, known := s.byController(id)
	// Once it has no namespace nothing tells whose controller it is.
	if known && !pluggable(f) && p.nqn != p.own && f.VUID != s.note.Given {
		all = append(all, Step{Op: NoteGiven, Function: f.VUID})
	}
	if known && pluggable(f) {
		of = f.VUID
		// Once the controller is gone nothing tells whose function it was.
		if of != s.note.VUID {
			all = append(all, Step{Op: NoteFunction, Function: of})
		}
		if unplug := (Step{Op: UnplugController, Controller: id}); f.PCI != "" && !did[unplug] {
			all = append(all, unplug)
		}
	}
	if p.attached(id) {
		all = append(all, detach)
	}
	return append(all, Step{Op: DestroyController, Controller: id}), of
}

// onlyHolds tells whether a subsystem is there and has nothing but the device.
func (s block) onlyHolds(nqn, device string, controllers []string) bool {
	for _, sub := range s.subsystems {
		if sub.NQN == nqn {
			return !slices.ContainsFunc(sub.Namespaces, func(n snap.Namespace) bool { return n.Bdev != device }) &&
				!slices.ContainsFunc(sub.Controllers, func(c snap.ControllerRef) bool { return !slices.Contains(controllers, c.ID) })
		}
	}
	return false
}

func orWord(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
