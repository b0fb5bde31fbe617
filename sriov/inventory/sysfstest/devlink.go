package sysfstest

import (
	"context"
	"maps"

	"github.com/cleatproject/cleat/internal/linux/devlink"
)

// Devlink is what the drivers of a Tree tell of their devices, as discovery asks
// for it. A request is a fault's "devlink Devices"; one that hangs is deaf to
// its context, as the kernel is.
type Devlink struct{ Tree *Tree }

// Devices is what Tree.Tell said, of the devices that are there and have a
// driver.
func (d Devlink) Devices(ctx context.Context) (map[devlink.Handle]devlink.Device, error) {
	if err := d.Tree.fault("devlink Devices"); err != nil {
		return nil, err
	}
	d.Tree.mu.Lock()
	defer d.Tree.mu.Unlock()
	all := maps.Clone(d.Tree.told)
	maps.DeleteFunc(all, func(h devlink.Handle, _ devlink.Device) bool {
		if h.Bus != "pci" {
			return false
		}
		f := d.Tree.functions[h.Name]
		return f == nil || !isNetwork(f.Driver)
	})
	return all, ctx.Err()
}

// Tell lets the driver of a device say something of it from now on. The bus is
// "pci" with an address, or "auxiliary".
func (t *Tree) Tell(bus, name string, d devlink.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told[devlink.Handle{Bus: bus, Name: name}] = d
}
