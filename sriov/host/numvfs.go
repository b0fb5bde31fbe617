package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
	"github.com/cleatproject/cleat/internal/linux/vflink"
	"github.com/cleatproject/cleat/sriov/plan"
)

// Reading sriov_numvfs blocks while a driver creates or removes functions, so
// setNumVFs counts virtfn links.
func (h *Host) setNumVFs(ctx context.Context, c *call, s plan.SetNumVFs) error {
	pf, err := h.function(s.PF)
	if err != nil {
		return err
	}
	defer pf.dir.Close()
	total, err := pf.total()
	if err != nil {
		return err
	}
	if s.Number < 0 || s.Number > total {
		return fmt.Errorf("%d virtual functions: %w: %s can have 0 to %d (sriov_totalvfs; the card's firmware might allow more)", s.Number, unix.ERANGE, s.PF, total)
	}
	before, err := pf.virtual()
	if err != nil {
		return err
	}
	if s.Number > 0 && len(before) > 0 && len(before) != s.Number {
		return fmt.Errorf("%d virtual functions: %w: there are %d, and the number can only change from 0: remove them first", s.Number, unix.EBUSY, len(before))
	}
	if len(before) != s.Number {
		if err := h.write(ctx, c, strconv.Itoa(s.Number), busPCI, "devices", s.PF, "sriov_numvfs"); err != nil {
			return fmt.Errorf("%w%s", err, numVFsHint(s.Number, err))
		}
	}
	return await(ctx, h.bounds.created, func() (string, error) { return h.missingVFs(pf, s.Number, before) })
}

func numVFsHint(number int, err error) string {
	switch {
	case errors.Is(err, unix.ENOMEM):
		return ": the firmware reserved no space for the functions' registers or bus numbers: turn on SR-IOV and ARI in its setup, or boot with pci=realloc (or pci=assign-busses); the kernel's log says which"
	case errors.Is(err, unix.EBUSY) && number > 0:
		return ": the kernel already has virtual functions there, and the number can only change from 0"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EBUSY):
		return ": guests or containers use the functions: stop those first"
	case errors.Is(err, unix.ERANGE):
		return ": more than sriov_totalvfs, which the driver can lower"
	case errors.Is(err, unix.ENOENT):
		return ": the physical function must be bound to a driver that supports virtual functions"
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EIO):
		return ": the driver or the card refused: see the kernel log"
	}
	return ""
}

func (f function) total() (int, error) {
	text, err := f.dir.Text("sriov_totalvfs")
	if sysfs.IsAbsent(err) {
		return 0, fmt.Errorf("%s cannot have virtual functions: %w: enable SR-IOV in the setup of the card and of the machine", f.address, err)
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("sriov_totalvfs of %s is %.40q: want a number below 65536", f.address, text)
	}
	return int(n), nil
}

func (f function) virtual() (map[int]string, error) {
	names, err := f.dir.Names()
	if err != nil {
		return nil, err
	}
	all := map[int]string{}
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, "virtfn")
		if !ok {
			continue
		}
		index, err := strconv.ParseUint(digits, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%s has %.40q: want virtfn and an index below 65536", f.address, name)
		}
		address, err := f.link(name)
		if err != nil {
			return nil, err
		}
		if address == "" {
			continue
		}
		if err := vflink.CheckAddress(address); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", name, f.address, err)
		}
		all[int(index)] = address
	}
	return all, nil
}

// missingVFs returns what is missing until number VFs are complete or, if 0,
// the old ones are removed.
func (h *Host) missingVFs(pf function, number int, old map[int]string) (string, error) {
	all, err := pf.virtual()
	if err != nil {
		return "", err
	}
	if len(all) != number {
		return fmt.Sprintf("there are %d virtual functions, want %d (if the driver created fewer, the kernel's log has the reason)", len(all), number), nil
	}
	for index := range number {
		address, ok := all[index]
		if !ok {
			return fmt.Sprintf("virtual function %d does not exist", index), nil
		}
		f, err := h.function(address)
		if sysfs.IsAbsent(err) {
			return fmt.Sprintf("%s (virtual function %d) does not exist yet", address, index), nil
		}
		if err != nil {
			return "", err
		}
		physfn, err := f.link("physfn")
		f.dir.Close()
		if err != nil {
			return "", err
		}
		if physfn != pf.address {
			return fmt.Sprintf("physfn of %s (virtual function %d) is %q", address, index, physfn), nil
		}
	}
	if number > 0 {
		return "", nil
	}
	for _, address := range slices.Sorted(maps.Values(old)) {
		f, err := h.function(address)
		if err == nil {
			f.dir.Close()
			return fmt.Sprintf("%s still exists", address), nil
		}
		if !sysfs.IsAbsent(err) {
			return "", err
		}
	}
	return "", nil
}
