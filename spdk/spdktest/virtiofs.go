package spdktest

import (
	"context"
	"fmt"
	"slices"
)

// virtioFS is the state of a SNAP process that exposes fsdevs. Methods are [R];
// error codes and most members of lists are [I].
type virtioFS struct {
	transports []*fsTransport
	managers   []string
	functions  []*fsFunction
	devices    []*fsDevice
	last       int
}

type fsTransport struct {
	name    string
	started bool
}

type fsFunction struct {
	vuid, manager string
	bdf           string
	hotplug       bool
}

type fsDevice struct {
	name, tag, fsdev string
	vuid, manager    string
	started, plugged bool
	queues           uint64
}

// possibleManagers of a BlueField.
func possibleManagers() []string { return []string{"mlx5_0", "mlx5_1"} }

func virtioFSMethods() map[string]method {
	named := needs(map[string]kind{"name": text, "transport_name": text}, "transport_name")
	manager := needs(map[string]kind{"name": text, "manager": text})
	device := needs(map[string]kind{"name": text, "dev_name": text, "transport_name": text, "wait_for_done": flag})
	return map[string]method{
		"virtio_fs_get_transports":             {run: fsTransports},
		"virtio_fs_transport_create":           {run: fsTransportCreate, takes: named},
		"virtio_fs_transport_start":            {run: fsTransportStart, takes: named},
		"virtio_fs_doca_get_possible_managers": {run: fsManagers(true)},
		"virtio_fs_doca_get_managers":          {run: fsManagers(false)},
		"virtio_fs_doca_manager_create":        {run: fsManagerCreate, takes: manager},
		"virtio_fs_doca_get_functions":         {run: fsFunctions},
		"virtio_fs_doca_function_create":       {run: fsFunctionCreate, takes: manager},
		"virtio_fs_doca_function_destroy":      {run: fsFunctionDestroy, takes: needs(map[string]kind{"vuid": text, "manager": text}, "vuid")},
		"virtio_fs_get_devices":                {run: fsDevices},
		"virtio_fs_device_create": {run: fsDeviceCreate, takes: needs(map[string]kind{
			"name": text, "dev_name": text, "transport_name": text, "tag": text, "fsdev": text, "num_request_queues": number,
			"queue_size": number, "driver_platform": text,
		}, "tag", "fsdev")},
		"virtio_fs_doca_device_modify": {run: fsDeviceModify, takes: needs(map[string]kind{
			"name": text, "dev_name": text, "manager": text, "vuid": text,
		})},
		"virtio_fs_device_start":          {run: fsDeviceStart(true), takes: device},
		"virtio_fs_device_stop":           {run: fsDeviceStart(false), takes: device},
		"virtio_fs_device_destroy":        {run: fsDeviceDestroy, takes: device},
		"virtio_fs_doca_device_hotplug":   {run: fsDevicePlug(true), takes: device},
		"virtio_fs_doca_device_hotunplug": {run: fsDevicePlug(false), takes: device},
	}
}

func (v *virtioFS) holds(name string) bool {
	return slices.ContainsFunc(v.devices, func(d *fsDevice) bool { return d.fsdev == name })
}

// device uses parameter dev_name or name.
func (v *virtioFS) device(a args) *fsDevice {
	name := orElse(a.text("dev_name"), a.text("name"))
	for _, d := range v.devices {
		if d.name == name {
			return d
		}
	}
	return nil
}

func (v *virtioFS) transport(name string) *fsTransport {
	for _, t := range v.transports {
		if t.name == name {
			return t
		}
	}
	return nil
}

func fsTransports(p *Process, _ context.Context, _ args) (any, *Error) {
	all := []map[string]any{}
	for _, t := range p.virtioFS.transports {
		state := "created"
		if t.started {
			state = "started"
		}
		all = append(all, map[string]any{"name": t.name, "state": state, "managers": named(p.virtioFS.managers)})
	}
	return all, nil
}

func fsTransportCreate(p *Process, _ context.Context, a args) (any, *Error) {
	name := a.text("transport_name")
	if p.virtioFS.transport(name) != nil {
		return nil, errno(eEXIST)
	}
	if name != "DOCA" {
		return nil, errno(eNODEV)
	}
	p.virtioFS.transports = append(p.virtioFS.transports, &fsTransport{name: name})
	return true, nil
}

func fsTransportStart(p *Process, _ context.Context, a args) (any, *Error) {
	t := p.virtioFS.transport(a.text("transport_name"))
	switch {
	case t == nil:
		return nil, errno(eNODEV)
	case t.started:
		return nil, errno(eALREADY)
	}
	t.started = true
	return true, nil
}

func fsManagers(possible bool) func(*Process, context.Context, args) (any, *Error) {
	return func(p *Process, _ context.Context, _ args) (any, *Error) {
		names := p.virtioFS.managers
		if possible {
			names = possibleManagers()
		}
		return named(names), nil
	}
}

func named(names []string) []map[string]string {
	all := []map[string]string{}
	for _, name := range names {
		all = append(all, map[string]string{"name": name})
	}
	return all
}

func fsManagerCreate(p *Process, _ context.Context, a args) (any, *Error) {
	name := orElse(a.text("name"), a.text("manager"))
	switch {
	case p.virtioFS.transport("DOCA") == nil || !slices.Contains(possibleManagers(), name):
		return nil, errno(eNODEV)
	case slices.Contains(p.virtioFS.managers, name):
		return nil, errno(eEXIST)
	}
	p.virtioFS.managers = append(p.virtioFS.managers, name)
	return true, nil
}

func fsFunctions(p *Process, _ context.Context, _ args) (any, *Error) {
	all := []map[string]any{}
	for _, manager := range p.virtioFS.managers {
		mine := []map[string]any{}
		for _, f := range p.virtioFS.functions {
			if f.manager == manager {
				mine = append(mine, map[string]any{"pci_address": f.bdf, "vuid": f.vuid, "function_type": "VF", "hotplug": f.hotplug})
			}
		}
		all = append(all, map[string]any{"manager": manager, "Function List": mine})
	}
	return all, nil
}

func fsFunctionCreate(p *Process, _ context.Context, a args) (any, *Error) {
	v := &p.virtioFS
	name := orElse(a.text("manager"), a.text("name"))
	if !slices.Contains(v.managers, name) {
		return nil, errno(eNODEV)
	}
	v.last++
	f := &fsFunction{vuid: newVUID(fmt.Sprintf("VFSS1D%dF0", v.last)), manager: name, hotplug: true}
	v.functions = append(v.functions, f)
	return f.vuid, nil
}

func fsFunctionDestroy(p *Process, _ context.Context, a args) (any, *Error) {
	v := &p.virtioFS
	vuid := a.text("vuid")
	if slices.ContainsFunc(v.devices, func(d *fsDevice) bool { return d.vuid == vuid }) {
		return nil, errno(eBUSY)
	}
	i := slices.IndexFunc(v.functions, func(f *fsFunction) bool { return f.vuid == vuid })
	if i < 0 {
		return nil, errno(eNODEV)
	}
	v.functions = slices.Delete(v.functions, i, i+1)
	return true, nil
}

func fsDevices(p *Process, _ context.Context, _ args) (any, *Error) {
	all := []map[string]any{}
	for _, d := range p.virtioFS.devices {
		state := "stopped"
		if d.started {
			state = "running"
		}
		all = append(all, map[string]any{
			"name": d.name, "transport_name": "DOCA", "tag": d.tag, "fsdev": d.fsdev, "state": state,
			"vuid": d.vuid, "manager": d.manager, "hotplugged": d.plugged, "num_request_queues": d.queues,
		})
	}
	return all, nil
}

func fsDeviceCreate(p *Process, _ context.Context, a args) (any, *Error) {
	v := &p.virtioFS
	switch {
	case v.transport("DOCA") == nil || !v.transport("DOCA").started || p.fsdev(a.text("fsdev")) < 0:
		return nil, errno(eNODEV)
	case v.device(a) != nil:
		return nil, errno(eEXIST)
	case v.holds(a.text("fsdev")):
		return nil, errno(eBUSY)
	case orElse(a.text("dev_name"), a.text("name")) == "" || len(a.text("tag")) > 36:
		return nil, errno(eINVAL)
	}
	v.devices = append(v.devices, &fsDevice{
		name: orElse(a.text("dev_name"), a.text("name")), tag: a.text("tag"), fsdev: a.text("fsdev"),
		queues: orElse(a.number("num_request_queues"), 1),
	})
	return true, nil
}

func fsDeviceModify(p *Process, _ context.Context, a args) (any, *Error) {
	v := &p.virtioFS
	d := v.device(a)
	known := slices.ContainsFunc(v.functions, func(f *fsFunction) bool { return f.vuid == a.text("vuid") })
	switch {
	case d == nil || !known:
		return nil, errno(eNODEV)
	case d.started:
		return nil, errno(eBUSY)
	}
	d.vuid, d.manager = a.text("vuid"), a.text("manager")
	return true, nil
}

func fsDeviceStart(wanted bool) func(*Process, context.Context, args) (any, *Error) {
	return func(p *Process, _ context.Context, a args) (any, *Error) {
		d := p.virtioFS.device(a)
		switch {
		case d == nil:
			return nil, errno(eNODEV)
		case d.started == wanted, wanted && d.vuid == "":
			return nil, errno(eINVAL)
		case !wanted && d.plugged:
			return nil, errno(eBUSY)
		}
		d.started = wanted
		return true, nil
	}
}

func fsDevicePlug(wanted bool) func(*Process, context.Context, args) (any, *Error) {
	return func(p *Process, _ context.Context, a args) (any, *Error) {
		d := p.virtioFS.device(a)
		switch {
		case d == nil:
			return nil, errno(eNODEV)
		case d.plugged == wanted, !d.started:
			return nil, errno(eINVAL)
		}
		d.plugged = wanted
		for i, f := range p.virtioFS.functions {
			if f.vuid == d.vuid {
				f.bdf = ""
				if wanted {
					f.bdf = fmt.Sprintf("0000:61:%02x.%d", i/8, i%8)
				}
			}
		}
		return true, nil
	}
}

func fsDeviceDestroy(p *Process, _ context.Context, a args) (any, *Error) {
	v := &p.virtioFS
	d := v.device(a)
	switch {
	case d == nil:
		return nil, errno(eNODEV)
	case d.started:
		return nil, errno(eBUSY)
	}
	v.devices = slices.DeleteFunc(v.devices, func(x *fsDevice) bool { return x == d })
	return true, nil
}
