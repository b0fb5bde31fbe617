package inventory

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// maxVFs: SR-IOV has a 16-bit counter.
const maxVFs = 1<<16 - 1

func readCapability(dir sysfs.Dir) (*sriovCapability, error) {
	total, err := readNumber(dir, "sriov_totalvfs", NoIndex)
	if err != nil {
		return nil, err
	}
	if total == NoIndex {
		return nil, nil
	}
	c := &sriovCapability{total: total}
	if c.offset, err = readNumber(dir, "sriov_offset", 0); err != nil {
		return nil, err
	}
	if c.stride, err = readNumber(dir, "sriov_stride", 0); err != nil {
		return nil, err
	}
	device, err := dir.Text("sriov_vf_device")
	if err != nil && !sysfs.IsAbsent(err) {
		return nil, err
	}
	if c.device = strings.ToLower(device); len(c.device) < 4 { // the kernel writes %x
		c.device = strings.Repeat("0", 4-len(c.device)) + c.device
	}
	return c, c.readVirtual(dir)
}

func (c *sriovCapability) count() int {
	n := 0
	for i := 0; c != nil && i < len(c.virtual); i++ {
		if c.virtual[i] != "" {
			n++
		}
	}
	return n
}

func (c *sriovCapability) readVirtual(dir sysfs.Dir) error {
	names, err := dir.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, "virtfn")
		if !ok {
			continue
		}
		index, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || index >= maxVFs {
			return fmt.Errorf("%s has %.40q: want virtfn and an index below %d", dir.Path(), name, maxVFs)
		}
		address, err := linkBase(dir, name)
		if err != nil {
			return err
		}
		if address == "" {
			continue
		}
		if !isAddress(address) {
			return fmt.Errorf("%s/%s leads to %q, which is not a PCI address", dir.Path(), name, address)
		}
		for len(c.virtual) <= int(index) {
			c.virtual = append(c.virtual, "")
		}
		c.virtual[index] = address
	}
	return nil
}

var (
	errInTransition = errors.New("the function is being created or removed: discover again when its PF is stable")
	errTwoPFs       = errors.New("two physical functions claim the function")
)

type membership struct {
	pf    string
	index int
}

func (s *scan) relate(read []functionReading) {
	members, twice := claims(read)
	slots := newVFSlots(read)
	for i := range read {
		s.problems = append(s.problems, read[i].problems...)
		f, physfn := read[i].function, read[i].physfn
		if f == nil {
			continue
		}
		m, member := members[f.Address]
		var err error
		switch {
		case twice[f.Address]:
			err = errTwoPFs
		case physfn == "" && !member && slots.has(f):
			err = errInTransition
		case physfn == "" && !member: // a PF, or a VF passed through without its PF
			m = membership{f.PF, f.VF}
		case m.pf != physfn:
			// The kernel creates a function, then the PF's virtfn link, then
			// the physfn link, and removes them in reverse order.
			err = fmt.Errorf("%w (its PF is %q by its own link, %q by the PF's)", errInTransition, physfn, m.pf)
		}
		if err != nil {
			s.problemOf(f.Address, f.Address, err)
			continue
		}
		f.PF, f.VF = m.pf, m.index
		s.functions[f.Address] = f
	}
}

// claims also returns the functions that several PFs link.
func claims(read []functionReading) (members map[string]membership, twice map[string]bool) {
	members, twice = make(map[string]membership, len(read)), map[string]bool{}
	for i := range read {
		pf, c := read[i].function, read[i].capable
		if pf == nil || c == nil {
			continue
		}
		pf.TotalVFs, pf.VFs = c.total, c.count()
		for index, address := range c.virtual {
			if address == "" {
				continue
			}
			if _, claimed := members[address]; claimed {
				twice[address] = true
			}
			members[address] = membership{pf.Address, index}
		}
	}
	return members, twice
}

type vfSlots map[string][]*functionReading

func newVFSlots(read []functionReading) vfSlots {
	h := vfSlots{}
	for i := range read {
		r := &read[i]
		if r.function != nil && r.capable != nil && r.capable.offset > 0 {
			key := slotKey(r.function.Address, r.function.Vendor, r.capable.device)
			h[key] = append(h[key], r)
		}
	}
	return h
}

// has reports whether the function could be a PF's VF by routing id and device
// id. Without its physfn link such a function looks like a physical one.
func (h vfSlots) has(f *Function) bool {
	for _, r := range h[slotKey(f.Address, f.Vendor, f.Device)] {
		distance := routingID(f.Address) - routingID(r.function.Address) - r.capable.offset
		stride := max(r.capable.stride, 1)
		if distance >= 0 && distance%stride == 0 && distance/stride < r.capable.total {
			return true
		}
	}
	return false
}

func slotKey(address, vendor, device string) string {
	domain, _, _ := strings.Cut(address, ":")
	return domain + " " + vendor + " " + device
}

func routingID(address string) int {
	rest := address[len(address)-len("3b:02.1"):]
	n := func(s string) int {
		v, _ := strconv.ParseUint(s, 16, 8) // validated by isAddress
		return int(v)
	}
	return n(rest[0:2])<<8 | n(rest[3:5])<<3 | n(rest[6:])
}
