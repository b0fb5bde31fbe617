package host

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
	"github.com/cleatproject/cleat/sriov/plan"
)

const busVDPA = "bus/vdpa"

// Types of vDPA devices, by whose driver of that bus has them.
var vdpaTypes = map[string]string{"virtio_vdpa": "virtio", "vhost_vdpa": "vhost"}

// vdpa is a vDPA device of a function.
type vdpa struct {
	name   string // "" is none
	driver string // "" is none
}

// setVDPA makes a device, which the kernel gives to a driver of its own choice,
// and sees to the driver then. A device that is there is kept.
func (h *Host) setVDPA(ctx context.Context, c *call, s plan.SetVDPA) error {
	driver := ""
	switch s.Type {
	case "":
	case "virtio", "vhost":
		driver = s.Type + "_vdpa"
	default:
		return fmt.Errorf("the type %.40q: virtio and vhost are right, and nothing for none", s.Type)
	}
	f, err := h.function(s.Address)
	if err != nil {
		return err
	}
	defer f.dir.Close()
	has, err := h.vdpa(f)
	if err != nil {
		return err
	}
	if driver == "" {
		return h.removeVDPA(ctx, c, f, has)
	}
	if has.name == "" {
		if has, err = h.addVDPA(ctx, c, f); err != nil {
			return err
		}
	}
	if err := h.bindVDPA(ctx, c, f, driver); err != nil {
		return fmt.Errorf("vDPA device %s: %w", has.name, err)
	}
	return nil
}

func (h *Host) addVDPA(ctx context.Context, c *call, f function) (vdpa, error) {
	name := "vdpa:" + f.address
	c.at("make the vDPA device %s", name)
	if err := h.config.Network.AddVDPA(ctx, name, f.address); err != nil {
		return vdpa{}, fmt.Errorf("%w: the function must be bound to a driver that makes vDPA devices (such as mlx5_core with mlx5_vdpa)", err)
	}
	var got vdpa
	err := await(ctx, h.bounds.settle, func() (wrong string, err error) {
		if got, err = h.vdpa(f); err != nil || got.name != "" {
			return "", err
		}
		return "there is no vDPA device", nil
	})
	return got, err
}

func (h *Host) removeVDPA(ctx context.Context, c *call, f function, has vdpa) error {
	if has.name == "" {
		return nil
	}
	c.at("remove the vDPA device %s", has.name)
	if err := h.config.Network.DeleteVDPA(ctx, has.name); err != nil {
		return err
	}
	return await(ctx, h.bounds.settle, func() (string, error) {
		got, err := h.vdpa(f)
		if err != nil || got.name == "" {
			return "", err
		}
		return fmt.Sprintf("the vDPA device %s is still there", got.name), nil
	})
}

func (h *Host) bindVDPA(ctx context.Context, c *call, f function, driver string) error {
	if err := h.load(ctx, c, busVDPA, driver); err != nil {
		return err
	}
	// A driver that was just loaded has taken the devices that had none.
	has, err := h.vdpa(f)
	if err != nil || has.driver == driver {
		return err
	}
	if has.driver != "" {
		if err := h.write(ctx, c, has.name, busVDPA, "drivers", has.driver, "unbind"); err != nil {
			return err
		}
	}
	if err := h.write(ctx, c, has.name, busVDPA, "drivers", driver, "bind"); err != nil {
		return err
	}
	return await(ctx, h.bounds.settle, func() (string, error) {
		got, err := h.vdpa(f)
		if err != nil || got.driver == driver {
			return "", err
		}
		return fmt.Sprintf("its driver is %q, want %s", got.driver, driver), nil
	})
}

// vdpa looks at the function's own children: the bus may have thousands.
func (h *Host) vdpa(f function) (vdpa, error) {
	bus, err := sysfs.Open(filepath.Join(h.config.Sysfs, busVDPA, "devices"))
	if err != nil {
		if sysfs.IsAbsent(err) {
			return vdpa{}, nil
		}
		return vdpa{}, err
	}
	defer bus.Close()
	names, err := f.dir.Names()
	if err != nil {
		return vdpa{}, err
	}
	for _, name := range names {
		if !bus.Has(name) {
			continue
		}
		v := vdpa{name: name}
		target, err := f.dir.Link(name + "/driver")
		if err != nil && !sysfs.IsAbsent(err) {
			return vdpa{}, err
		}
		if v.driver = target[strings.LastIndexByte(target, '/')+1:]; v.driver != "" {
			return v, checkDriver(v.driver)
		}
		return v, nil
	}
	return vdpa{}, nil
}
