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
	"github.com/cleatproject/cleat/sriov/plan"
)

// setNumVFs never reads sriov_numvfs, which waits for a driver that makes or
// removes functions: the links to them say it as well.
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
		return fmt.Errorf("%d virtual functions: %w: %s can have 0 to %d (sriov_totalvfs; the card's firmware may be set to more)", s.Number, unix.ERANGE, s.PF, total)
	}
	before, err := pf.virtual()
	if err != nil {
		return err
	}
	if s.Number > 0 && len(before) > 0 && len(before) != s.Number {
		return fmt.Errorf("%d virtual functions: %w: there are %d, and their number changes by way of 0 only: remove them first", s.Number, unix.EBUSY, len(before))
	}
	if len(before) != s.Number {
		if err := h.write(ctx, c, strconv.Itoa(s.Number), busPCI, "devices", s.PF, "sriov_numvfs"); err != nil {
			return fmt.Errorf("%w%s", err, numVFsHint(s.Number, err))
		}
	}
	return await(ctx, h.bounds.made, func() (string, error) { return h.unsettled(pf, s.Number, before) })
}

func numVFsHint(number int, err error) string {
	switch {
	case errors.Is(err, unix.ENOMEM):
		return ": the firmware left no room for the functions' registers or bus numbers: turn on SR-IOV and ARI in its setup, or boot with pci=realloc (or pci=assign-busses); the kernel's log says which"
	case errors.Is(err, unix.EBUSY) && number > 0:
		return ": the kernel has virtual functions there, and their number changes by way of 0 only"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EBUSY):
		return ": the driver keeps functions that guests or containers use: stop those first"
	case errors.Is(err, unix.ERANGE):
		return ": it is more than sriov_totalvfs, which the driver may lower"
	case errors.Is(err, unix.ENOENT):
		return ": the physical function must be bound to a driver that makes virtual functions"
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EIO):
		return ": the driver or the card refuses: the kernel's log says why"
	}
	return ""
}

// total is how many virtual functions there may be.
func (f function) total() (int, error) {
	text, err := f.dir.Text("sriov_totalvfs")
	if sysfs.IsAbsent(err) {
		return 0, fmt.Errorf("%s cannot have virtual functions: %w: SR-IOV must be on in the card's and the machine's setup", f.address, err)
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("sriov_totalvfs of %s holds %.40q: a number below 65536 is right", f.address, text)
	}
	return int(n), nil
}

// virtual is the addresses of the virtual functions by index.
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
			return nil, fmt.Errorf("%s has %.40q: virtfn and an index below 65536 are right", f.address, name)
		}
		address, err := f.link(name)
		if err != nil {
			return nil, err
		}
		if address == "" {
			continue // it went meanwhile
		}
		if err := checkAddress(address); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", name, f.address, err)
		}
		all[int(index)] = address
	}
	return all, nil
}

// unsettled says what is missing until there are so many virtual functions,
// whole, and none of the old ones when there shall be none.
func (h *Host) unsettled(pf function, number int, old map[int]string) (string, error) {
	all, err := pf.virtual()
	if err != nil {
		return "", err
	}
	if len(all) != number {
		return fmt.Sprintf("there are %d virtual functions, want %d (the driver may have made fewer than asked for: the kernel's log says why)", len(all), number), nil
	}
	for index := range number {
		address, there := all[index]
		if !there {
			return fmt.Sprintf("there is no virtual function %d", index), nil
		}
		f, err := h.function(address)
		if sysfs.IsAbsent(err) {
			return fmt.Sprintf("%s (virtual function %d) is not there yet", address, index), nil
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
			return fmt.Sprintf("%s (virtual function %d) belongs to %q by its own link", address, index, physfn), nil
		}
	}
	if number > 0 {
		return "", nil
	}
	for _, address := range slices.Sorted(maps.Values(old)) {
		f, err := h.function(address)
		if err == nil {
			f.dir.Close()
			return fmt.Sprintf("%s is still there", address), nil
		}
		if !sysfs.IsAbsent(err) {
			return "", err
		}
	}
	return "", nil
}
