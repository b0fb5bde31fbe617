package spdktest

import (
	"context"
	"slices"
)

// virtioFS is the state of a SNAP process that exposes fsdevs: what cleat reads.
// Methods are [R]; error codes and most members of lists are [I].
type virtioFS struct {
	devices []fsDevice
}

type fsDevice struct {
	name, tag, fsdev string
	queues           uint64
}

func virtioFSMethods() map[string]method {
	return map[string]method{
		"virtio_fs_get_devices": {run: fsDevices},
		"virtio_fs_device_create": {run: fsDeviceCreate, takes: needs(map[string]kind{
			"name": text, "dev_name": text, "transport_name": text, "tag": text, "fsdev": text, "num_request_queues": number,
			"queue_size": number, "driver_platform": text,
		}, "tag", "fsdev")},
		// Listed only: cleat detects by it what the process can expose.
		"virtio_fs_doca_get_functions": {},
	}
}

func (v *virtioFS) holds(name string) bool {
	return slices.ContainsFunc(v.devices, func(d fsDevice) bool { return d.fsdev == name })
}

func fsDevices(p *Process, _ context.Context, _ args) (any, *Error) {
	all := []map[string]any{}
	for _, d := range p.virtioFS.devices {
		all = append(all, map[string]any{
			"name": d.name, "transport_name": "DOCA", "tag": d.tag, "fsdev": d.fsdev, "state": "stopped",
			"vuid": "", "manager": "", "hotplugged": false, "num_request_queues": d.queues,
		})
	}
	return all, nil
}

func fsDeviceCreate(p *Process, _ context.Context, a args) (any, *Error) {
	v, name := &p.virtioFS, orElse(a.text("dev_name"), a.text("name"))
	switch {
	case p.fsdev(a.text("fsdev")) < 0:
		return nil, errno(eNODEV)
	case slices.ContainsFunc(v.devices, func(d fsDevice) bool { return d.name == name }):
		return nil, errno(eEXIST)
	case v.holds(a.text("fsdev")):
		return nil, errno(eBUSY)
	case name == "" || len(a.text("tag")) > 36:
		return nil, errno(eINVAL)
	}
	v.devices = append(v.devices, fsDevice{name: name, tag: a.text("tag"), fsdev: a.text("fsdev"), queues: orElse(a.number("num_request_queues"), 1)})
	return true, nil
}
