package host

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
	"github.com/cleatproject/cleat/sriov/plan"
)

const busVDPA = "bus/vdpa"

// vdpaTypes has the type by driver.
var vdpaTypes = map[string]string{"virtio_vdpa": "virtio", "vhost_vdpa": "vhost"}

type vdpa struct {
	name   string
	driver string
}

// setVDPA binds a new device explicitly: the kernel chooses any driver.
func (h *Host) setVDPA(ctx context.Context, c *call, s plan.SetVDPA) error {
	driver, ok := map[string]string{"": "", "virtio": "virtio_vdpa", "vhost": "vhost_vdpa"}[s.Type]
	if !ok {
		return fmt.Errorf("type %.40q: want virtio, vhost, or \"\" for none", s.Type)
	}
	f, err := h.function(s.Address)
	if err != nil {
		return err
	}
	defer f.dir.Close()
	has, err := h.vdpa(f)
	switch {
	case err != nil:
		return err
	case driver == "" && has.name == "":
		return nil
	case driver == "":
		c.setCurrent("delete the vDPA device %s", has.name)
		if err := h.config.Network.DeleteVDPA(ctx, has.name); err != nil {
			return err
		}
		_, err := h.awaitVDPA(ctx, f, "none", func(v vdpa) bool { return v.name == "" })
		return err
	case has.name == "":
		name := "vdpa:" + f.address
		c.setCurrent("create the vDPA device %s", name)
		if err := h.config.Network.AddVDPA(ctx, name, f.address); err != nil {
			return fmt.Errorf("%w: the function must be bound to a driver that supports vDPA devices (such as mlx5_core with mlx5_vdpa)", err)
		}
		if has, err = h.awaitVDPA(ctx, f, name, func(v vdpa) bool { return v.name != "" }); err != nil {
			return err
		}
	}
	if err := h.bindVDPA(ctx, c, f, driver); err != nil {
		return fmt.Errorf("vDPA device %s: %w", has.name, err)
	}
	return nil
}

func (h *Host) bindVDPA(ctx context.Context, c *call, f function, driver string) error {
	if err := h.load(ctx, c, busVDPA, driver); err != nil {
		return err
	}
	// Loading a driver binds it to all unbound devices.
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
	_, err = h.awaitVDPA(ctx, f, "driver "+driver, func(v vdpa) bool { return v.driver == driver })
	return err
}

func (h *Host) awaitVDPA(ctx context.Context, f function, want string, is func(vdpa) bool) (v vdpa, err error) {
	err = await(ctx, h.bounds.effect, func() (string, error) {
		if v, err = h.vdpa(f); err != nil || is(v) {
			return "", err
		}
		return fmt.Sprintf("the vDPA device of %s is %q with the driver %q, want %s", f.address, v.name, v.driver, want), nil
	})
	return v, err
}

// The bus can have thousands of devices, so vdpa searches the function's
// directory.
func (h *Host) vdpa(f function) (vdpa, error) {
	bus, err := sysfs.Open(filepath.Join(h.config.Sysfs, busVDPA, "devices"))
	if sysfs.IsAbsent(err) {
		return vdpa{}, nil
	}
	if err != nil {
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
		driver, err := f.link(name + "/driver")
		if err == nil && driver != "" {
			err = checkDriver(driver)
		}
		return vdpa{name, driver}, err
	}
	return vdpa{}, nil
}
