package spdktest

import (
	"context"
	"fmt"
	"slices"
)

// snap is the state of a SNAP process that exposes bdevs to the host. Methods,
// parameters and members of lists are [R]; error codes are [I].
type snap struct {
	subsystems []*snapSubsystem
	functions  []*function
	lastCtrl   int
	lastVF     int
}

type snapSubsystem struct {
	nqn, serial, model string
	namespaces         []*snapNamespace
}

type snapNamespace struct {
	id          uint32
	uuid        string
	bdev        *bdev
	controllers []*snapController // to which the namespace is attached
}

type snapController struct {
	id        string
	subsystem *snapSubsystem
	function  *function
	suspended bool
}

type function struct {
	vuid, bdf  string // assigned at the hot-plug
	hotplug    bool
	plugged    bool
	controller *snapController
}

// newSNAP has one static function.
func newSNAP() snap {
	return snap{functions: []*function{{vuid: newVUID("NVMES0D0F0"), bdf: "0000:5e:00.2", plugged: true}}}
}

func snapMethods(envelope bool) map[string]method {
	nqn := map[string]kind{"nqn": text}
	ns := map[string]kind{"ctrl_id": text, "nsid": number}
	ctrl := map[string]kind{"ctrl_id": text, "wait_for_done": flag, "timeout_ms": number}
	all := map[string]method{
		"nvme_subsystem_list": {run: snapSubsystems},
		"nvme_subsystem_create": {run: snapSubsystemCreate, takes: needs(map[string]kind{
			"nqn": text, "serial_number": text, "model_number": text, "nn": number, "mnan": number,
		}, "nqn")},
		"nvme_subsystem_destroy": {run: snapSubsystemDestroy, takes: needs(map[string]kind{"nqn": text, "force": flag}, "nqn")},
		"nvme_namespace_create": {run: snapNamespaceCreate, takes: needs(map[string]kind{
			"nqn": text, "bdev_type": text, "bdev_name": text, "nsid": number, "uuid": text, "nguid": text, "eui64": text, "md_size": number,
		}, "nqn", "bdev_name", "nsid")},
		"nvme_namespace_destroy":  {run: snapNamespaceDestroy, takes: needs(map[string]kind{"nqn": text, "nsid": number}, "nqn", "nsid")},
		"emulation_function_list": {run: functions, takes: needs(map[string]kind{"all": flag})},
		"nvme_function_create":    {run: functionCreate},
		"nvme_function_destroy":   {run: functionDestroy, takes: needs(map[string]kind{"vuid": text}, "vuid")},
		"nvme_controller_create": {run: snapControllerCreate, takes: needs(map[string]kind{
			"nqn": text, "vuid": text, "pci_bdf": text, "pf_id": number, "vf_id": number, "ctrl_id": text, "num_queues": number,
			"mdts": number, "fw_slots": number, "suspended": flag, "admin_only": flag, "quirks": number,
			"write_zeroes": flag, "compare": flag, "compare_write": flag,
		}, "nqn")},
		"nvme_controller_list":      {run: snapControllers, takes: needs(nqn)},
		"nvme_controller_attach_ns": {run: attachNamespace, takes: needs(ns, "ctrl_id", "nsid")},
		"nvme_controller_detach_ns": {run: detachNamespace, takes: needs(ns, "ctrl_id", "nsid")},
		"nvme_controller_resume":    {run: suspend(false), takes: needs(ctrl, "ctrl_id")},
		"nvme_controller_suspend":   {run: suspend(true), takes: needs(ctrl, "ctrl_id")},
		"nvme_controller_hotplug":   {run: plug(true), takes: needs(ctrl, "ctrl_id")},
		"nvme_controller_hotunplug": {run: plug(false), takes: needs(ctrl, "ctrl_id")},
		"nvme_controller_destroy":   {run: snapControllerDestroy, takes: needs(map[string]kind{"ctrl_id": text, "force": flag}, "ctrl_id")},
	}
	for name, m := range virtioFSMethods() {
		all[name] = m
	}
	if envelope {
		for name, m := range all {
			m.run = enveloped(m.run)
			all[name] = m
		}
	}
	return all
}

// enveloped responds like SNAP 5, where a failure is a result. The texts are
// [I].
func enveloped(run func(*Process, context.Context, args) (any, *Error)) func(*Process, context.Context, args) (any, *Error) {
	return func(p *Process, ctx context.Context, a args) (any, *Error) {
		result, e := run(p, ctx, a)
		if e != nil {
			return map[string]any{"status": "SNAP_ERROR", "result": nil, "message": e.Message}, nil
		}
		return map[string]any{"status": "SNAP_SUCCESS", "result": result, "message": ""}, nil
	}
}

func (s *snap) subsystem(nqn string) *snapSubsystem {
	for _, x := range s.subsystems {
		if x.nqn == nqn {
			return x
		}
	}
	return nil
}

func (x *snapSubsystem) namespace(id uint32) *snapNamespace {
	for _, n := range x.namespaces {
		if n.id == id {
			return n
		}
	}
	return nil
}

func (s *snap) controller(id string) *snapController {
	for _, f := range s.functions {
		if f.controller != nil && f.controller.id == id {
			return f.controller
		}
	}
	return nil
}

func (s *snap) forget(b *bdev) {
	for _, x := range s.subsystems {
		x.namespaces = slices.DeleteFunc(x.namespaces, func(n *snapNamespace) bool { return n.bdev == b })
	}
}

func snapSubsystems(p *Process, _ context.Context, _ args) (any, *Error) {
	all := []map[string]any{}
	for _, x := range p.snap.subsystems {
		spaces := []map[string]any{}
		for _, n := range x.namespaces {
			ids := []map[string]any{}
			for _, c := range n.controllers {
				ids = append(ids, map[string]any{"ctrl_id": c.id})
			}
			spaces = append(spaces, map[string]any{
				"nsid": n.id, "bdev": n.bdev.name, "bdev_type": "spdk", "uuid": n.uuid, "controllers": ids,
			})
		}
		all = append(all, map[string]any{
			"nqn": x.nqn, "serial_number": x.serial, "model_number": x.model, "namespaces": spaces,
			"controllers": p.snap.showControllers(x),
		})
	}
	return all, nil
}

func (s *snap) showControllers(x *snapSubsystem) []map[string]any {
	all := []map[string]any{}
	for _, f := range s.functions {
		if c := f.controller; c != nil && (x == nil || c.subsystem == x) {
			all = append(all, map[string]any{"ctrl_id": c.id, "pci_bdf": f.bdf, "vuid": f.vuid, "suspended": c.suspended})
		}
	}
	return all
}

func snapSubsystemCreate(p *Process, _ context.Context, a args) (any, *Error) {
	nqn := a.text("nqn")
	if p.snap.subsystem(nqn) != nil {
		return nil, errno(eEXIST)
	}
	p.snap.subsystems = append(p.snap.subsystems, &snapSubsystem{nqn: nqn, serial: a.text("serial_number"), model: a.text("model_number")})
	return map[string]any{"nqn": nqn}, nil
}

func snapSubsystemDestroy(p *Process, _ context.Context, a args) (any, *Error) {
	x := p.snap.subsystem(a.text("nqn"))
	switch {
	case x == nil:
		return nil, errno(eNODEV)
	case len(x.namespaces) > 0 || len(p.snap.showControllers(x)) > 0:
		return nil, errno(eBUSY)
	}
	p.snap.subsystems = slices.DeleteFunc(p.snap.subsystems, func(y *snapSubsystem) bool { return y == x })
	return true, nil
}

func snapNamespaceCreate(p *Process, _ context.Context, a args) (any, *Error) {
	x, b := p.snap.subsystem(a.text("nqn")), p.bdev(a.text("bdev_name"))
	id := uint32(a.number("nsid"))
	switch {
	case x == nil || b == nil:
		return nil, errno(eNODEV)
	case id == 0 || orElse(a.text("bdev_type"), "spdk") != "spdk":
		return nil, errno(eINVAL)
	case x.namespace(id) != nil:
		return nil, errno(eEXIST)
	case b.claims > 0:
		return nil, errno(ePERM)
	}
	b.claims++
	x.namespaces = append(x.namespaces, &snapNamespace{id: id, uuid: orElse(a.text("uuid"), b.uuid), bdev: b})
	return true, nil
}

func snapNamespaceDestroy(p *Process, _ context.Context, a args) (any, *Error) {
	x := p.snap.subsystem(a.text("nqn"))
	if x == nil {
		return nil, errno(eNODEV)
	}
	n := x.namespace(uint32(a.number("nsid")))
	switch {
	case n == nil:
		return nil, errno(eNODEV)
	case len(n.controllers) > 0:
		return nil, errno(eBUSY)
	}
	n.bdev.claims--
	x.namespaces = slices.DeleteFunc(x.namespaces, func(y *snapNamespace) bool { return y == n })
	return true, nil
}

func functions(p *Process, _ context.Context, _ args) (any, *Error) {
	all := []map[string]any{}
	for _, f := range p.snap.functions {
		shown := map[string]any{"emulation_type": "NVME", "hotplugged": f.hotplug && f.plugged, "pci_bdf": f.bdf, "vuid": f.vuid, "vfs": []any{}}
		if f.controller != nil {
			shown["ctrl_id"] = f.controller.id
		}
		all = append(all, shown)
	}
	return all, nil
}

func functionCreate(p *Process, _ context.Context, _ args) (any, *Error) {
	p.snap.lastVF++
	f := &function{vuid: newVUID(fmt.Sprintf("NVMES1D%dF0", p.snap.lastVF)), hotplug: true}
	p.snap.functions = append(p.snap.functions, f)
	return map[string]any{"vuid": f.vuid}, nil
}

func (s *snap) function(vuid, bdf string) *function {
	for _, f := range s.functions {
		if vuid != "" && f.vuid == vuid || bdf != "" && f.bdf == bdf {
			return f
		}
	}
	return nil
}

func functionDestroy(p *Process, _ context.Context, a args) (any, *Error) {
	f := p.snap.function(a.text("vuid"), "")
	switch {
	case f == nil:
		return nil, errno(eNODEV)
	case !f.hotplug:
		return nil, errno(eINVAL)
	case f.controller != nil || f.plugged:
		return nil, errno(eBUSY)
	}
	p.snap.functions = slices.DeleteFunc(p.snap.functions, func(x *function) bool { return x == f })
	return true, nil
}

func snapControllerCreate(p *Process, _ context.Context, a args) (any, *Error) {
	x, f := p.snap.subsystem(a.text("nqn")), p.snap.function(a.text("vuid"), a.text("pci_bdf"))
	switch {
	case x == nil || f == nil:
		return nil, errno(eNODEV)
	case f.controller != nil:
		return nil, errno(eEXIST)
	}
	p.snap.lastCtrl++
	f.controller = &snapController{
		id:        orElse(a.text("ctrl_id"), fmt.Sprintf("NVMeCtrl%d", p.snap.lastCtrl)),
		subsystem: x, function: f, suspended: a.flag("suspended"),
	}
	return map[string]any{"ctrl_id": f.controller.id}, nil
}

func snapControllers(p *Process, _ context.Context, a args) (any, *Error) {
	var x *snapSubsystem
	if a.has("nqn") {
		if x = p.snap.subsystem(a.text("nqn")); x == nil {
			return nil, errno(eNODEV)
		}
	}
	return p.snap.showControllers(x), nil
}

func attachNamespace(p *Process, _ context.Context, a args) (any, *Error) {
	c := p.snap.controller(a.text("ctrl_id"))
	if c == nil {
		return nil, errno(eNODEV)
	}
	n := c.subsystem.namespace(uint32(a.number("nsid")))
	switch {
	case n == nil:
		return nil, errno(eNODEV)
	case slices.Contains(n.controllers, c):
		return nil, errno(eEXIST)
	}
	n.controllers = append(n.controllers, c)
	return true, nil
}

func detachNamespace(p *Process, _ context.Context, a args) (any, *Error) {
	c := p.snap.controller(a.text("ctrl_id"))
	if c == nil {
		return nil, errno(eNODEV)
	}
	n := c.subsystem.namespace(uint32(a.number("nsid")))
	if n == nil || !slices.Contains(n.controllers, c) {
		return nil, errno(eNODEV)
	}
	n.controllers = slices.DeleteFunc(n.controllers, func(x *snapController) bool { return x == c })
	return true, nil
}

func suspend(wanted bool) func(*Process, context.Context, args) (any, *Error) {
	return func(p *Process, _ context.Context, a args) (any, *Error) {
		c := p.snap.controller(a.text("ctrl_id"))
		switch {
		case c == nil:
			return nil, errno(eNODEV)
		case c.suspended == wanted:
			return nil, errno(eINVAL)
		}
		c.suspended = wanted
		return true, nil
	}
}

func plug(wanted bool) func(*Process, context.Context, args) (any, *Error) {
	return func(p *Process, _ context.Context, a args) (any, *Error) {
		c := p.snap.controller(a.text("ctrl_id"))
		switch {
		case c == nil:
			return nil, errno(eNODEV)
		case !c.function.hotplug || c.function.plugged == wanted:
			return nil, errno(eINVAL)
		}
		c.function.plugged = wanted
		c.function.bdf = ""
		if wanted {
			p.snap.lastVF++
			c.function.bdf = fmt.Sprintf("0000:60:%02x.%d", p.snap.lastVF/8, p.snap.lastVF%8)
		}
		return true, nil
	}
}

// snapControllerDestroy with force detaches attached namespaces.
func snapControllerDestroy(p *Process, _ context.Context, a args) (any, *Error) {
	c := p.snap.controller(a.text("ctrl_id"))
	if c == nil {
		return nil, errno(eNODEV)
	}
	for _, n := range c.subsystem.namespaces {
		if slices.Contains(n.controllers, c) && !a.flag("force") {
			return nil, errno(eBUSY)
		}
		n.controllers = slices.DeleteFunc(n.controllers, func(x *snapController) bool { return x == c })
	}
	c.function.controller = nil
	return true, nil
}
