package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/sriov/plan"
)

// bind leaves no override behind: it is there only while the driver is chosen,
// so one that is there was left half-way.
func (h *Host) bind(ctx context.Context, c *call, s plan.Bind) error {
	if s.Driver != "" {
		if err := checkDriver(s.Driver); err != nil {
			return err
		}
	}
	f, err := h.function(s.Address)
	if err != nil {
		return err
	}
	defer f.dir.Close()
	has, err := f.driver()
	if err != nil {
		return err
	}
	override, err := f.override()
	if err != nil {
		return err
	}
	if s.Driver == "" {
		return h.bindDefault(ctx, c, f, has, override)
	}
	if has == s.Driver {
		return h.setOverride(ctx, c, f, override, "")
	}
	if err := h.load(ctx, c, busPCI, s.Driver); err != nil {
		return err
	}
	if err := h.setOverride(ctx, c, f, override, s.Driver); err != nil {
		return err
	}
	err = h.rebind(ctx, c, f, has, s.Driver)
	return errors.Join(err, h.setOverride(context.WithoutCancel(ctx), c, f, s.Driver, ""))
}

func (h *Host) rebind(ctx context.Context, c *call, f function, has, driver string) error {
	if err := h.unbind(ctx, c, f, has); err != nil {
		return err
	}
	if err := h.write(ctx, c, f.address, busPCI, "drivers", driver, "bind"); err != nil {
		return fmt.Errorf("%w%s", err, bindHint(f, driver, err))
	}
	return await(ctx, h.bounds.settle, func() (string, error) {
		got, err := f.driver()
		if err != nil || got == driver {
			return "", err
		}
		return fmt.Sprintf("the driver of %s is %q", f.address, got), nil
	})
}

func bindHint(f function, driver string, err error) string {
	group, groupErr := f.link("iommu_group")
	switch {
	case strings.Contains(driver, "vfio") && errors.Is(err, unix.EINVAL) && group == "" && groupErr == nil:
		return ": no IOMMU: turn it on (in the firmware's setup, and by intel_iommu=on or amd_iommu=on), or, where functions need no protection from each other, set enable_unsafe_noiommu_mode of the module vfio"
	case errors.Is(err, unix.EBUSY):
		return ": another driver has it, or its IOMMU group is in use"
	case errors.Is(err, unix.ENODEV):
		return ": the driver does not take this function"
	}
	return ": the kernel's log says why the driver does not take it"
}

// isUserspace tells a driver that hands functions to user space, which the
// kernel never chooses by itself.
func isUserspace(driver string) bool {
	return strings.Contains(driver, "vfio") || strings.Contains(driver, "uio")
}

// bindDefault lets the kernel choose, which it does by what a driver says of
// itself. A driver that is there without an override is its choice, unless it
// is one of user space.
func (h *Host) bindDefault(ctx context.Context, c *call, f function, has, override string) error {
	if err := h.setOverride(ctx, c, f, override, ""); err != nil {
		return err
	}
	if has != "" && !isUserspace(has) {
		return nil
	}
	if err := h.unbind(ctx, c, f, has); err != nil {
		return err
	}
	if err := h.write(ctx, c, f.address, busPCI, "drivers_probe"); err != nil {
		return err
	}
	err := await(ctx, h.bounds.settle, func() (string, error) {
		got, err := f.driver()
		if err != nil {
			return "", err
		}
		if got == "" {
			return "no driver has taken " + f.address, nil
		}
		if isUserspace(got) {
			return fmt.Sprintf("%s has %s, a driver of user space that was told to take such functions (new_id)", f.address, got), nil
		}
		return "", nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, h.whyNone(f))
	}
	return nil
}

// whyNone is why the kernel may find no driver for a function.
func (h *Host) whyNone(f function) string {
	const load = "the module of its driver must be loaded"
	pf, err := f.link("physfn")
	if err != nil || pf == "" {
		return load
	}
	p, err := h.function(pf)
	if err != nil {
		return load
	}
	defer p.dir.Close()
	if text, err := p.dir.Text("sriov_drivers_autoprobe"); err == nil && text == "0" {
		return fmt.Sprintf("sriov_drivers_autoprobe of %s is 0, so the kernel chooses none: write 1 to it, or name the driver", pf)
	}
	return load
}

func (h *Host) unbindStep(ctx context.Context, c *call, s plan.Unbind) error {
	f, err := h.function(s.Address)
	if err != nil {
		return err
	}
	defer f.dir.Close()
	has, err := f.driver()
	if err != nil {
		return err
	}
	return h.unbind(ctx, c, f, has)
}

// unbind takes the function from the driver that it has; "" is none. VFIO's
// driver keeps it for as long as a process has it open.
func (h *Host) unbind(ctx context.Context, c *call, f function, has string) error {
	if has == "" {
		return nil
	}
	err := h.write(ctx, c, f.address, busPCI, "drivers", has, "unbind")
	if err != nil && !errors.Is(err, unix.ENODEV) { // then it has left the driver meanwhile
		return err
	}
	return await(ctx, h.bounds.settle, func() (string, error) {
		got, err := f.driver()
		if err != nil || got == "" {
			return "", err
		}
		return fmt.Sprintf("%s still has the driver %s", f.address, got), nil
	})
}

// setOverride looks first. The end of a line alone takes the override away.
func (h *Host) setOverride(ctx context.Context, c *call, f function, has, want string) error {
	if has == want {
		return nil
	}
	if err := h.write(ctx, c, want+"\n", busPCI, "devices", f.address, "driver_override"); err != nil {
		return err
	}
	got, err := f.override()
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the kernel took it, but driver_override of %s is %.80q, want %q", f.address, got, want)
	}
	return nil
}

// load loads the module of a driver that the kernel does not have.
func (h *Host) load(ctx context.Context, c *call, bus, driver string) error {
	has, err := h.hasDriver(bus, driver)
	if err != nil || has {
		return err
	}
	c.at("load the module %s", driver)
	loadErr := h.config.LoadModule(ctx, driver)
	if has, err = h.hasDriver(bus, driver); err != nil || has {
		return err
	}
	if loadErr != nil {
		return fmt.Errorf("the kernel has no driver %s: %w", driver, loadErr)
	}
	return fmt.Errorf("the kernel has no driver %s, also with the module of that name loaded: a driver that is in %s/drivers is right", driver, bus)
}
