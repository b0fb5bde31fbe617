package expose

import (
	"slices"
	"strings"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk/snap"
)

const (
	docaTransport = "DOCA"
	started       = "started"
	running       = "running"
)

// filesystem is what SNAP has of virtio-fs. Lists that SNAP could not have yet
// are empty: it is asked for managers when there is a transport, and for the
// rest when that is started.
type filesystem struct {
	transports []snap.Transport
	possible   []snap.Manager
	managers   []snap.Manager
	functions  []fsFunction
	devices    []fsDevice
	note       note
	others     []string // VUIDs in the notes of other devices
}

// fsFunction is a function with its manager.
type fsFunction struct {
	manager string
	PCI     string `json:"pci_address"` // empty: not plugged
	VUID    string `json:"vuid"`
	// Pluggable is "false" of a function that is always there.
	Pluggable string `json:"hot pluggable"`
}

// fsDevice is a device with what some releases tell of it, and others do not.
type fsDevice struct {
	snap.FSDevice
	VUID    *string `json:"vuid"` // empty: it is on no function
	Plugged *bool   `json:"hotplugged"`
}

// carries tells whether a function is known to carry a device.
func (s filesystem) carries(vuid string) bool {
	return slices.ContainsFunc(s.devices, func(d fsDevice) bool { return d.VUID != nil && *d.VUID == vuid })
}

func (s filesystem) function(fits func(fsFunction) bool) (fsFunction, bool) {
	if i := slices.IndexFunc(s.functions, fits); i >= 0 {
		return s.functions[i], true
	}
	return fsFunction{}, false
}

func (s filesystem) byVUID(vuid string) (fsFunction, bool) {
	return s.function(func(f fsFunction) bool { return vuid != "" && f.VUID == vuid })
}

// asked is the function that a request names.
func (s filesystem) asked(q Request) (fsFunction, bool) {
	if q.VUID != "" {
		return s.byVUID(q.VUID)
	}
	return s.function(func(f fsFunction) bool { return q.PCI != "" && pci(f.PCI) == q.PCI })
}

// lost is a function that an Expose made for the device when it was cut off
// before it knew the name.
func (s filesystem) lost() (fsFunction, bool) {
	if !s.note.Begun {
		return fsFunction{}, false
	}
	return s.function(func(f fsFunction) bool {
		return f.PCI == "" && !s.carries(f.VUID) && s.note.mayBe(f.VUID, s.others)
	})
}

func (s filesystem) device(name string) (fsDevice, bool) {
	if i := slices.IndexFunc(s.devices, func(d fsDevice) bool { return d.Name == name }); i >= 0 {
		return s.devices[i], true
	}
	return fsDevice{}, false
}

// of is the function of a device: what SNAP says, or else what the request or
// the note do.
func (s filesystem) of(d fsDevice, q Request) (fsFunction, bool) {
	if d.VUID != nil && *d.VUID != "" {
		return s.byVUID(*d.VUID)
	}
	if f, found := s.asked(q); found {
		return f, true
	}
	return s.byVUID(s.note.VUID)
}

// plugged tells whether the host has a device.
func (d fsDevice) plugged(f fsFunction) bool {
	if d.Plugged != nil {
		return *d.Plugged
	}
	return f.PCI != ""
}

// untold is the error of a device of which nobody knows the function: another
// one must not be made for it, and none that is another's be destroyed.
func (s filesystem) untold(d fsDevice) error {
	var names []string
	for _, f := range s.functions {
		names = append(names, strings.TrimSpace(f.VUID+" "+f.PCI))
	}
	return errs.Errorf(errs.Precondition, "SNAP does not tell on which function the virtio-fs device %s is, and there is no note of it: give its VUID or PCI address; there are %s",
		d.Name, orWord(strings.Join(names, ", "), "none"))
}

// ground is the next step to a transport that works.
func (s filesystem) ground() (Step, error) {
	i := slices.IndexFunc(s.transports, func(t snap.Transport) bool { return t.Name == docaTransport })
	if i < 0 {
		return Step{Op: CreateTransport}, nil
	}
	if len(s.possible) == 0 {
		return Step{}, errs.Errorf(errs.Precondition, "SNAP has no RDMA device that could emulate virtio-fs: enable that in the firmware's configuration")
	}
	if !slices.Contains(s.managers, s.possible[0]) {
		return Step{Op: CreateManager, Manager: s.possible[0].Name}, nil
	}
	if s.transports[i].State != started {
		return Step{Op: StartTransport}, nil
	}
	return Step{}, nil
}

// expose is the next step towards a device that the host has; none: it has it.
func (s filesystem) expose(q Request, did steps) (Step, Exposed, error) {
	if step, err := s.ground(); err != nil || step.Op != "" {
		return step, Exposed{}, err
	}
	if i := slices.IndexFunc(s.devices, func(d fsDevice) bool { return (d.Fsdev == q.Device) != (d.Name == fsName(q.Device)) }); i >= 0 {
		d := s.devices[i]
		return Step{}, Exposed{}, errs.Errorf(errs.Exists, "the virtio-fs device %s shows the file system device %s: neither may be exposed under another's name", d.Name, d.Fsdev)
	}
	d, there := s.device(fsName(q.Device))
	if !there {
		step, err := s.seat(q)
		return step, Exposed{}, err
	}
	f, known := s.of(d, q)
	if !known {
		return Step{}, Exposed{}, s.untold(d)
	}
	if want, found := s.asked(q); q.PCI+q.VUID != "" && (!found || want.VUID != f.VUID) {
		return Step{}, Exposed{}, errs.Errorf(errs.Exists, "it is on the function %s at %s already, not on %s: hide it first, or leave that out", f.VUID, orWord(f.PCI, "no address"), q.PCI+q.VUID)
	}
	step, err := s.run(d, f, did)
	return step, Exposed{
		Device: q.Device, Mode: string(request.Filesystem), VUID: f.VUID, PCI: f.PCI, Name: d.Name, Tag: d.Tag,
	}, err
}

// seat is the next step to a device, which needs a function first.
func (s filesystem) seat(q Request) (Step, error) {
	create := Step{Op: CreateDevice}
	if q.PCI != "" || q.VUID != "" {
		f, found := s.asked(q)
		if !found {
			return Step{}, errs.Errorf(errs.NotFound, "SNAP emulates no virtio-fs function %s", q.PCI+q.VUID)
		}
		if s.carries(f.VUID) {
			return Step{}, errs.Errorf(errs.Busy, "the virtio-fs function %s carries a device", q.PCI+q.VUID)
		}
		return create, nil
	}
	if f, found := s.byVUID(s.note.VUID); found && !s.carries(f.VUID) {
		return create, nil
	}
	if f, found := s.lost(); found {
		return Step{Op: NoteFunction, Function: f.VUID}, nil
	}
	return Step{Op: CreateFSFunction, Manager: s.possible[0].Name}, nil
}

// run is the next step of a device that is there, until the host has it.
func (s filesystem) run(d fsDevice, f fsFunction, did steps) (Step, error) {
	place := Step{Op: PlaceDevice, Manager: f.manager, Function: f.VUID}
	if on := d.VUID; d.State != running && !did[place] && (on == nil || *on != f.VUID) {
		return place, nil
	}
	if d.State != running {
		return Step{Op: StartDevice}, nil
	}
	if !d.plugged(f) && f.Pluggable != "false" {
		return Step{Op: PlugDevice}, nil
	}
	if f.PCI == "" {
		return Step{}, errs.Errorf(errs.Unavailable, "SNAP plugged the function %s in and shows no PCI address of it: is the host on?", f.VUID)
	}
	return Step{}, nil
}

// hide is all that is left to do until nothing of the exposure is there. The
// transport and the manager stay: others are on them.
func (s filesystem) hide(q Request, did steps) ([]Step, error) {
	var all []Step
	f, known := s.byVUID(s.note.VUID)
	d, there := s.device(fsName(q.Device))
	if there {
		if f, known = s.of(d, q); !known && (d.VUID == nil || *d.VUID != "") {
			return nil, s.untold(d)
		}
		all = s.unseat(all, d, f, did)
	} else if !known {
		// What a call that was cut off may have left, or what the caller knows
		// of from an earlier answer.
		if f, known = s.lost(); !known && q.VUID != "" {
			f, known = s.byVUID(q.VUID)
		}
	}
	mine := known && (there && d.VUID != nil && *d.VUID == f.VUID || !s.carries(f.VUID))
	if mine && f.Pluggable != "false" {
		all = append(all, Step{Op: DestroyFSFunction, Manager: f.manager, Function: f.VUID})
	}
	if s.note.there {
		all = append(all, Step{Op: ForgetNote})
	}
	return all, nil
}

// unseat adds the steps that take a device from the host and remove it.
func (s filesystem) unseat(all []Step, d fsDevice, f fsFunction, did steps) []Step {
	pluggable := f.Pluggable != "false"
	// Once the device is gone nothing tells whose function it was.
	if pluggable && f.VUID != "" && f.VUID != s.note.VUID {
		all = append(all, Step{Op: NoteFunction, Function: f.VUID})
	}
	unplug, settle := Step{Op: UnplugDevice}, Step{Op: SettleDevice}
	if pluggable && d.plugged(f) {
		if !did[unplug] {
			all = append(all, unplug)
		}
		if !did[settle] {
			all = append(all, settle)
		}
	}
	if d.State == running {
		all = append(all, Step{Op: StopDevice})
	}
	return append(all, Step{Op: DestroyDevice})
}
