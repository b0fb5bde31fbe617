package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/sriov/plan"
)

// An existing driver_override is left over from an interrupted call.
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
	if s.Driver == "" {
		return h.bindDefault(ctx, c, f, has)
	}
	if has == s.Driver {
		return h.setOverride(ctx, c, f, "")
	}
	if err := h.load(ctx, c, busPCI, s.Driver); err != nil {
		return err
	}
	if err := h.setOverride(ctx, c, f, s.Driver); err != nil {
		return err
	}
	err = h.rebind(ctx, c, f, s.Driver)
	return errors.Join(err, h.setOverride(context.WithoutCancel(ctx), c, f, ""))
}

func (h *Host) rebind(ctx context.Context, c *call, f function, driver string) error {
	if err := h.unbind(ctx, c, f); err != nil {
		return err
	}
	if err := h.write(ctx, c, f.address, busPCI, "drivers", driver, "bind"); err != nil {
		return fmt.Errorf("%w%s", err, bindHint(f, driver, err))
	}
	return h.awaitDriver(ctx, f, driver)
}

func (h *Host) awaitDriver(ctx context.Context, f function, want string) error {
	return await(ctx, h.bounds.effect, func() (string, error) {
		got, err := f.driver()
		if err != nil || got == want {
			return "", err
		}
		return fmt.Sprintf("the driver of %s is %q", f.address, got), nil
	})
}

func bindHint(f function, driver string, err error) string {
	group, groupErr := f.link("iommu_group")
	switch {
	case strings.Contains(driver, "vfio") && errors.Is(err, unix.EINVAL) && group == "" && groupErr == nil:
		return ": no IOMMU: enable it (in the firmware's setup, and by intel_iommu=on or amd_iommu=on), or, where functions need no protection from each other, set enable_unsafe_noiommu_mode of the module vfio"
	case errors.Is(err, unix.EBUSY):
		return ": another driver is bound to the function, or its IOMMU group is in use"
	case errors.Is(err, unix.ENODEV):
		return ": the driver does not support this function"
	}
	return ": see the kernel log for the driver's reason"
}

// The kernel never chooses a user space driver by itself.
func isUserspace(driver string) bool {
	return strings.Contains(driver, "vfio") || strings.Contains(driver, "uio")
}

// bindDefault keeps a bound driver unless it is a user space driver.
func (h *Host) bindDefault(ctx context.Context, c *call, f function, has string) error {
	if err := h.setOverride(ctx, c, f, ""); err != nil {
		return err
	}
	if has != "" && !isUserspace(has) {
		return nil
	}
	if err := h.unbind(ctx, c, f); err != nil {
		return err
	}
	if err := h.write(ctx, c, f.address, busPCI, "drivers_probe"); err != nil {
		return err
	}
	err := await(ctx, h.bounds.effect, func() (string, error) {
		got, err := f.driver()
		switch {
		case err != nil:
			return "", err
		case got == "":
			return "no driver is bound to " + f.address, nil
		case isUserspace(got):
			return fmt.Sprintf("%s has %s, a user space driver with an entry for such functions (new_id)", f.address, got), nil
		}
		return "", nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, h.noDriverReason(f))
	}
	return nil
}

// noDriverReason guesses why the kernel finds no driver.
func (h *Host) noDriverReason(f function) string {
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
		return fmt.Sprintf("sriov_drivers_autoprobe of %s is 0, so the kernel chooses no driver: write 1 to it, or name the driver", pf)
	}
	return load
}

func (h *Host) unbindStep(ctx context.Context, c *call, s plan.Unbind) error {
	f, err := h.function(s.Address)
	if err != nil {
		return err
	}
	defer f.dir.Close()
	return h.unbind(ctx, c, f)
}

// VFIO blocks the unbind while a process has the device open.
func (h *Host) unbind(ctx context.Context, c *call, f function) error {
	has, err := f.driver()
	if err != nil || has == "" {
		return err
	}
	err = h.write(ctx, c, f.address, busPCI, "drivers", has, "unbind")
	if err != nil && !errors.Is(err, unix.ENODEV) { // not bound any more
		return err
	}
	return h.awaitDriver(ctx, f, "")
}

// Writing only a newline removes the override.
func (h *Host) setOverride(ctx context.Context, c *call, f function, want string) error {
	return ensure(func(bool) (string, error) {
		got, err := f.override()
		if err != nil || got == want {
			return "", err
		}
		return fmt.Sprintf("driver_override of %s is %.80q, want %q", f.address, got, want), nil
	}, func() error { return h.write(ctx, c, want+"\n", busPCI, "devices", f.address, "driver_override") })
}
