package inventory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// heldDevice is a device that pods have.
type heldDevice struct {
	id    string
	from  []string // full names of resources, as configured, then others by name; more than one is a contradiction
	last  *Device  // as it was when a pod got it; nil: not known
	found bool     // it is on the machine
}

// heldAssigner looks after what pods have: it finds each device its place.
type heldAssigner struct {
	config    Config
	sels      []preparedSelector
	first     map[int]int    // by resource: the first of its selectors in sels
	resources map[string]int // by full name
	holds     map[string]*heldDevice
	byAddress map[string]*Function
}

func newHeldAssigner(c Config, sels []preparedSelector, held []HeldDevice, byAddress map[string]*Function) *heldAssigner {
	w := &heldAssigner{config: c, sels: sels, first: map[int]int{}, resources: map[string]int{}, holds: map[string]*heldDevice{}, byAddress: byAddress}
	for i, r := range c.Resources {
		w.resources[r.FullName()] = i
	}
	for j := len(sels) - 1; j >= 0; j-- {
		w.first[sels[j].resource] = j
	}
	for _, h := range w.sorted(held) {
		known := w.holds[h.ID]
		if known == nil {
			known = &heldDevice{id: h.ID}
			w.holds[h.ID] = known
		}
		if n := len(known.from); n == 0 || known.from[n-1] != h.Resource {
			known.from = append(known.from, h.Resource)
		}
		if known.last == nil && h.Last != nil && h.Last.Function != nil {
			known.last = h.Last
		}
	}
	return w
}

// sorted makes nothing of the order in which holders are told, nor of their
// number: the containers of a pod may share a device.
func (w *heldAssigner) sorted(held []HeldDevice) []HeldDevice {
	rank := func(h HeldDevice) int {
		if i, ok := w.resources[h.Resource]; ok {
			return i
		}
		return math.MaxInt
	}
	held = slices.Clone(held)
	slices.SortFunc(held, func(a, b HeldDevice) int {
		if c := cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID)); c != 0 || a.Last == b.Last {
			return c
		}
		return cmp.Compare(deviceText(a.Last), deviceText(b.Last))
	})
	return held
}

// deviceText orders descriptions of one device that differ.
func deviceText(d *Device) string {
	text, _ := json.Marshal(d) // a struct of strings and numbers
	return string(text)
}

// overlay is the device with what moved away with the pod.
func (h *heldDevice) overlay(now Device) Device {
	last := h.last
	if last == nil || replacedReason(now, last) != "" || driverChangedReason(now, last) != "" {
		return now
	}
	if now.Auxiliary != nil {
		a := *now.Auxiliary
		was := last.Auxiliary
		a.Netdev, a.RDMA, a.RDMACapable = nonEmptyOr(a.Netdev, was.Netdev), nonEmptyOr(a.RDMA, was.RDMA), a.RDMACapable || was.RDMACapable
		return Device{ID: now.ID, Function: &a.Parent, Auxiliary: &a}
	}
	f, was := *now.Function, last.Function
	f.Netdevs, f.RDMA, f.RDMACapable = nonEmptyOr(f.Netdevs, was.Netdevs), nonEmptyOr(f.RDMA, was.RDMA), f.RDMACapable || was.RDMACapable
	f.DDPProfile, f.PKey = cmp.Or(f.DDPProfile, was.DDPProfile), cmp.Or(f.PKey, was.PKey)
	return Device{ID: now.ID, Function: &f}
}

func nonEmptyOr[T any](now, last []T) []T {
	if len(now) > 0 {
		return now
	}
	return last
}

// replacedReason says how a device is not the one that a pod got: its address or name
// was given anew.
func replacedReason(now Device, last *Device) string {
	f, was := now.Function, last.Function
	switch {
	case (now.Auxiliary == nil) != (last.Auxiliary == nil) || f.Kind != was.Kind:
		return "it is another kind of device than the one that a pod got"
	case f.Vendor != was.Vendor || f.Device != was.Device:
		return fmt.Sprintf("it is a %s:%s, a pod got a %s:%s", f.Vendor, f.Device, was.Vendor, was.Device)
	case now.Auxiliary == nil:
		return ""
	case f.Address != was.Address || now.Auxiliary.Index != last.Auxiliary.Index:
		return fmt.Sprintf("it is number %d of %s, a pod got number %d of %s", now.Auxiliary.Index, f.Address, last.Auxiliary.Index, was.Address)
	}
	return ""
}

// driverChangedReason says that a device has another driver than it was given with.
func driverChangedReason(now Device, last *Device) string {
	say := func(whose, driver, was string) string {
		if driver == "" {
			return fmt.Sprintf("%s has no driver, it was given to a pod with %s", whose, was)
		}
		return fmt.Sprintf("%s has the driver %s, it was given to a pod with %s", whose, driver, cmp.Or(was, "none"))
	}
	if now.Auxiliary != nil && now.Auxiliary.Driver != last.Auxiliary.Driver {
		return say("it", now.Auxiliary.Driver, last.Auxiliary.Driver)
	}
	if driver, was := now.Function.Driver, last.Function.Driver; driver != was {
		if now.Auxiliary != nil {
			return say("its parent "+now.Function.Address, driver, was)
		}
		return say("it", driver, was)
	}
	return ""
}

// settle finds the selectors that keep a device, or why none does, and what is
// wrong with it. now is the device without an overlay.
func (w *heldAssigner) settle(h *heldDevice, d *candidate, now Device) {
	d.held, d.wrong = true, h.wrong(d, now)
	var why []string
	for _, name := range h.from {
		r, known := w.resources[name]
		if j, some := w.first[r]; known && some && w.sels[j].kind == d.kind {
			d.kept = append(d.kept, w.selector(h, d, j))
		} else if known {
			why = append(why, fmt.Sprintf("a pod has it from %s, which is of another device type than %s", name, d.kind))
		} else {
			why = append(why, fmt.Sprintf("a pod has it from %s, which is not in the configuration", name))
		}
	}
	if d.leftOut = ""; len(d.kept) == 0 {
		d.leftOut = strings.Join(why, "; ")
	}
}

// wrong is all that is wrong with a device that a pod has.
func (h *heldDevice) wrong(d *candidate, now Device) string {
	var all []string
	switch {
	case d.gone:
		all = append(all, "it is gone")
	case h.last == nil:
		all = append(all, d.leftOut)
	case replacedReason(now, h.last) != "":
		all = append(all, replacedReason(now, h.last), d.leftOut)
	case driverChangedReason(now, h.last) != "" && d.driver == "":
		all = append(all, driverChangedReason(now, h.last)) // it says all that leftOut does
	default:
		all = append(all, driverChangedReason(now, h.last), d.leftOut)
	}
	if len(h.from) > 1 {
		all = append(all, "pods have it from "+strings.Join(h.from, " and ")+" at once")
	}
	all = append(all, d.wrong)
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

// selector is the one of a resource that a device stays with, first being the
// resource's first: one that it passes, or passed when it was given.
func (w *heldAssigner) selector(h *heldDevice, d *candidate, first int) int {
	was := d
	if h.last != nil {
		before := w.describe(*h.last)
		was = &before
	}
	for _, asked := range []*candidate{d, was} {
		for j := first; j < len(w.sels) && w.sels[j].resource == w.sels[first].resource; j++ {
			if w.sels[j].refusal(asked) == nil {
				return j
			}
		}
	}
	return first
}

// describe puts a device into the words that filters use.
func (w *heldAssigner) describe(d Device) candidate {
	if d.Auxiliary != nil {
		return describeAuxiliary(d.Auxiliary, w.byAddress)
	}
	return describeFunction(d.Function, w.byAddress)
}

// gone are the devices that pods have and the machine has not, in no order.
// Those of other plugins are none: nobody here ever knew them.
func (w *heldAssigner) gone() []candidate {
	var all []candidate
	for _, h := range w.holds {
		i := slices.IndexFunc(h.from, func(name string) bool { _, ours := w.resources[name]; return ours })
		if h.found || h.last == nil && i < 0 {
			continue
		}
		now := Device{}
		if h.last != nil {
			now = h.last.copy(h.id)
		} else {
			now = nameless(h.id, w.config.Resources[w.resources[h.from[i]]].Type)
		}
		d := w.describe(now)
		d.gone, d.held, d.ID = true, true, h.id
		if !fits(h.id, d.kind) {
			d.leftOut = fmt.Sprintf("it is gone, and %.80q is no id of a device of type %s", h.id, d.kind)
		} else if w.settle(h, &d, now); d.leftOut != "" {
			d.leftOut = "it is gone; " + d.leftOut
		}
		all = append(all, d)
	}
	return all
}

func (d *Device) copy(id string) Device {
	if d.Auxiliary != nil {
		a := *d.Auxiliary
		a.Parent = *d.Function
		return Device{ID: id, Function: &a.Parent, Auxiliary: &a}
	}
	f := *d.Function
	return Device{ID: id, Function: &f}
}

// nameless is a device of which nothing but its id is known.
func nameless(id string, t DeviceType) Device {
	f := Function{Address: id, Kind: NetworkClass, PF: id, VF: NoIndex, NUMA: NoNode}
	switch t {
	case Accelerator:
		f.Kind = AcceleratorClass
	case AuxNetDevice:
		f.Address, f.PF = "", ""
		a := Auxiliary{Name: id, Type: "sf", Index: NoIndex, Parent: f}
		return Device{ID: id, Function: &a.Parent, Auxiliary: &a}
	}
	return Device{ID: id, Function: &f}
}

// fits tells whether an id that others told can be one of ours: 0000:3b:02.1 or
// mlx5_core.sf.4, of the length that the kubelet allows.
func fits(id string, t DeviceType) bool {
	const longest = 63
	shape := func(separators string, s string) bool {
		for _, r := range s {
			if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(separators, r)) {
				return false
			}
		}
		return true
	}
	if len(id) > longest {
		return false
	}
	if t == AuxNetDevice {
		parts := strings.Split(id, ".")
		return len(parts) == 3 && !slices.Contains(parts, "") && shape("._-", id)
	}
	return strings.Count(id, ":") == 2 && strings.Count(id, ".") == 1 && shape(":.", id)
}
