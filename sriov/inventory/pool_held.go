package inventory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

type heldDevice struct {
	id    string
	from  []string // resources: configured ones in order, then others by name; several are a conflict
	last  *Device  // when it was allocated; nil: not known
	found bool
}

// heldAssigner keeps devices that pods hold in their resource.
type heldAssigner struct {
	config    Config
	sels      []preparedSelector
	resources map[string]int
	held      map[string]*heldDevice
	byAddress map[string]*Function
}

func newHeldAssigner(c Config, sels []preparedSelector, held []HeldDevice, byAddress map[string]*Function) *heldAssigner {
	w := &heldAssigner{config: c, sels: sels, resources: map[string]int{}, held: map[string]*heldDevice{}, byAddress: byAddress}
	for i, r := range c.Resources {
		w.resources[r.FullName()] = i
	}
	for _, h := range w.sorted(held) {
		known := w.held[h.ID]
		if known == nil {
			known = &heldDevice{id: h.ID}
			w.held[h.ID] = known
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

// Containers of a pod can share a device; sorted makes order and number
// irrelevant.
func (w *heldAssigner) sorted(held []HeldDevice) []HeldDevice {
	rank := func(h HeldDevice) int {
		if i, ok := w.resources[h.Resource]; ok {
			return i
		}
		return math.MaxInt
	}
	text := func(d *Device) string {
		text, _ := json.Marshal(d)
		return string(text)
	}
	held = slices.Clone(held)
	slices.SortFunc(held, func(a, b HeldDevice) int {
		if c := cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID)); c != 0 || a.Last == b.Last {
			return c
		}
		return cmp.Compare(text(a.Last), text(b.Last))
	})
	return held
}

// merge adds properties that moved into the pod's network namespace.
func (h *heldDevice) merge(now Device) Device {
	if h == nil || h.last == nil || replacedReason(now, h.last) != "" || driverChangedReason(now, h.last) != "" {
		return now
	}
	d := now.Clone()
	if a, was := d.Auxiliary, h.last.Auxiliary; a != nil {
		a.Netdev, a.RDMA, a.RDMACapable = nonEmptyOr(a.Netdev, was.Netdev), nonEmptyOr(a.RDMA, was.RDMA), a.RDMACapable || was.RDMACapable
		return d
	}
	f, was := d.Function, h.last.Function
	f.Netdevs, f.RDMA, f.RDMACapable = nonEmptyOr(f.Netdevs, was.Netdevs), nonEmptyOr(f.RDMA, was.RDMA), f.RDMACapable || was.RDMACapable
	f.DDPProfile, f.PKey = cmp.Or(f.DDPProfile, was.DDPProfile), cmp.Or(f.PKey, was.PKey)
	return d
}

func nonEmptyOr[T any](now, last []T) []T {
	if len(now) > 0 {
		return now
	}
	return last
}

// replacedReason: the address or name was reused by another device.
func replacedReason(now Device, last *Device) string {
	f, was := now.Function, last.Function
	switch {
	case (now.Auxiliary == nil) != (last.Auxiliary == nil) || f.Kind != was.Kind:
		return "it is not the kind of device that was allocated to a pod"
	case f.Vendor != was.Vendor || f.Device != was.Device:
		return fmt.Sprintf("it is a %s:%s, a pod got a %s:%s", f.Vendor, f.Device, was.Vendor, was.Device)
	case now.Auxiliary == nil:
		return ""
	case f.Address != was.Address || now.Auxiliary.Index != last.Auxiliary.Index:
		return fmt.Sprintf("it is number %d of %s, a pod got number %d of %s", now.Auxiliary.Index, f.Address, last.Auxiliary.Index, was.Address)
	}
	return ""
}

func driverChangedReason(now Device, last *Device) string {
	whose, driver, was := "it", now.Function.Driver, last.Function.Driver
	if a := now.Auxiliary; a != nil {
		if a.Driver != last.Auxiliary.Driver {
			driver, was = a.Driver, last.Auxiliary.Driver
		} else {
			whose = "its parent " + now.Function.Address
		}
	}
	switch driver {
	case was:
		return ""
	case "":
		return fmt.Sprintf("%s has no driver, it was allocated to a pod with %s", whose, was)
	}
	return fmt.Sprintf("%s has the driver %s, it was allocated to a pod with %s", whose, driver, cmp.Or(was, "none"))
}

// assign also sets why the device is unhealthy.
func (w *heldAssigner) assign(h *heldDevice, d *candidate, now Device) {
	d.held, d.wrong = true, h.wrong(d, now)
	var why []string
	for _, name := range h.from {
		r, known := w.resources[name]
		first := slices.IndexFunc(w.sels, func(s preparedSelector) bool { return s.resource == r })
		if known && first >= 0 && w.sels[first].kind == d.kind {
			d.kept = append(d.kept, w.selector(h, d, first))
		} else if known {
			why = append(why, fmt.Sprintf("a pod has it from %s, which is of another device type than %s", name, d.kind))
		} else {
			why = append(why, fmt.Sprintf("a pod has it from %s, which is not in the configuration", name))
		}
	}
	if d.leftOut = ""; len(d.kept) == 0 {
		d.leftOut = joinReasons(why...)
	}
}

func (h *heldDevice) wrong(d *candidate, now Device) string {
	var all []string
	switch {
	case d.gone:
		all = append(all, "it is gone")
	case h.last == nil:
		all = append(all, d.leftOut)
	case replacedReason(now, h.last) != "":
		all = append(all, replacedReason(now, h.last), d.leftOut)
	case driverChangedReason(now, h.last) != "" && now.Function.Driver == "":
		all = append(all, driverChangedReason(now, h.last))
	default:
		all = append(all, driverChangedReason(now, h.last), d.leftOut)
	}
	if len(h.from) > 1 {
		all = append(all, "pods have it from "+strings.Join(h.from, " and ")+" at once")
	}
	return joinReasons(append(all, d.wrong)...)
}

func joinReasons(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

// selector prefers one that the device passes now or passed when allocated.
func (w *heldAssigner) selector(h *heldDevice, d *candidate, first int) int {
	was := d
	if h.last != nil {
		before := describe(*h.last, w.byAddress)
		was = &before
	}
	for _, asked := range []*candidate{d, was} {
		for j := first; asked.kind == d.kind && j < len(w.sels) && w.sels[j].resource == w.sels[first].resource; j++ {
			if w.sels[j].refusal(asked) == nil {
				return j
			}
		}
	}
	return first
}

// gone leaves out devices of other plugins. The order is undefined.
func (w *heldAssigner) gone() []candidate {
	var all []candidate
	for _, h := range w.held {
		i := slices.IndexFunc(h.from, func(name string) bool { _, ours := w.resources[name]; return ours })
		if h.found || h.last == nil && i < 0 {
			continue
		}
		now := Device{}
		if h.last != nil {
			now = h.last.Clone()
			now.ID = h.id
		} else {
			now = unknownDevice(h.id, w.config.Resources[w.resources[h.from[i]]].Type)
		}
		d := describe(now, w.byAddress)
		d.gone, d.held = true, true
		if !isDeviceID(h.id, d.kind) {
			d.leftOut = fmt.Sprintf("it is gone, and %.80q is not a valid id of a device of type %s", h.id, d.kind)
		} else if w.assign(h, &d, now); d.leftOut != "" {
			d.leftOut = "it is gone; " + d.leftOut
		}
		all = append(all, d)
	}
	return all
}

func unknownDevice(id string, t DeviceType) Device {
	f := Function{Address: id, Kind: NetworkClass, PF: id, VF: NoIndex, NUMA: NoNode}
	switch t {
	case Accelerator:
		f.Kind = AcceleratorClass
	case AuxNetDevice:
		f.Address, f.PF = "", ""
		a := Auxiliary{Name: id, Type: scalable, Index: NoIndex, Parent: f}
		return Device{ID: id, Function: &a.Parent, Auxiliary: &a}
	}
	return Device{ID: id, Function: &f}
}

func isDeviceID(id string, t DeviceType) bool {
	const maxLength = 63
	if t != AuxNetDevice {
		return isAddress(id)
	}
	_, _, _, ok := parseAuxiliary(id)
	return ok && len(id) <= maxLength && plainName.MatchString(id) && !strings.Contains(id, ":")
}
