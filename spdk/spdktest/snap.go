package spdktest

import (
	"context"
	"slices"
)

// snap is the state of a SNAP process that exposes bdevs to the host: what cleat
// reads. Methods, parameters and members of lists are [R]; error codes are [I].
type snap struct {
	subsystems []*snapSubsystem
}

type snapSubsystem struct {
	nqn, serial, model string
	namespaces         []*snapNamespace
}

type snapNamespace struct {
	id   uint32
	uuid string
	bdev *bdev
}

func snapMethods(envelope bool) map[string]method {
	all := map[string]method{
		"nvme_subsystem_list": {run: snapSubsystems},
		"nvme_subsystem_create": {run: snapSubsystemCreate, takes: needs(map[string]kind{
			"nqn": text, "serial_number": text, "model_number": text, "nn": number, "mnan": number,
		}, "nqn")},
		"nvme_subsystem_destroy": {run: snapSubsystemDestroy, takes: needs(map[string]kind{"nqn": text, "force": flag}, "nqn")},
		"nvme_namespace_create": {run: snapNamespaceCreate, takes: needs(map[string]kind{
			"nqn": text, "bdev_type": text, "bdev_name": text, "nsid": number, "uuid": text, "nguid": text, "eui64": text, "md_size": number,
		}, "nqn", "bdev_name", "nsid")},
		"nvme_namespace_destroy": {run: snapNamespaceDestroy, takes: needs(map[string]kind{"nqn": text, "nsid": number}, "nqn", "nsid")},
		// Listed only: cleat detects by them what the process can expose.
		"nvme_controller_create":  {},
		"emulation_function_list": {},
	}
	for name, m := range virtioFSMethods() {
		all[name] = m
	}
	if envelope {
		for name, m := range all {
			if m.run != nil {
				m.run = enveloped(m.run)
			}
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
			spaces = append(spaces, map[string]any{
				"nsid": n.id, "bdev": n.bdev.name, "bdev_type": "spdk", "uuid": n.uuid, "controllers": []any{},
			})
		}
		all = append(all, map[string]any{
			"nqn": x.nqn, "serial_number": x.serial, "model_number": x.model, "namespaces": spaces,
			"controllers": []any{},
		})
	}
	return all, nil
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
	case len(x.namespaces) > 0:
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
	if n == nil {
		return nil, errno(eNODEV)
	}
	n.bdev.claims--
	x.namespaces = slices.DeleteFunc(x.namespaces, func(y *snapNamespace) bool { return y == n })
	return true, nil
}
