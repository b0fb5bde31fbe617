package sysfstest

import (
	"context"
	"maps"

	"github.com/cleatproject/cleat/internal/linux/devlink"
)

// Devlink is a fake inventory.Devlink on a Tree. The fault key is "devlink
// Devices"; like the kernel, a hanging request does not end with its context.
type Devlink struct{ Tree *Tree }

// Devices implements inventory.Devlink.
func (d Devlink) Devices(ctx context.Context) (map[devlink.Handle]devlink.Device, error) {
	if err := d.Tree.fault("devlink Devices"); err != nil {
		return nil, err
	}
	d.Tree.mu.Lock()
	defer d.Tree.mu.Unlock()
	all := maps.Clone(d.Tree.devlinkDevices)
	maps.DeleteFunc(all, func(h devlink.Handle, _ devlink.Device) bool {
		if h.Bus != "pci" {
			return false
		}
		f := d.Tree.functions[h.Name]
		return f == nil || !isNetwork(f.Driver)
	})
	return all, ctx.Err()
}

// SetDevlink sets what the driver of a device reports. The bus is "pci" or
// "auxiliary".
func (t *Tree) SetDevlink(bus, name string, d devlink.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.devlinkDevices[devlink.Handle{Bus: bus, Name: name}] = d
}
